"""Histories of 100,000 nodes: no recursion over depth, and work in proportion to the chain.

The states are built directly, as one history grown by one node a turn would leave them; all nodes
view one key.  There are no timing assertions: what is quadratic in the depth would take hours, and
the time limit is a minute or two.
"""

from __future__ import annotations

import copy
import pickle
from typing import Final

import pytest
from immutables import Map

from penelope.policy import (
    DEFAULT_NAMESPACE,
    POLICIES,
    Config,
    Free,
    NodeId,
    Residency,
    State,
    Totals,
    acquire,
    admit,
    checkpoint,
    evict,
    insert,
    match,
    pack,
    plan,
    refill,
    release,
    reset,
    touch,
)
from penelope.policy.state import Node
from penelope.policy.ticks import TickMap

DEPTH: Final = 100_000
KEY: Final = pack(range(DEPTH))
LONGER: Final = pack(range(DEPTH + 2))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def chain(policy: str, *, holes: bool = False) -> State:
    """A history of one-unit nodes, each used once; with `holes` every second one has no KV."""
    position, granularity = POLICIES[policy]
    config = Config(DEPTH + 10, 1, 1, position, granularity)
    nodes = {}
    for i in range(DEPTH + 1):
        last = i == DEPTH
        residency = Residency.HOLE if i == 0 or (holes and i % 2 == 1) else Residency.DEVICE
        nodes[NodeId(i)] = Node(
            NodeId(i),
            NodeId(i - 1) if i else None,
            DEFAULT_NAMESPACE,
            max(0, i - 1),
            i,
            KEY,
            residency,
            0,
            i,
            Map() if last else Map({KEY[4 * i : 4 * i + 4]: NodeId(i + 1)}),
        )
    hole = DEPTH // 2 if holes else 0
    return State(
        config,
        Map(nodes),
        Map({DEFAULT_NAMESPACE: NodeId(0)}),
        Map(),
        TickMap[NodeId]().insert(DEPTH, NodeId(DEPTH)),
        Totals(device=DEPTH - hole, hole=hole),
        tick=DEPTH,
        next_node=DEPTH + 1,
    )


@pytest.mark.parametrize(
    "policy", ["sglang-lru", "leaf-head-block", "private-head-node", "penelope"]
)
def test_a_deep_history_is_matched_grown_locked_and_evicted(policy: str) -> None:
    state = chain(policy)
    found = match(state, LONGER)
    assert (found.end, found.device_prefix, len(found.spans)) == (DEPTH, DEPTH, DEPTH)
    grown = insert(touch(state, found).state, LONGER)
    assert (grown.adopted, grown.resident) == (2, DEPTH)
    locked = acquire(grown.state, match(grown.state, LONGER, at_most=DEPTH))
    # The two units behind the lock are all that may go.
    assert (locked.state.evictable, locked.state.protected) == (2, DEPTH)
    few = evict(locked.state, 1).state
    assert few.totals.device >= DEPTH
    free = release(few, locked.receipt).state
    assert free.evictable == free.totals.device
    half = evict(free, DEPTH // 2)
    assert half.freed >= DEPTH // 2
    everything = evict(half.state, half.state.evictable).state
    assert everything.totals.device == 0
    assert not everything.nodes
    assert reset(state).state.nodes == Map()


@pytest.mark.parametrize("policy", ["penelope", "private-head-node"])
def test_the_holes_of_a_deep_history_are_refilled(policy: str) -> None:
    state = chain(policy, holes=True)
    planned = plan(state, LONGER)
    assert planned.holes == tuple((i, i + 1) for i in range(0, DEPTH, 2))
    assert (planned.match.device, planned.match.hole) == (DEPTH // 2, DEPTH // 2)
    running = admit(state, planned)
    filled = refill(running.state, running.receipt, 0, DEPTH)
    assert (filled.adopted, filled.resident) == (DEPTH // 2, DEPTH // 2)
    done = checkpoint(filled.state, running.receipt, LONGER)
    assert done.adopted == 2
    over = release(done.state, running.receipt).state
    assert over.totals == Totals(device=DEPTH + 2)
    # The first half again becomes one hole, in position order.
    lost = [e for e in evict(over, DEPTH // 2).effects if isinstance(e, Free)]
    assert [e.start for e in lost] == sorted(e.start for e in lost)
    assert lost[0].start == 0


def test_draining_a_deep_private_span_leaves_nothing_behind() -> None:
    state = chain("penelope", holes=True)
    drained = evict(state, DEPTH // 2)
    assert drained.freed == DEPTH // 2
    assert not drained.state.nodes
    assert drained.state.totals == Totals()


def test_a_deep_state_is_a_value() -> None:
    state = chain("private-head-node")
    other = pickle.loads(pickle.dumps(state))
    assert other == state
    assert hash(other) == hash(state)
    assert copy.copy(state) == state
    assert evict(state, 1).state != state
    assert len(repr(state)) < 200
    assert repr(other) == repr(state)
    # A state that came from another process is another state to a plan made on this one, and
    # decides alike.
    assert evict(other, 10).effects == evict(state, 10).effects
