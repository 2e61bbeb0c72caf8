"""What a request would cost at a replica: the spans that it would compute there, and the queue.

Router scores count blocks from the beginning.  A block's cost grows with its position, so a replica
that lacks the head of a history may be cheaper than one that has as many blocks and lacks the tail.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from penelope.cost import CostModel
from penelope.policy.errors import PenelopeError


class RoutingError(PenelopeError):
    """Something that no route can be computed from."""


Span = tuple[int, int]
"""[start, end) of a history, in tokens unless it says otherwise."""


class Candidate(NamedTuple):
    """A replica as a router knows it."""

    name: str
    """Of equal costs the first name in the order of strings wins."""
    spans: Sequence[Span]
    """Tokens of this request's history that the replica is said to hold: in order, not
    overlapping, and no longer than the request."""
    queued: int = 0
    """What waits there, in the unit of `Quote.cost`: the sum of the quotes that were accepted and
    have not begun, or 0 to leave the queue out."""


class Quote(NamedTuple):
    """What a request would cost at one replica.  Quotes compare by cost, then by name."""

    cost: int
    """In `CostModel.scaled_span` units, the queue included."""
    name: str
    missing: tuple[Span, ...]
    """What would be computed there, in position order."""


def missing(spans: Sequence[Span], length: int) -> tuple[Span, ...]:
    """The tokens of a request of `length` that are in none of the spans, and always its last one.

    A request whose whole history is held still computes one token.  Raises `RoutingError` for
    spans that are empty, overlap, are out of order or leave the request, and for a length below 1.
    """
    if length < 1:
        raise RoutingError(f"the request has {length} tokens: give 1 or more")
    found: list[Span] = []
    at = 0
    for start, end in spans:
        if not at <= start < end <= length:
            raise RoutingError(
                f"span [{start}, {end}) does not follow {at} inside a request of {length} tokens: "
                f"give spans in order that do not overlap"
            )
        if at < start:
            found.append((at, start))
        at = end
    if at < length:
        found.append((at, length))
    elif not found or found[-1][1] < length:
        found.append((length - 1, length))
    return tuple(found)


def quote(model: CostModel, length: int, candidate: Candidate) -> Quote:
    """What a request of `length` tokens would cost there.  Raises `RoutingError`."""
    if candidate.queued < 0:
        raise RoutingError(
            f"the queue of {candidate.name!r} is {candidate.queued}: give 0 or more cost units"
        )
    spans = missing(candidate.spans, length)
    cost = sum(model.scaled_span(start, end) for start, end in spans)
    return Quote(cost + candidate.queued, candidate.name, spans)


def choose(model: CostModel, length: int, among: Iterable[Candidate]) -> Quote:
    """The least quote: by cost, then by name, so that every router of a fleet chooses alike.

    Linear in the candidates and their spans.  Raises `RoutingError`, also where there is no
    candidate and where two have one name.
    """
    quotes = [quote(model, length, candidate) for candidate in among]
    if not quotes:
        raise RoutingError("there is no replica to choose from")
    if len({one.name for one in quotes}) < len(quotes):
        raise RoutingError("two candidates have one name: give each replica once")
    return min(quotes)


def candidates(
    held: Mapping[str, Sequence[Span]],
    names: Collection[str],
    *,
    block: int,
    queued: Mapping[str, int] | None = None,
) -> list[Candidate]:
    """Every named replica with what it holds of a request, given in blocks of `block` tokens.

    Raises `RoutingError` for a block below 1.
    """
    if block < 1:
        raise RoutingError(f"a block has {block} tokens: give 1 or more")
    waits = queued or {}
    return [
        Candidate(
            name,
            [(start * block, end * block) for start, end in held.get(name, ())],
            waits.get(name, 0),
        )
        for name in names
    ]
