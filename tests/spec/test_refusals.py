"""The core refuses for its named reason exactly where the reason holds, and changes nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penelope.policy import (
    InFlight,
    InUse,
    MoveId,
    Receipt,
    ReceiptId,
    Refused,
    Residency,
    State,
    Transfer,
    acquire,
    admit,
    begin,
    end,
    fail,
    forgo,
    match,
    plan,
    release,
    reset,
    settle,
    touch,
)
from penelope_spec import Facts, check_state
from penelope_spec.refusals import REASONS, Asked, unfounded
from tests.spec.test_tiers import moving, settled
from tests.spec.tiered import Tiered, tiered_configs

Try = tuple[str, Callable[[], Any], Facts]


def attempts(chance: random.Random, state: State, earlier: State) -> Iterator[Try]:
    """One of each transition, with what is live, what was, what never was, and what is stale."""
    receipt = Receipt(ReceiptId(chance.randrange(state.next_receipt + 1)))
    number = MoveId(chance.randrange(state.next_move + 1))
    held: Facts = {"receipt": receipt}
    taken: Facts = {"move": number}
    yield "release", lambda: release(state, receipt), held
    yield "settle", lambda: settle(state, receipt), held
    yield "forgo", lambda: forgo(state, receipt), held
    yield "end", lambda: end(state, number), taken
    yield "fail", lambda: fail(state, number), taken
    yield "reset", lambda: reset(state), {}
    nodes = sorted(n.id for n in state.nodes.values() if n.parent is not None)
    if not nodes:
        return
    node = state.nodes[chance.choice(nodes)]
    start = chance.randrange(node.start, node.end)
    stop = chance.randrange(start + 1, node.end + 2)
    transfer = Transfer(node.id, start, stop, chance.choice((Residency.DEVICE, Residency.HOST)))
    yield "begin", lambda: begin(state, transfer), {"transfer": transfer}
    source = chance.choice((state, state, state, earlier))
    matched = match(source, node.key, node.namespace, at_most=node.end)
    yield "touch", lambda: touch(state, matched), {"match": matched}
    yield "acquire", lambda: acquire(state, matched), {"match": matched}
    planned = plan(source, node.key, node.namespace, at_most=node.end)
    yield "admit", lambda: admit(state, planned), {"plan": planned}


def test_every_refusal_has_its_reason_and_no_acceptance_has_one() -> None:
    seen: Counter[tuple[str, str]] = Counter()
    for config in tiered_configs():
        chance = random.Random(0)
        for done in Tiered(config, seed=1).run(60):
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
