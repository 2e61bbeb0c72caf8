"""What must hold of an episode, from what was seen on the two engines."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.fuzz.server import known, wrong
from tests.fuzz.server.answers import HUNG, LEFT, Answer, Output, Place, Run
from tests.fuzz.server.episode import ASK, RAW, Episode, Operation
from tests.fuzz.server.servers import SERVERS

LIVES = "the server lives"
WAITS = "no client waits for ever"
LEAKS = "no slot leaks"
CLEAR = "a refused request gets a clear 4xx"
QUIET = "the log has no traceback"
EQUAL = "no output differs from the never-evicting engine's"
ALIKE = "both engines accept the same requests"
INTACT = "K and V are those of the never-evicting engine"
RULES = (LIVES, WAITS, LEAKS, CLEAR, QUIET, EQUAL, ALIKE, INTACT)

CLOSE = ("logprobs", "exact")
TOPS = {"input_top_logprobs", "output_top_logprobs"}
LEAST_LOGPROB = -87.0
"""Less is no normal number of 32 bits as a probability, and comes back as the least float."""
ADAPTERS = {"load", "unload"}
SLACK = 8
"""Tokens that SGLang keeps back beside whole pages."""
SIGNS = ("Traceback (most recent call last)", "memory leak detected", "Scheduler hit an exception")


@dataclass(frozen=True)
class Finding:
    rule: str
    text: str
    place: Place | None = None

    def __str__(self) -> str:
        where = "" if self.place is None else f" [phase {self.place[0]}, operation {self.place[1]}]"
        return f"{self.rule}{where}: {self.text}"


def judge(episode: Episode, reference: Run, run: Run) -> list[Finding]:
    """Everything that is wrong; empty if nothing is."""
    found = [*_alone(episode, reference, "never evicting: "), *_alone(episode, run, "")]
    if not reference.died and not run.died:
        found += _together(episode, reference, run)
    return found


# One run by itself


def _alone(episode: Episode, run: Run, which: str) -> Iterator[Finding]:
    if run.died:
        yield Finding(LIVES, which + run.died[-900:])
    for leak in run.leaks:
        yield Finding(LEAKS, which + leak)
    log = known.without_known(run.log)
    for sign in SIGNS:
        if sign in log and not run.died:
            at = log.index(sign)
            yield Finding(QUIET, f"{which}{log[max(0, at - 300) : at + 1800]}")
            break
    for place in episode.places():
        operation = episode.phases[place[0]][place[1]]
        answer = run.answers.get(place)
        if answer is not None:
            for finding in _answer(operation, answer, which):
                yield Finding(*finding, place)


def _answer(operation: Operation, answer: Answer, which: str) -> Iterator[tuple[str, str]]:
    told = f"{which}{operation.kind} was answered {answer.status}: {answer.message[:500]}"
    if answer.status == HUNG:
        yield WAITS, told
    elif answer.status >= 500:
        yield CLEAR, told
    elif answer.status >= 400:
        if not answer.message or "Traceback" in answer.message:
            yield CLEAR, told
    elif operation.kind == RAW and answer.status == 200 and _foreign(operation):
        if answer.cut_off:
            return  # It was refused, but aborted before it was told so.
        yield CLEAR, f"{told} an id outside the vocabulary was accepted"


def _foreign(operation: Operation) -> bool:
    """Whether the prompt holds an integer that is no token."""
    body = operation.fields.get("body")
    if not isinstance(body, dict):
        return False
    tokens = body.get("input_ids", body.get("prompt"))
    return isinstance(tokens, list) and any(
        type(token) is int and token in wrong.IDS for token in tokens
    )


# The two beside each other


def _together(episode: Episode, reference: Run, run: Run) -> Iterator[Finding]:
    for place in episode.places():
        phase = episode.phases[place[0]]
        operation = phase[place[1]]
        first, second = reference.answers.get(place), run.answers.get(place)
        if first is None or second is None or {first.status, second.status} & {HUNG, LEFT}:
            continue
        if operation.kind not in (ASK, RAW):
            continue
        if (first.status == 200) != (second.status == 200):
            if not (first.cut_off or second.cut_off) and not _may_be_refused(
                episode, phase, operation, first, second, run.limit
            ):
                yield Finding(
                    ALIKE,
                    f"{first.status} {first.message[:300]!r} without eviction, "
                    f"{second.status} {second.message[:300]!r} with it",
                    place,
                )
        elif first.status == 200 and _comparable(phase, operation):
            for text in _differences(episode, first, second, run.limit):
                yield Finding(EQUAL, text, place)
    wrong_kv = [h for h, digest in run.kv.items() if reference.kv.get(h, digest) != digest]
    if wrong_kv:
        shared = sum(h in reference.kv for h in run.kv)
        yield Finding(INTACT, f"{len(wrong_kv)} of {shared} positions differ")


def _may_be_refused(
    episode: Episode,
    phase: tuple[Operation, ...],
    operation: Operation,
    first: Answer,
    second: Answer,
    limit: int,
) -> bool:
    """Where one engine may well refuse what the other takes: a small pool, or bad timing."""
    kinds = {other.kind for other in phase}
    if "abort" in kinds or any(op.fields.get("mode") == "abort" for op in phase):
        return True
    if "LoRA adapter" in first.message + second.message and ADAPTERS & {
        op.kind for operations in episode.phases for op in operations
    }:
        return True  # A load and an unload that overlapped may end either way.
    near = _room(episode, limit)
    told = re.search(r"Input length \((\d+) tokens\) exceeds", second.message)
    prompt = int(told[1]) if told else _prompt(first)
    return first.status == 200 and second.status == 400 and prompt >= near


def _room(episode: Episode, limit: int) -> int:
    """Tokens from which on the size of the pool may refuse a prompt or end an output.

    SGLang keeps a page back for the prompt's last one and a page for what is generated.
    """
    return limit - 2 * SERVERS[episode.server].page - SLACK


def _prompt(answer: Answer) -> int:
    return max((output.prompt_tokens for output in answer.outputs), default=0)


def _comparable(phase: tuple[Operation, ...], operation: Operation) -> bool:
    """Outputs are determined: no chance in them, no weights that change, no fault of SGLang's."""
    if operation.kind != ASK or not operation.fields["compare"]:
        return False
    if known.unsettled(operation.fields):
        return False
    return all(other.kind != "weights" for other in phase)


