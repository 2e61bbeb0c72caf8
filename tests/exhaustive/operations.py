"""Everything that can be asked of a small cache, up to renaming."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
from typing import Any, NamedTuple

from penelope.policy import (
    Key,
    Match,
    NodeId,
    Receipt,
    ReceiptId,
    RequestTooLarge,
    Residency,
    State,
    Ticket,
    Transfer,
    acquire,
    admit,
    begin_move,
    checkpoint,
    end_move,
    evict,
    fail_move,
    forgo_promise,
    insert,
    line_up,
    match,
    next_demotion,
    next_transfer,
    pack,
    plan,
    refill,
    release,
    reserve,
    reset,
    retire,
    settle_promise,
    touch,
)
from penelope_spec import Facts

Tokens = tuple[int, ...]
Answer = tuple[Any, ...]
"""(state, effects, …): what every transition returns."""


class Operation(NamedTuple):
    name: str
    """Of the transition."""
    text: str
    act: Callable[[State], Answer]
    facts: Facts
    sure: bool = False
    """Whether it may not be refused."""


class Limits(NamedTuple):
    """How small the world is."""

    longest: int
    """Tokens of a history."""
    requests: int
    """Live receipts at once."""
    moves: int = 2
    """In flight at once."""
    queue: int = 0
    """Requests that wait at once; with any, histories may end as well."""


def operations(state: State, limits: Limits) -> Iterator[Operation]:
    known = prefixes(state)
    histories = [*histories_of(known, limits.longest)]
    yield from _uses(state, known, histories, limits)
    for number in state.leases:
        yield from _of_receipt(state, Receipt(number), histories)
    block = state.config.block_size
    for need in sorted({1, block, state.evictable, state.evictable + 1}):
        yield Operation("evict", f"evict({need})", partial(_evict, need=need), {"need": need})
    idle = not state.leases and not state.moves
    yield Operation("reset", "reset()", reset, {}, idle)
    if state.config.host_capacity:
        yield from _moves(state, limits)
    if limits.queue:
        yield from _foresight(state, known, limits.queue)


def _foresight(state: State, known: set[Tokens], most: int) -> Iterator[Operation]:
    """Every reordering of every part of the queue, one more anywhere in it, and every ending."""
    before = state.waiting.order
    for length in range(most + 1):
        for chosen in permutations(before, length):
            queues: list[tuple[str, list[Ticket | Match]]] = [("", [*chosen])]
            if length < most:
                for tokens in [(), *sorted(known)]:
                    matched = match(state, pack(tokens), at_most=len(tokens))
                    queues += [
                        (f" with {_name(tokens)} at {at}", [*chosen[:at], matched, *chosen[at:]])
                        for at in range(length + 1)
                    ]
            for text, queue in queues:
                text = f"line_up({', '.join(map(str, chosen)) or 'nobody'}{text})"
                yield Operation(
                    "line_up", text, partial(line_up, queue=queue), {"queue": queue}, True
                )
    for tokens in sorted(known):
        matched = match(state, pack(tokens), at_most=len(tokens))
        act = partial(retire, matched=matched)
        yield Operation("retire", f"retire({_name(tokens)})", act, {"match": matched}, True)


def _evict(state: State, need: int) -> Answer:
    return evict(state, need)


def _uses(
    state: State, known: set[Tokens], histories: list[Tokens], limits: Limits
) -> Iterator[Operation]:
    for tokens in histories:
        key = pack(tokens)
        yield Operation("insert", f"insert({_name(tokens)})", partial(insert, key=key), {})
    for tokens in sorted(known):
        matched = match(state, pack(tokens), at_most=len(tokens))
        act = partial(touch, matched=matched)
        yield Operation("touch", f"touch({_name(tokens)})", act, {"match": matched}, True)
    if len(state.leases) >= limits.requests:
        return
    for tokens in [(), *sorted(known)]:
        matched = match(state, pack(tokens), at_most=len(tokens))
        yield Operation(
            "acquire",
            f"acquire({_name(tokens)})",
            partial(acquire, matched=matched),
            {"match": matched},
        )
    for tokens in histories:
        for extra in (0, 1):
            try:
                planned = plan(state, pack(tokens), extra=extra)
            except RequestTooLarge:
                continue
            yield Operation(
                "admit",
                f"admit({_name(tokens)}, extra={extra})",
                partial(admit, plan=planned),
                {"plan": planned},
            )


def _of_receipt(state: State, receipt: Receipt, histories: list[Tokens]) -> Iterator[Operation]:
    facts: Facts = {"receipt": receipt}
    who = f"receipt {receipt.id}"
    lease = state.leases[receipt.id]
    yield Operation("release", f"release({who})", partial(release, receipt=receipt), facts, True)
    held = _tokens(state, lease.node)
    for tokens in sorted({held, *(h for h in histories if h[: len(held)] == held)}):
        act = partial(checkpoint, receipt=receipt, key=pack(tokens))
        yield Operation("checkpoint", f"checkpoint({who}, {_name(tokens)})", act, facts)
    for start, stop, filler in _holes(state, receipt):
        for last in sorted({stop, start + state.config.page_size}):
            yield Operation(
                "refill",
                f"refill({who}, {start}, {last})",
                partial(refill, receipt=receipt, start=start, end=last),
                {**facts, "start": start},
                filler == receipt.id and last - start <= lease.reserved,
            )
    for units in sorted({1, state.config.block_size}):
        yield Operation(
            "reserve",
            f"reserve({who}, {units})",
            partial(reserve, receipt=receipt, units=units),
            {**facts, "units": units},
        )
    if state.config.host_capacity:
        yield Operation(
            "settle_promise",
            f"settle_promise({who})",
            partial(settle_promise, receipt=receipt),
            facts,
        )
        yield Operation(
            "forgo_promise",
            f"forgo_promise({who})",
            partial(forgo_promise, receipt=receipt),
            facts,
            True,
        )


def _moves(state: State, limits: Limits) -> Iterator[Operation]:
    for move in state.moves:
        facts: Facts = {"move": move}
        yield Operation(
            "end_move", f"end_move(move {move})", partial(end_move, move=move), facts, True
        )
        yield Operation(
            "fail_move", f"fail_move(move {move})", partial(fail_move, move=move), facts, True
        )
    for node in state.nodes.values():
        if node.residency is Residency.DEVICE and node.locks:
            yield _begin(Transfer(node.id, node.start, node.end, Residency.HOST), sure=False)
    if len(state.moves) >= limits.moves:
        return
    found: list[Transfer | None] = [next_transfer(state, Receipt(r)) for r in state.leases]
    room = state.config.host_capacity - state.host_used
    found.append(next_demotion(state, min(room, state.config.block_size)))
    for transfer in dict.fromkeys(t for t in found if t is not None):
        yield _begin(transfer, sure=True)


def _begin(transfer: Transfer, *, sure: bool) -> Operation:
    return Operation(
        "begin_move",
        f"begin_move([{transfer.start}, {transfer.end}) to the {transfer.target.value})",
        partial(begin_move, transfer=transfer),
        {"transfer": transfer},
        sure,
    )


def _holes(state: State, receipt: Receipt) -> list[tuple[int, int, ReceiptId | None]]:
    """The holes on the path of a receipt with who refills them, in position order."""
    spans: list[tuple[int, int, ReceiptId | None]] = []
    node = state.nodes[state.leases[receipt.id].node]
    while node.parent is not None:
        if node.residency is Residency.HOLE:
            joins = bool(spans) and spans[-1][0] == node.end and spans[-1][2] == node.filler
            spans.append((node.start, spans.pop()[1] if joins else node.end, node.filler))
        node = state.nodes[node.parent]
    return spans[::-1]


def _tokens(state: State, node: NodeId) -> Tokens:
    found = state.nodes[node]
    width = state.config.unit_bytes
    key: Key = found.key
    return tuple(key[at * width] for at in range(found.end))


def prefixes(state: State) -> set[Tokens]:
    """Every prefix of every history that the tree knows, whole pages, the empty one excluded."""
    page = state.config.page_size
    known: set[Tokens] = set()
    for node in state.nodes.values():
        if not node.is_root:
            tokens = _tokens(state, node.id)
            known.update(tokens[:at] for at in range(node.start + page, node.end + 1, page))
    return known


def histories_of(known: set[Tokens], longest: int) -> Iterator[Tokens]:
    """Known prefixes, and each with something new: which tokens are new makes no difference."""
    yield from sorted(known)
    for prefix in [(), *sorted(known)]:
        fresh = [token for token in (0, 1) if (*prefix, token) not in known]
        for more in range(longest - len(prefix)) if fresh else ():
            yield (*prefix, fresh[0], *(0,) * more)


def _name(tokens: Tokens) -> str:
    return "".join(map(str, tokens)) or "nothing"
