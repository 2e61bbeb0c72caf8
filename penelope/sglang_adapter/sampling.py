"""What a request may ask of sampling: one user's request ends nobody else's.

SGLang makes tensors, patterns and functions of what a request asks when it is scheduled, in the
process that serves everybody, and ends with the first that cannot be made.  Here each is tried when
the request arrives, and refused in one line.  What only shows while it runs, that no token is left
to sample, is settled in the batch without an error.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

MOST_FLOAT = 1e30
"""The largest size of a bias or a logit: divided by the least temperature, 1e-6, it is finite."""
MOST_INTEGER = 2**31 - 1
"""SGLang counts tokens in 32 bits."""

FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
INTEGERS = ("top_k", "min_new_tokens", "max_new_tokens", "n", "stream_interval")

UNREADABLE = (
    AttributeError,
    KeyError,
    IndexError,
    OverflowError,
    RecursionError,
    TypeError,
    re.error,
)
"""What SGLang raises, beside `ValueError`, where a request holds something of the wrong kind."""


def read(reading: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What `reading` returns.  Raises `ValueError`, which is answered with 400, if it fails."""
    try:
        return reading(*arguments, **named)
    except UNREADABLE as error:
        kind = type(error).__name__
        raise ValueError(f"The request cannot be read: {kind}: {_line(error)}") from error


def fault(params: Any, vocab_size: int) -> str | None:
    """The reason why SGLang's `SamplingParams` cannot be put into tensors and patterns, or None."""
    return next(_faults(params, vocab_size), None)


def _faults(params: Any, vocab_size: int) -> Iterator[str]:
    yield from _wrong_types(params)
    for name in FLOATS:
        value = getattr(params, name)
        if not _is_number(value) or abs(value) > MOST_FLOAT:
            yield f"{name} is {_short(value)}: it must be a number of at most {MOST_FLOAT:g}."
    for name in INTEGERS:
        value = getattr(params, name)
        if value is None and name in ("max_new_tokens", "stream_interval"):
            continue
        # SGLang takes a larger limit on new tokens for none.
        most = math.inf if name == "max_new_tokens" else MOST_INTEGER
        if type(value) is not int or value > most:
            yield f"{name} is {_short(value)}: it must be an integer below 2**31."
    for token in params.stop_token_ids or ():
        if not 0 <= token < vocab_size:
            yield (
                f"stop_token_ids has the id {token}: the model's vocabulary has the ids 0 to "
                f"{vocab_size - 1}."
            )
    for token, bias in (params.logit_bias or {}).items():
        if not _is_number(bias) or abs(bias) > MOST_FLOAT:
            yield (
                f"logit_bias of token {_short(token)} is {_short(bias)}: it must be a number of at "
                f"most {MOST_FLOAT:g}."
            )
    for pattern in params.stop_regex_strs or ():
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            yield f"stop_regex {_short(pattern)} does not compile: {_line(error)}."


def _wrong_types(params: Any) -> Iterator[str]:
    """SGLang declares types and, by default, looks at them nowhere; a processor takes any."""
    import msgspec

    plain = copy.copy(params)
    plain.custom_params = None
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(plain), type=type(plain))
    except (msgspec.MsgspecError, TypeError, OverflowError, UnicodeError) as error:
        said = _line(error)
        # It is told as a place in an array.
        place = re.search(r" - at `\$\[(\d+)\]", said)
        name = type(plain).__struct_fields__[int(place[1])] if place else "a sampling parameter"
        yield f"{name} is of the wrong type: {said.partition(' - at')[0]}."


def processor_fault(load: Callable[[], Any], params: Any, logits: torch.Tensor) -> str | None:
    """The reason why a custom logit processor cannot be used, or None.

    `load` makes the processor.  It is called once, with `logits` [1, vocabulary], as SGLang calls
    it after every part of a prompt: SGLang ends where it raises.
    """
    try:
        processor = load()
    except Exception as error:  # noqa: BLE001  (it is somebody's code)
        return f"custom_logit_processor cannot be loaded: {type(error).__name__}: {_line(error)}."
    given = params.custom_params
    try:
        found = processor(logits.clone(), [dict(given) if isinstance(given, dict) else given])
        right = found.shape == logits.shape
    except Exception as error:  # noqa: BLE001
        return (
            f"custom_logit_processor fails with these custom_params: {type(error).__name__}: "
            f"{_line(error)}."
        )
    return None if right else "custom_logit_processor changes the shape of the logits."


def leave_something(logits: torch.Tensor, allow: Callable[[torch.Tensor], None] | None) -> None:
    """Change, in place, the rows of `logits` [requests, vocabulary] that have no token to sample.

    Everything may be forbidden by what a request has asked: `min_new_tokens` forbids the end, which
    is all that a grammar allows; biases or a processor forbid every token.  Probabilities of such a
    row are not numbers, and sampling from them ends the process.  Then the grammar alone decides
    (`allow` puts -inf at what no grammar allows), or where there is none every token is alike.
    Other rows stay as they are, bit for bit, and nothing waits for a GPU.
    """
    import torch

    nothing = ~(logits.amax(dim=-1, keepdim=True).abs() <= MOST_FLOAT)
    if allow is None:
        logits.masked_fill_(nothing, 0.0)
        return
    allowed = torch.zeros_like(logits)
    allow(allowed)
    # A grammar of characters that no token has allows nothing: SGLang ends this request alone.
    allowed.masked_fill_(torch.isinf(allowed.amax(dim=-1, keepdim=True)), 0.0)
    logits.copy_(torch.where(nothing, allowed, logits))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _line(error: Exception) -> str:
    """The first line of what an exception says."""
    return (str(error).splitlines() or ["no reason given"])[0][:300]
