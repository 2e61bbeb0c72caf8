"""Faults from the field, about scale and determinism.

Work is counted, not timed: a node map that notes each read tells what an operation looked at.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest
from immutables import Map

from penelope.policy import (
    Config,
    Evicted,
    Free,
    InsufficientSpace,
    Key,
    Node,
    NodeId,
    Receipt,
    State,
    acquire,
    empty,
    evict,
    insert,
    match,
    named_policy,
    pack,
    release,
)
from tests.cases.scene import Scene

HEAD: Final = named_policy("penelope")


def crowd(histories: int, length: int = 1) -> State:
    """So many histories that share nothing."""
    state = empty(Config(histories * length + 10, 1, 1, *HEAD))
    for i in range(histories):
        state = insert(state, pack(range(i * length, (i + 1) * length))).state
    return state


class Reads:
    """A stand-in for a state's node map that counts the nodes that are looked at."""

    def __init__(self, nodes: Map[NodeId, Node]) -> None:
        self.nodes = nodes
        self.read: set[NodeId] = set()

    def mutate(self) -> _Mutation:
        return _Mutation(self)

    def __getitem__(self, node: NodeId) -> Node:
        self.read.add(node)
        return self.nodes[node]


class _Mutation:
    def __init__(self, owner: Reads) -> None:
        self.owner, self.inner = owner, owner.nodes.mutate()

    def __getitem__(self, node: NodeId) -> Node:
        self.owner.read.add(node)
        return self.inner[node]

    def get(self, node: NodeId) -> Node | None:
        self.owner.read.add(node)
        return self.inner.get(node)

    def __setitem__(self, node: NodeId, value: Node) -> None:
        self.inner[node] = value

    def __delitem__(self, node: NodeId) -> None:
        del self.inner[node]

    def __contains__(self, node: NodeId) -> bool:
        return node in self.inner

    def __iter__(self) -> Iterator[NodeId]:
        raise AssertionError("nothing on the serving path may scan all nodes")

    def finish(self) -> Map[NodeId, Node]:
        return self.inner.finish()


def counted(state: State) -> tuple[State, Reads]:
    reads = Reads(state.nodes)
    return replace(state, nodes=reads), reads  # type: ignore[arg-type]


def lost(done: Evicted) -> list[NodeId]:
    return [e.node for e in done.effects if isinstance(e, Free)]


@pytest.mark.parametrize("histories", [500, 5_000])
def test_case_65_an_eviction_looks_at_what_it_evicts_and_not_at_all_leaves(histories: int) -> None:
    watched, reads = counted(crowd(histories))
    done = evict(watched, 3)
    assert done.freed == 3
    # The three leaves, the root above them, and nobody else.
    assert len(reads.read) == 4


@pytest.mark.slow
def test_case_65_a_full_cache_of_many_histories_turns_over_in_lru_order() -> None:
    state = crowd(20_000)
    for i in range(1_000):
        done = evict(state, 1)
        (first,) = lost(done)
        assert state.nodes[first].key == pack([i])
        state = insert(done.state, pack([1_000_000 + i])).state
    assert state.totals.device == 20_000


def test_case_67_with_everything_locked_a_refusal_looks_at_no_node() -> None:
    state = crowd(2_000)
    receipts: list[Receipt] = []
    for i in range(2_000):
        done = acquire(state, match(state, pack([i]), at_most=1))
        receipts.append(done.receipt)
        state = done.state
    watched, reads = counted(state)
    with pytest.raises(InsufficientSpace, match="0 are evictable and 2000 are in use"):
        evict(watched, 1)
    assert reads.read == set()
    # One unlocked history at the end of the order is found without walking past the locked ones.
    watched, reads = counted(release(state, receipts[-1]).state)
    assert evict(watched, 1).freed == 1
    assert len(reads.read) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["penelope", "sglang-lru"])
