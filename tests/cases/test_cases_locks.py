"""Faults from the field, about locks, counters and stale plans.  Numbers: docs/faults.md."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from penelope.policy import (
    InsufficientSpace,
    NodeId,
    Receipt,
    Residency,
    StalePlan,
    State,
    UnknownReceipt,
)
from penelope.policy.ticks import TickMap
from penelope_spec import check_slots, check_state
from tests.cases.scene import Scene


def test_case_7_locking_a_match_locks_the_matched_node_itself() -> None:
    s = Scene(block=2)
    s.insert("abcdef")
    r = s.lock("abcdef")
    with pytest.raises(InsufficientSpace):
        s.evict(1)
    (node,) = (n for n in s.state.nodes.values() if not n.is_root)
    assert node.locks == 1
    s.release(r)
    assert s.evict(6).freed == 6


def test_case_7_locking_the_empty_match_protects_nothing_and_balances() -> None:
    s = Scene()
    r = s.lock("")
    assert (s.state.protected, len(s.state.leases)) == (0, 1)
    s.release(r)
    assert (len(s.state.leases), len(s.state.nodes)) == (0, 0)


def test_case_10_counters_survive_splits_and_an_extra_unlock_raises() -> None:
    s = Scene(block=2)
    s.insert("abcd")
    s.insert("abxy")
    r = s.lock("abxy")
    assert (s.state.evictable, s.state.protected) == (2, 4)
    s.release(r)
    before = s.state
    with pytest.raises(UnknownReceipt):
        s.release(r)
    assert s.state is before
    # Every call on a scene ends with a recount of all counters.
    rng = random.Random(10)
    live: list[Receipt] = []
    for _ in range(2_000):
        history = "".join(rng.choice("ab") for _ in range(rng.randint(1, 8)))
        kind = rng.randrange(4)
        if kind == 0:
            lacking = len(history) - s.state.free
            if lacking <= s.state.evictable:
                s.evict(max(0, lacking))
                s.insert(history)
        elif kind == 1 and len(live) < 5:
            live.append(s.lock(history))
        elif kind == 2 and live:
            s.release(live.pop(rng.randrange(len(live))))
        else:
            s.evict(rng.randint(0, s.state.evictable))


def test_case_14_each_lock_has_a_receipt_and_only_that_releases_it() -> None:
    s = Scene()
    s.insert("abcd")
    running, other = s.lock("abcd"), s.lock("abcd")
    s.release(other)
    (node,) = (n for n in s.state.nodes.values() if not n.is_root)
    assert node.locks == 1
    for used in (other, other):
        with pytest.raises(UnknownReceipt):
            s.release(used)
    assert s.state.protected == 4
    s.release(running)


def test_case_17_a_request_that_had_nothing_to_load_leaves_nothing_pinned() -> None:
    s = Scene()
    s.insert("abcd")
    for _ in range(100):
        r = s.begin("abcde")
        s.release(r)
        assert (s.state.protected, s.state.totals.reserved) == (0, 0)
    assert s.evict(4).freed == 4


def _leaf(state: State, **changes: Any) -> State:
    leaf = max(state.nodes)
    return replace(state, nodes=state.nodes.set(leaf, state.nodes[leaf]._replace(**changes)))


def _totals(state: State, **changes: int) -> State:
    return replace(state, totals=state.totals._replace(**changes))


CORRUPTIONS: Final[dict[str, tuple[str, Callable[[State], State]]]] = {
    "lock count too high": ("lock-balance", lambda s: _leaf(s, locks=1)),
    "device counter off by one": ("accounting", lambda s: _totals(s, device=s.totals.device - 1)),
    "lock counter off by one": ("accounting", lambda s: _totals(s, locked=1)),
    "LRU entry missing": ("victim-order", lambda s: replace(s, victims=TickMap())),
    "LRU entry too many": (
        "victim-order",
        lambda s: replace(s, victims=s.victims.insert(99, NodeId(0))),
    ),
    "block in two nodes": ("well-formed", lambda s: _leaf(s, start=1)),
    "KV lost behind a hole": ("no-dangling-hole", lambda s: _leaf(s, residency=Residency.HOLE)),
}
"""Each: the invariant that must name it, and how to do it to a good state."""


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_case_23_the_audit_names_what_is_wrong(corruption: str) -> None:
    s = Scene()
    s.insert("abcd")
    s.insert("abxy")
    assert check_state(s.state) == []
    invariant, corrupt = CORRUPTIONS[corruption]
    assert invariant in {v.invariant for v in check_state(corrupt(s.state))}


def test_case_23_the_audit_sees_a_slot_with_two_owners() -> None:
    s = Scene()
    s.insert("abcd")
    s.insert("uv")
    a, b = sorted(n.id for n in s.state.nodes.values() if not n.is_root)
    good = {a: [1, 2, 3, 4], b: [5, 6]}
    assert check_slots(s.state, good, free=[7]) == []
    for broken in (
        check_slots(s.state, {a: [1, 2, 3, 4], b: [4, 6]}, free=[7]),
        check_slots(s.state, good, free=[6, 7]),
        check_slots(s.state, good, held=[1]),
        check_slots(s.state, {a: [1, 2, 3], b: [5, 6]}),
    ):
        assert {v.invariant for v in broken} == {"one-copy"}


def test_case_46_a_plan_on_another_state_is_refused_and_a_new_one_tells_the_hole() -> None:
    s = Scene(block=2)
    s.insert("abcdef")
    stale = s.plan("abcdefgh")
    s.evict(2)
    with pytest.raises(StalePlan):
        s.admit(stale)
    planned = s.plan("abcdefgh")
    assert (planned.match.device_prefix, planned.holes) == (0, ((0, 2),))
    s.admit(planned)
