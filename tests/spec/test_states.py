"""Every state invariant is silent on good states, and names itself on a corrupted one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from penelope.policy import (
    Config,
    Granularity,
    Lease,
    Namespace,
    NodeId,
    ReceiptId,
    Residency,
    State,
    admit,
    empty,
    evict,
    insert,
    match,
    pack,
    plan,
    touch,
)
from penelope_spec import check_slots, check_state

SHARED = list(range(8))
FIRST, SECOND, OTHER = SHARED + [10] * 8, SHARED + [20] * 8, [5] * 6
ELSEWHERE = Namespace("other")


def good() -> State:
    """Two histories that share a prefix, one of them running, and one in another namespace.

    root ── [0, 8) ┬─ [8, 12) hole, in flight ── [12, 16)     locked, but for
                   └─ [8, 16)                                 this one: a victim
    root ── [0, 4) hole ── [4, 6)                             a victim
    """
    state = empty(Config(device_capacity=40, page_size=1, block_size=2))
    state = insert(state, pack(FIRST)).state
    state = insert(state, pack(SECOND)).state
    state = evict(state, 4).state
    state = admit(state, plan(state, pack([*FIRST, 1, 2]))).state
    state = insert(state, pack(OTHER), ELSEWHERE).state
    state = touch(state, match(state, pack(SECOND), at_most=16)).state
    return evict(state, 4).state


def find(state: State, start: int, end: int, history: list[int]) -> NodeId:
    """The node of that span on that history."""
    (found,) = [
        node.id
        for node in state.nodes.values()
        if (node.start, node.end) == (start, end)
        and pack(history)[: end * 4] == node.key[: end * 4]
    ]
    return found


def changed(state: State, node_id: NodeId, **fields: Any) -> State:
    node = state.nodes[node_id]._replace(**fields)
    return replace(state, nodes=state.nodes.set(node_id, node))


def counted(state: State, **fields: int) -> State:
    totals = state.totals
    return replace(
        state,
        totals=totals._replace(**{name: getattr(totals, name) + n for name, n in fields.items()}),
    )


def names(state: State) -> set[str]:
    return {violation.invariant for violation in check_state(state)}


# Corruptions: the invariant that they break, and only that one


def span_not_whole_pages(state: State) -> State:
    state = replace(state, config=replace(state.config, page_size=2, block_size=2))
    return counted(changed(state, find(state, 4, 6, OTHER), end=7), device=1)


def parent_lost(state: State) -> State:
    return changed(state, find(state, 8, 16, SECOND), parent=NodeId(99))


def another_history_below(state: State) -> State:
    return changed(state, find(state, 4, 6, OTHER), key=pack([6] * 4 + [5] * 2))


def own_parent(state: State) -> State:
    node = find(state, 8, 16, SECOND)
    return changed(state, node, parent=node)


def child_in_two_places(state: State) -> State:
    shared = find(state, 0, 8, FIRST)
    children = state.nodes[shared].children.set(pack([30]), find(state, 8, 16, SECOND))
    return changed(state, shared, children=children)


def two_owners_of_a_page(state: State) -> State:
    """The second history is a copy of the first, beside it."""
    return changed(state, find(state, 8, 16, SECOND), key=pack(FIRST))


def filed_where_no_match_finds_it(state: State) -> State:
    shared = find(state, 0, 8, FIRST)
    children = state.nodes[shared].children
    moved = find(state, 8, 16, SECOND)
    return changed(state, shared, children=children.delete(pack([20])).set(pack([21]), moved))


def counter_off_by_one(state: State) -> State:
    return counted(state, device=1)


def host_counter_off(state: State) -> State:
    return counted(state, host=1)


def more_than_fits(state: State) -> State:
    return replace(state, config=replace(state.config, device_capacity=20))


def lock_count_plus_one(state: State) -> State:
    node = find(state, 12, 16, FIRST)
    return changed(state, node, locks=state.nodes[node].locks + 1)


def lock_not_copied_at_split(state: State) -> State:
    node = find(state, 8, 12, FIRST)
    return changed(state, node, locks=0, filler=None)


def receipt_of_a_node_that_is_gone(state: State) -> State:
    issued = ReceiptId(state.next_receipt)
    leases = state.leases.set(issued, Lease(NodeId(99), 0))
    return replace(state, leases=leases, next_receipt=issued + 1)


def refilled_by_nobody(state: State) -> State:
    return changed(state, find(state, 8, 12, FIRST), filler=ReceiptId(77))


def in_flight_and_resident(state: State) -> State:
    receipt = state.nodes[find(state, 8, 12, FIRST)].filler
    return changed(state, find(state, 12, 16, FIRST), filler=receipt)


def refilled_off_the_path(state: State) -> State:
    receipt = state.nodes[find(state, 8, 12, FIRST)].filler
    return changed(state, find(state, 0, 4, OTHER), filler=receipt)


def hole_ends_a_history(state: State) -> State:
    node = find(state, 8, 16, SECOND)
    return counted(changed(state, node, residency=Residency.HOLE), device=-8, hole=8)


def order_entry_missing(state: State) -> State:
    stamp = state.nodes[find(state, 8, 16, SECOND)].stamp
    return replace(state, victims=state.victims.remove(stamp))


def order_entry_stale(state: State) -> State:
    node = find(state, 8, 16, SECOND)
    stamp = state.nodes[node].stamp
    return replace(state, victims=state.victims.remove(stamp).insert(stamp + 1, node))


def order_offers_a_locked_leaf(state: State) -> State:
    node = find(state, 12, 16, FIRST)
    return replace(state, victims=state.victims.insert(state.nodes[node].stamp, node))


def victims_with_one_stamp(state: State) -> State:
    stamp = state.nodes[find(state, 8, 16, SECOND)].stamp
    node = find(state, 4, 6, OTHER)
    victims = state.victims.remove(state.nodes[node].stamp)
    return replace(changed(state, node, stamp=stamp), victims=victims)


def split_never_merged(state: State) -> State:
    """[8, 16) of the second history in two halves that differ in nothing."""
    whole = state.nodes[find(state, 8, 16, SECOND)]
    upper = NodeId(state.next_node)
    shared = state.nodes[find(state, 0, 8, FIRST)]
    state = replace(state, next_node=upper + 1)
    lower = whole._replace(start=12, parent=upper)
    halves = whole._replace(id=upper, end=12, children=whole.children.set(pack([20]), whole.id))
    state = replace(state, nodes=state.nodes.set(upper, halves).set(whole.id, lower))
    return changed(state, shared.id, children=shared.children.set(pack([20]), upper))


CORRUPTIONS: dict[Callable[[State], State], set[str]] = {
    parent_lost: {"well-formed"},
    another_history_below: {"well-formed"},
    own_parent: {"well-formed"},
    child_in_two_places: {"one-copy"},
    two_owners_of_a_page: {"one-copy"},
    filed_where_no_match_finds_it: {"one-copy"},
    counter_off_by_one: {"accounting"},
    host_counter_off: {"accounting"},
    more_than_fits: {"accounting"},
    lock_count_plus_one: {"lock-balance"},
    lock_not_copied_at_split: {"lock-balance"},
    receipt_of_a_node_that_is_gone: {"lock-balance"},
    refilled_by_nobody: {"in-flight"},
    in_flight_and_resident: {"in-flight"},
    refilled_off_the_path: {"in-flight"},
    hole_ends_a_history: {"no-dangling-hole"},
    order_entry_missing: {"victim-order"},
    order_entry_stale: {"victim-order"},
    order_offers_a_locked_leaf: {"victim-order"},
    victims_with_one_stamp: {"victim-order"},
    split_never_merged: {"merged"},
}


def test_a_good_state_has_no_violation() -> None:
    assert check_state(good()) == []


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda corrupt: corrupt.__name__)
def test_a_corrupted_state_is_named(corrupt: Callable[[State], State]) -> None:
    corrupted = corrupt(good())
    assert names(corrupted) == CORRUPTIONS[corrupt], check_state(corrupted)


def test_violations_name_nodes_and_numbers() -> None:
    state = good()
    (violation,) = check_state(lock_count_plus_one(state))
    node = find(state, 12, 16, FIRST)
    assert str(violation) == (
        f"lock-balance: node {node} [12, 16) has 2 locks, 1 receipts or moves end in or below it"
    )


@pytest.mark.timeout(60)
def test_a_cycle_ends_the_check() -> None:
    """A node that is its own child is reported, not walked for ever."""
    state = good()
    node = find(state, 8, 16, SECOND)
    looped = changed(
        state, node, parent=node, children=state.nodes[node].children.set(pack([20]), node)
    )
    assert "well-formed" in names(looped)


def test_pages_must_be_whole() -> None:
    assert "well-formed" in names(span_not_whole_pages(good()))


def test_a_long_chain_is_checked_without_recursion() -> None:
    """Node-granular policies keep every boundary: 1,100 nodes below one another."""
    state = empty(Config(2_000, 1, 1, granularity=Granularity.NODE))
    units: list[int] = []
    for _ in range(1_100):
        units += [1]
        state = insert(state, pack(units)).state
    assert len(state.nodes) == 1_101
    assert check_state(state) == []


# Slots: one-copy where it is about memory


def slots_of(state: State) -> dict[NodeId, list[int]]:
    owned: dict[NodeId, list[int]] = {}
    fresh = iter(range(1000))
    for node in state.nodes.values():
        if node.residency is Residency.DEVICE:
            owned[node.id] = [next(fresh) for _ in range(node.length)]
    return owned


def test_each_slot_has_one_owner() -> None:
    state = good()
    owned = slots_of(state)
    assert check_slots(state, owned, free=[2000], held=[2001]) == []
    node, other = find(state, 12, 16, FIRST), find(state, 8, 16, SECOND)

    def told(device: dict[NodeId, list[int]], **more: Any) -> str:
        found = check_slots(state, device, **more)
        assert {violation.invariant for violation in found} == {"one-copy"}
        return "; ".join(violation.text for violation in found)

    twice = {**owned, node: owned[other][:4]}
    assert f"belongs to node {node}" in told(twice) or f"and to node {other}" in told(twice)
    assert f"belongs to node {node} and to free" in told(owned, free=owned[node][:1])
    assert "held by a request" in told(owned, held=owned[node][:1])
    assert "owns 4 host slots, 0 are due" in told(owned, host={node: [0, 1, 2, 3]})
    assert "owns 3 device slots, 4 are due" in told({**owned, node: owned[node][:3]})
    assert "does not exist" in told({**owned, NodeId(99): [3000]})