def test_case_68_a_history_grown_by_a_block_a_turn_for_twenty_thousand_turns(name: str) -> None:
    turns = 20_000 if name == "penelope" else 500
    state = empty(Config(turns * 2, 1, 1, *named_policy(name)))
    whole = pack(range(turns))
    done = acquire(state, match(state, pack([])))
    state = done.state
    for turn in range(1, turns + 1):
        watched, reads = counted(state)
        state = insert(watched, Key(whole[: 4 * turn])).state
        if name == "penelope":
            # Neighbours merge again: what a turn touches does not grow with the turns before it.
            assert len(reads.read) <= 6
    assert match(state, whole, at_most=turns).device_prefix == turns
    state = release(state, done.receipt).state
    assert len(state.nodes) == (2 if name == "penelope" else turns + 1)
    assert evict(state, turns // 2).freed == turns // 2


def test_case_68_a_deep_tree_can_be_shown_compared_copied_hashed_and_pickled() -> None:
    state = empty(Config(3_000, 1, 1, *named_policy("sglang-lru")))
    whole = pack(range(3_000))
    for turn in range(1, 1_501):  # node by node: this policy keeps every boundary
        state = insert(state, Key(whole[: 8 * turn])).state
    assert len(state.nodes) == 1_501
    again = pickle.loads(pickle.dumps(state))
    for other in (again, copy.copy(state), copy.deepcopy(state)):
        assert other == state
        assert hash(other) == hash(state)
    assert repr(state).startswith("<State tick 1500: 1501 nodes")
    assert evict(again, 1).effects == evict(state, 1).effects
    assert again != evict(state, 1).state


def test_case_65_one_long_history_loses_its_head_without_a_walk_along_it() -> None:
    state = empty(Config(50_010, 1, 1, *HEAD))
    state = insert(state, pack(range(50_000))).state
    for _ in range(3):
        watched, reads = counted(state)
        state = evict(watched, 1).state
        assert len(reads.read) <= 4
    assert (state.totals.device, state.totals.hole) == (49_997, 3)


def test_case_62_with_two_tiers_only_the_agreed_completions_count() -> None:
    """Copies may take longer on one rank: what each is told in a step is what all agreed on."""
    scenes = [Scene(block=1, capacity=8, keeps=6, swap=2) for _ in range(2)]
    answers: list[list[object]] = [[], []]
    for s, said in zip(scenes, answers, strict=True):
        for history in ("abcd", "efgh", "ijkl", "abcdm", "efghn"):
            done = s.admit(s.plan(history))
            said += [done.effects, done.receipt, done.pending]
            while (transfer := s.next(done.receipt)) is not None:
                said += [transfer, s.arrive(s.depart(transfer)).effects]
            s.carry_out(done.receipt)
            said.append(s.checkpoint(done.receipt, history).effects)
            said.append(s.release(done.receipt).effects)
    assert answers[0] == answers[1]
    assert scenes[0].state == scenes[1].state
    assert scenes[0].state.totals.host > 0


def test_case_62_the_same_operations_give_the_same_plans_in_another_instance() -> None:
    """Across processes and hash seeds this is tests/property/test_determinism.py."""
    scenes = [Scene(block=2, capacity=12) for _ in range(2)]
    answers: list[list[object]] = [[], []]
    for s, said in zip(scenes, answers, strict=True):
        for i, history in enumerate(("abcdef", "abcxyz", "abcdefgh", "uv", "abcxyzw")):
            planned = s.plan(history)
            said += [planned.holes, planned.allocate, planned.evict, planned.available]
            done = s.admit(planned)
            said += [done.effects, done.receipt]
            for start, end in planned.holes:
                said.append(s.refill(done.receipt, start, end).effects)
            said.append(s.checkpoint(done.receipt, history).effects)
            if i % 3:
                said.append(s.release(done.receipt).effects)
    assert answers[0] == answers[1]
    assert scenes[0].state == scenes[1].state
