"""The core refuses for its named reason exactly where the reason holds, and changes nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from penelope.policy import (
    InFlight,
    InUse,
    Key,
    MoveId,
    Node,
    Plan,
    Receipt,
    ReceiptId,
    Refused,
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
from penelope_spec import Facts, check_state
from penelope_spec.facts import TRANSITIONS
from penelope_spec.refusals import REASONS, Asked, unfounded
from penelope_spec.room import path_to
from tests.spec.test_tiers import moving, settled
from tests.spec.tiered import Tiered, tiered_configs
from tests.spec.worlds import Done, World

Try = tuple[str, Callable[[], Any], Facts]


def attempts(chance: random.Random, state: State, earlier: State) -> Iterator[Try]:
    """Each transition, with what is live, what was, what never was, and what is stale."""
    receipt = Receipt(ReceiptId(chance.randrange(state.next_receipt + 1)))
    if state.leases and chance.random() < 0.7:
        receipt = Receipt(chance.choice(sorted(state.leases)))
    number = MoveId(chance.randrange(state.next_move + 1))
    held: Facts = {"receipt": receipt}
    taken: Facts = {"move": number}
    yield "release", lambda: release(state, receipt), held
    yield "settle_promise", lambda: settle_promise(state, receipt), held
    yield "forgo_promise", lambda: forgo_promise(state, receipt), held
    yield "end_move", lambda: end_move(state, number), taken
    yield "fail_move", lambda: fail_move(state, number), taken
    yield "reset", lambda: reset(state), {}
    need = chance.randrange(-1, state.evictable + 3)
    yield "evict", lambda: evict(state, need), {"need": need}
    units = chance.randrange(-1, state.config.device_capacity + 3)
    yield "reserve", lambda: reserve(state, receipt, units), {"receipt": receipt, "units": units}
    yield from with_a_span(chance, state, receipt)
    nodes = sorted(n.id for n in state.nodes.values() if n.parent is not None)
    if nodes:
        node = state.nodes[chance.choice(nodes)]
        yield from with_a_node(chance, state, node)
        yield from with_a_match(node, state, chance.choice((state, state, state, earlier)))
        yield from with_a_key(chance, state, node, receipt)


def with_a_span(chance: random.Random, state: State, receipt: Receipt) -> Iterator[Try]:
    """Often a hole on the path of the receipt, its own or another's to refill, or a part of it."""
    lease = state.leases.get(receipt.id)
    path = path_to(state, lease.node) if lease is not None else []
    holes = [node for node in path if node.residency is Residency.HOLE]
    page = state.config.page_size
    start = chance.randrange(-1, 12)
    stop = start + chance.randrange(0, 6)
    if holes and chance.random() < 0.7:
        hole = chance.choice(holes)
        start, stop = hole.start, min(hole.end, hole.start + page * chance.randrange(1, 4))
    span: Facts = {"receipt": receipt, "start": start, "end": stop}
    yield "refill", lambda: refill(state, receipt, start, stop), span


def with_a_node(chance: random.Random, state: State, node: Node) -> Iterator[Try]:
    start = chance.randrange(node.start, node.end)
    stop = chance.randrange(start + 1, node.end + 2)
    transfer = Transfer(node.id, start, stop, chance.choice((Residency.DEVICE, Residency.HOST)))
    yield "begin_move", lambda: begin_move(state, transfer), {"transfer": transfer}


def with_a_match(node: Node, state: State, source: State) -> Iterator[Try]:
    matched = match(source, node.key, node.namespace, at_most=node.end)
    yield "touch", lambda: touch(state, matched), {"match": matched}
    yield "acquire", lambda: acquire(state, matched), {"match": matched}
    yield "retire", lambda: retire(state, matched), {"match": matched}
    for queue in ([matched], [Ticket(0)]):
        yield "line_up", partial(line_up, state, queue), {"queue": queue}
    planned = plan(source, node.key, node.namespace, at_most=node.end)
    yield "admit", lambda: admit(state, planned), {"plan": planned}
    for units, held in ((-1, 0), (2, -1), (0, state.free), (1, state.free + 1), (1, 1)):
        told = Plan(matched, units, held)
        yield "admit", partial(admit, state, told), {"plan": told}


def with_a_key(chance: random.Random, state: State, node: Node, receipt: Receipt) -> Iterator[Try]:
    """A history, a part of it, with more behind it, or with half a unit."""
    width = state.config.unit_bytes
    keep = chance.randrange(node.end + 1)
    more = pack(chance.choices(range(2), k=chance.randrange(2 * state.config.device_capacity)))
    key = Key(node.key[: keep * width] + more[: len(more) - chance.choice((0, 0, 0, 0, 1))])
    space = node.namespace
    extra, most = chance.randrange(-1, 4), chance.randrange(-1, node.end + 2)
    start = chance.choice((0, 0, chance.randrange(-1, node.end + 2)))
    asked: Facts = {"key": key, "namespace": space}
    yield "match", lambda: match(state, key, space, at_most=most), {**asked, "at_most": most}
    yield (
        "plan",
        lambda: plan(state, key, space, extra=extra, at_most=most),
        {**asked, "extra": extra, "at_most": most},
    )
    yield "insert", lambda: insert(state, key, space, start=start), {**asked, "start": start}
    lease = state.leases.get(receipt.id)
    if lease is not None and chance.random() < 0.8:
        # What it holds, or a history that goes on from there.
        longer = [n for n in state.nodes.values() if n.parent == lease.node]
        last = chance.choice([state.nodes[lease.node], *sorted(longer)])
        key = Key(last.key[: last.end * width] + more)
    yield "checkpoint", lambda: checkpoint(state, receipt, key), {"receipt": receipt, "key": key}


def runs(seed: int) -> Iterator[Done]:
    """Of every policy, with two tiers and with one."""
    for config in tiered_configs():
        yield from Tiered(config, seed).run(60)
        yield from World(replace(config, host_capacity=0, swap_buffer=0), seed).run(30)


def test_every_refusal_has_its_reason_and_no_acceptance_has_one() -> None:
    seen: Counter[tuple[str, str]] = Counter()
    for seed in range(5):
        chance = random.Random(seed)
        for done in runs(seed):
            for transition, call, facts in attempts(chance, done.after, done.before):
                error = None
                try:
                    call()
                except Refused as refused:
                    error = refused
                found = unfounded(transition, Asked(done.after, facts), error)
                assert found == [], (transition, error)
                seen[transition, type(error).__name__] += 1
            assert check_state(done.after) == []
    assert REASONS.keys() == set(TRANSITIONS), "every transition is judged"
    expected = {(name, kind.__name__) for name, kinds in REASONS.items() for kind in kinds}
    accepted = {(name, "NoneType") for name in REASONS}
    assert expected | accepted <= seen.keys(), (expected | accepted) - seen.keys()


@pytest.mark.parametrize("state", [settled(), moving()], ids=["at rest", "in motion"])
def test_a_refusal_without_its_reason_is_named(state: State) -> None:
    """And an acceptance in spite of it: the check itself can fail."""
    error = InUse("no")
    wrong = unfounded("reset", Asked(state, {}), error)
    spite = unfounded("reset", Asked(state, {}), None)
    assert (wrong == []) == bool(state.leases or state.moves)
    assert (spite == []) == (not state.leases and not state.moves)
    matched = match(state, next(iter(state.nodes.values())).key)
    found = unfounded("acquire", Asked(state, {"match": matched}), InFlight("no"))
    assert found == ["acquire was refused, but its reason does not hold: no"]
