"""What a request must be to get in: short enough to be admitted, of tokens that exist, readable."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

MOST_OUTPUTS = 1024
"""Outputs of one request.  SGLang makes a request of each before it answers anybody else."""


def longest_prompt(capacity: int, page_size: int) -> int:
    """Tokens of the longest prompt that admission can ever accept, alone on an empty pool.

    SGLang admits a request when its prompt, its output and one page are *less* than what can be
    had (`PrefillAdder.add_one_req`), whatever of the prompt is cached, missing or on the host.
    It refuses prompts *from* its limit on and cuts others *to* it, so the limit itself must fit.
    """
    return max(0, capacity - page_size - 1)


def fault(req: Any) -> str | None:
    """The reason why a request cannot get in, or None.  No token is looked at one by one.

    Stock SGLang looks up the embedding of whatever id it is given: outside the table this stops
    the process, or, where the table is split over GPUs, computes KV of no token at all.
    """
    if getattr(req, "beam_group", None) is not None:
        return "Penelope does not serve beam_width: beams share rows that a refill rewrites."
    tokens = np.frombuffer(req.origin_input_ids, dtype=np.int64)
    if not len(tokens):
        return "The prompt is empty: it must have at least one token."
    lowest, highest = int(tokens.min()), int(tokens.max())
    if lowest < 0 or highest >= req.vocab_size:
        wrong = lowest if lowest < 0 else highest
        at = int((tokens == wrong).argmax())
        return (
            f"Token {at} of the prompt has the id {wrong}: the model's vocabulary has the ids "
            f"0 to {req.vocab_size - 1}."
        )
    asked = req.logprob.top_logprobs_num if req.return_logprob else 0
    if asked > req.vocab_size:
        return f"top_logprobs_num is {asked}: the model's vocabulary has {req.vocab_size} tokens."
    return None


def argument_fault(asked: Any, labels: Collection[str] | None) -> str | None:
    """The reason why SGLang's `GenerateReqInput` would end or block a process, or None.

    `labels` are those that a request may add to metrics; None: there are no metrics.
    """
    each = asked.sampling_params
    each = each if isinstance(each, list) else [each]
    outputs = [params.get("n") for params in each if isinstance(params, dict)]
    most = max((n for n in outputs if isinstance(n, int)), default=1)
    if most > MOST_OUTPUTS:
        return f"n is {most}: one request may ask for up to {MOST_OUTPUTS} outputs."
    if isinstance(asked.positional_embed_overrides, Mapping):
        return "positional_embed_overrides cannot be sent as JSON: use the engine's own API."
    if asked.session_params and (wrong := _session_fault(asked.session_params)):
        return wrong
    if labels is not None and asked.custom_labels:
        unknown = sorted(set(asked.custom_labels) - set(labels))
        if unknown:
            return (
                f"custom_labels has '{unknown[0]}': the server's metrics have no such label "
                f"(--tokenizer-metrics-allowed-custom-labels)."
            )
    return None


_SESSION: Mapping[str, tuple[type, ...]] = {
    "id": (str,),
    "rid": (str,),
    "offset": (int,),
    "replace": (bool,),
    "drop_previous_output": (bool,),
}


def _session_fault(asked: Mapping[str, Any]) -> str | None:
    for name, types in _SESSION.items():
        value = asked.get(name)
        if value is not None and type(value) not in types:
            return f"session_params.{name} must be of type {types[0].__name__}."
    if asked.get("replace") and asked.get("rid") is None:
        return "session_params.replace needs the rid of the request that is replaced."
    return None