def _differences(episode: Episode, first: Answer, second: Answer, limit: int) -> Iterator[str]:
    if len(first.outputs) != len(second.outputs):
        yield f"{len(first.outputs)} and {len(second.outputs)} outputs"
        return
    for a, b in zip(first.outputs, second.outputs, strict=True):
        if 0 not in (a.prompt_tokens, b.prompt_tokens) and a.prompt_tokens != b.prompt_tokens:
            truncates = SERVERS[episode.server].truncates
            if not (truncates and a.prompt_tokens >= _room(episode, limit)):
                yield f"prompts of {a.prompt_tokens} and {b.prompt_tokens} tokens"
            continue
        if all(output.finish in ("length", "stop") for output in (a, b)):
            yield from _finished(a, b, _room(episode, limit))
        elif "abort" not in (a.finish, b.finish):
            yield f"finished by {a.finish!r} and by {b.finish!r}"
        else:
            yield from _prefix(a, b)


def _finished(a: Output, b: Output, room: int) -> Iterator[str]:
    """`room`: an output that reaches it may have been ended by the pool's size."""
    if b.finish == "length" and b.tokens is not None and b.prompt_tokens + len(b.tokens) >= room:
        yield from _prefix(a, b)
        return
    if b.tokens is None and b.prompt_tokens >= room - 300 and b.text != a.text:
        # Text alone: how many tokens it was is not told, and the pool may have ended it.
        if not a.text.startswith(b.text.rstrip("\ufffd")):
            yield f"text {b.text!r}, not {a.text!r}"
        return
    if b.tokens is None and b.prompt_tokens >= room - 300 and b.finish == "length" != a.finish:
        # The same text, and the pool may have ended it before the word that stops and is cut off.
        yield from _prefix(a, b)
        return
    for name in ("tokens", "text", "logprobs", "finish", "exact"):
        one, other = getattr(a, name), getattr(b, name)
        if name == "exact":
            other = _ties_as(one, other)
        if not (_close(one, other) if name in CLOSE else one == other):
            yield f"{name}{_where(one, other)}"
            return


def _close(one: Any, other: Any) -> bool:
    """Equal but for the last bits of numbers.

    SGLang takes log-probabilities from logits where all of a batch is greedy, and from
    probabilities where somebody samples.  What both are made from is compared bit by bit: K and V.
    """
    if isinstance(one, float) and isinstance(other, float):
        one, other = max(one, LEAST_LOGPROB), max(other, LEAST_LOGPROB)
        return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-5)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_close(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_close, one, other))
    return bool(one == other)


def _ties_as(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The second, with the order of the first where its top tokens are the same but for ties.

    Which of two tokens comes first, or is the last that is told, hangs on the last bits too.
    """
    settled = dict(other)
    for name in TOPS & one.keys() & other.keys():
        if len(one[name]) == len(other[name]):
            pairs = zip(one[name], other[name], strict=True)
            settled[name] = [a if a and b and _tied(a, b) else b for a, b in pairs]
    return settled


def _tied(one: list[list[Any]], other: list[list[Any]]) -> bool:
    """Whether two lists of (log-probability, token, text) tell the same tokens but for ties."""
    if len(one) != len(other):
        return False
    first, second = ({entry[1]: entry for entry in top} for top in (one, other))
    if any(not _close(first[token], second[token]) for token in first.keys() & second.keys()):
        return False
    alone = [(first.get(token) or second[token])[0] for token in first.keys() ^ second.keys()]
    least = min(entry[0] for entry in (*one, *other))
    return all(_close(value, least) for value in alone)


def _where(one: Any, other: Any) -> str:
    """The first place at which two values differ, and what is there."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return next(
            f"[{k!r}]{_where(one[k], other[k])}" for k in one if not _close(one[k], other[k])
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) == len(other):
            pairs = enumerate(zip(one, other, strict=True))
            return next(f"[{i}]{_where(a, b)}" for i, (a, b) in pairs if not _close(a, b))
        return f" of length {len(other)}, not {len(one)}: {_short(other)}, not {_short(one)}"
    return f" {_short(other)}, not {_short(one)}"


def _prefix(a: Output, b: Output) -> Iterator[str]:
    """Outputs of which one was cut off agree as far as both go."""
    if a.tokens is not None and b.tokens is not None:
        both = min(len(a.tokens), len(b.tokens))
        if a.tokens[:both] != b.tokens[:both]:
            told = f"{_short(b.tokens[:both])}, not {_short(a.tokens[:both])}"
            yield f"the first {both} tokens {told}"
    both = min(len(a.logprobs), len(b.logprobs))
    if not _close(a.logprobs[:both], b.logprobs[:both]):
        yield f"the first {both} log-probabilities differ"


def _short(value: object) -> str:
    return re.sub(r"\s+", " ", repr(value))[:400]
