"""What a match and a plan must answer, page by page, from a picture of the tree.

The picture knows pages and where their KV is, and nothing of nodes: it is what a reader of the
specification would draw.  Steps are compared on it too, where a request undertakes or fills holes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penelope.policy import (
    ReceiptId,
    RequestTooLarge,
    Residency,
    State,
    match,
    pack,
    plan,
)
from penelope_spec import Violation

Tokens = tuple[int, ...]
DEVICE, HOST, HOLE = Residency.DEVICE, Residency.HOST, Residency.HOLE


class Page(NamedTuple):
    """A page of some history."""

    residency: Residency
    locked: bool
    filler: ReceiptId | None
    moving: bool


Picture = dict[Tokens, Page]
"""By all tokens to the end of the page."""


def drawn(state: State) -> Picture:
    size, width = state.config.page_size, state.config.unit_bytes
    found: Picture = {}
    for node in state.nodes.values():
        tokens = tuple(node.key[at * width] for at in range(node.end))
        page = Page(node.residency, node.locks > 0, node.filler, node.move is not None)
        for end in range(node.start + size, node.end + 1, size):
            found[tokens[:end]] = page
    return found


def wrong_answers(state: State, picture: Picture, histories: Iterable[Tokens]) -> list[Violation]:
    """Where match or plan says something else than the picture."""
    wrong = []
    for tokens in histories:
        for name, said, due in _answers(state, picture, tokens):
            if said != due:
                text = f"{name} of {tokens} is {said}, and {due} by its pages"
                wrong.append(Violation("reads-change-nothing", text))
    return wrong


def _answers(
    state: State, picture: Picture, tokens: Tokens
) -> Iterable[tuple[str, object, object]]:
    size = state.config.page_size
    ends = range(size, len(tokens), size)  # at least one token is computed
    path = []
    for end in ends:
        if tokens[:end] not in picture:
            break
        path.append(picture[tokens[:end]])
    while path and path[-1].residency is HOLE:
        path.pop()
    found = match(state, pack(tokens))
    hits = [page for page in path if not page.moving and page.filler is None]
    in_tier = {r: size * sum(page.residency is r for page in hits) for r in Residency}
    arriving = sum(p.filler is not None or (p.moving and p.residency is HOST) for p in path)
    prefix = next((at for at, p in enumerate(path) if p.residency is not DEVICE), len(path))
    yield "end", found.end, size * len(path)
    yield "device", found.device, in_tier[DEVICE]
    yield "host", found.host, in_tier[HOST]
    yield "hole", found.hole, in_tier[HOLE]
    yield "arriving", found.arriving, size * arriving
    yield "leaving", found.leaving, size * sum(p.moving and p.residency is DEVICE for p in path)
    yield "device prefix", found.device_prefix, size * prefix
    most = state.config.device_capacity
    for extra in (0, 1):
        total = -(-(len(tokens) + extra) // size) * size
        try:
            planned = plan(state, pack(tokens), extra=extra)
        except RequestTooLarge:
            yield "refusal", "too large", "too large" if total > most else "none"
            continue
        yield "size", total, min(total, most)
        there = len(path) - len(hits) + in_tier[DEVICE] // size
        yield "allocate", planned.allocate, total - size * there
        own = {tokens[:end] for end in ends[: len(path)]}
        idle = [
            page.residency
            for at, page in picture.items()
            if at not in own and not page.locked and page.residency is not HOLE
        ]
        promised = state.totals.due + state.totals.promote
        yield "available", planned.available, size * idle.count(DEVICE) - promised
        yield "droppable", planned.droppable, size * len(idle)


def wrong_refills(
    before: Picture, after: Picture, transition: str, receipt: ReceiptId | None
) -> list[Violation]:
    """A hole that somebody refills is nobody else's until it is filled, or its request ends."""
    wrong = []
    for tokens, was in before.items():
        now = after.get(tokens)
        if was.filler is None or now is None:
            continue
        if now.residency is HOLE:
            ended = transition == "release" and was.filler == receipt
            if now.filler != was.filler and not ended:
                text = f"{transition} passes the refill of {tokens} on to {now.filler}"
                wrong.append(Violation("in-flight", text))
        elif transition == "refill" and was.filler != receipt:
            text = f"{tokens} is refilled by {receipt}, and {was.filler} has undertaken it"
            wrong.append(Violation("in-flight", text))
    return wrong


def wrong_reservations(
    before: State, after: State, receipt: ReceiptId, offered: int
) -> list[Violation]:
    """What is handed over leaves the reservation of its request, adopted or not, and no other."""
    wrong = []
    for number, lease in after.leases.items():
        due = before.leases[number].reserved
        if number == receipt:
            due = max(0, due - offered)
        if lease.reserved != due:
            text = f"receipt {number} has {lease.reserved} reserved, {due} are left of it"
            wrong.append(Violation("accounting", text))
    return wrong
