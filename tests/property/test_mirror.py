"""An engine that owns its allocator: the mirror frees and brings what it says, no more."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

from penelope.policy import (
    POLICIES,
    Config,
    Effect,
    InFlight,
    InsufficientSpace,
    InUse,
    InvalidAmount,
    Key,
    Namespace,
    Plan,
    Receipt,
    Residency,
    StalePlan,
    State,
    admit,
    checkpoint,
    empty,
    evict,
    insert,
    match,
    named_policy,
    pack,
    plan_matched,
    refill,
)
from penelope.runtime.exchange import Carried
from penelope.runtime.mirror import Mirror
from penelope.runtime.store import StoreError
from penelope.runtime.symbolic import Job, SymbolicStore, prefill
from penelope_spec import check_state, check_step

DEVICE, HOST = Residency.DEVICE, Residency.HOST
SPACE = Namespace()


class EngineStore:
    """The memory of an engine, whose KV is checked, and whose copies may fail."""

    def __init__(self, config: Config) -> None:
        self.store = SymbolicStore(config.device_capacity, config.host_capacity)
        self._capacity = config.device_capacity
        self.failing_in = 0

    def available(self) -> int:
        return self._capacity - self.store.allocated

    def allocate(self, units: int, tier: Residency) -> list[int]:
        return self.store.allocate(units, tier)

    def free(self, slots: list[int], tier: Residency) -> None:
        self.store.free(*((slots,) if tier is DEVICE else ((), slots)))

    def copy(self, source: list[int], target: list[int], tier: Residency) -> None:
        self.failing_in -= 1
        if self.failing_in == 0:
            raise StoreError("the copy engine is out of order")
        self.store.copy(source, target, tier)


class Serving:
    """Requests, served one after another or held on to, as SGLang's scheduler would."""

    def __init__(self, config: Config) -> None:
        self.memory = EngineStore(config)
        self.moved = self.failed = 0
        self.mirror: Mirror[list[int]] = Mirror(
            config, self.memory, lambda pieces: [*chain(*pieces)], self
        )
        self.running: list[tuple[Receipt, list[int]]] = []

    # Watcher

    def followed(self, before: State, after: State, effects: tuple[Effect, ...]) -> None:
        assert check_state(after) == []

    def carried(self, done: Carried) -> None:
        self.moved += done.transfer.length

    def not_carried(self, error: StoreError) -> None:
        self.failed += 1

    # An engine's life

    def serve(self, tokens: Sequence[int], *, ends: bool) -> bool:
        """Whether there was room for it."""
        mirror, key = self.mirror, pack(tokens)
        page = mirror.state.config.page_size
        aligned = len(tokens) // page * page
        if not aligned:
            return True
        found = match(mirror.state, key, SPACE, at_most=aligned)
        lock = mirror.lock(found)
        found = match(mirror.state, key, SPACE, at_most=aligned)
        need = found.hole + aligned - found.end
        idle = mirror.state.totals.device - mirror.state.totals.locked
        if need + found.host > self.memory.available() + idle:
            mirror.release(lock)
            return False
        if found.host and not mirror.bring(found):
            mirror.release(lock)
            return True
        found = mirror.find(key, SPACE, found.end)
        assert (found.host, found.reusable + found.hole) == (0, found.end)
        refills = mirror.undertake(found)
        mirror.release(lock)
        if (short := need - self.memory.available()) > 0:
            self.make_room(short)
        self.compute(key, found.holes, found.end, refills, aligned)
        if ends:
            mirror.release(refills)
        else:
            # What it computes next is the engine's own.
            own = self.memory.available() // page // 2 * page
            self.running.append((refills, self.memory.allocate(own, DEVICE)))
        return True

    def make_room(self, units: int) -> None:
        mirror, free = self.mirror, self.memory.available()
        before, failed = mirror.state, self.failed
        dropped = mirror.make_room(units)
        assert self.memory.available() >= free + units
        assert not mirror.state.moves
        if not before.config.host_capacity:
            assert dropped == evict(before, units).freed
        elif failed == self.failed and named_policy("penelope") == (
            before.config.position,
            before.config.granularity,
        ):
            # No more goes than both tiers together cannot keep.
            held = before.config.device_capacity - free - before.totals.device
            over = before.logical_used + held + free + units - before.config.logical_capacity
            assert max(0, over) <= dropped < max(0, over) + before.config.block_size

    def compute(
        self, key: Key, holes: tuple[tuple[int, int], ...], matched: int, receipt: Receipt, end: int
    ) -> None:
        mirror = self.mirror
        fresh = {
            span: self.memory.allocate(span[1] - span[0], DEVICE)
            for span in (*holes, (matched, end))
        }
        table: list[int] = []
        # Found again: nodes were split and merged since, the path was not.
        for span in mirror.find(key, SPACE, matched).spans:
            if span.residency is DEVICE:
                table += mirror.slots.part(span.node, span.start, span.end)
            else:
                low = next(start for start, stop in holes if start <= span.start < stop)
                mine = next(slots for hole, slots in fresh.items() if hole[0] == low)
                table += mine[span.start - low : span.end - low]
        table += fresh[matched, end]
        jobs = [Job(key, table, start, stop) for start, stop in (*holes, (matched, end))]
        self.memory.store.step(jobs)
        for start, stop in holes:
            slots = fresh[start, stop]
            filled = refill(mirror.state, receipt, start, stop)
            offered = slots, start
            surplus = mirror.apply(filled.state, filled.effects, _offer(*offered))
            assert surplus == []
        whole = Key(key[: end * mirror.state.config.unit_bytes])
        done = checkpoint(mirror.state, receipt, whole)
        assert mirror.apply(done.state, done.effects, _offer(table, 0)) == []

    def end_one(self, which: int) -> None:
        if self.running:
            receipt, own = self.running.pop(which % len(self.running))
            self.memory.free(own, DEVICE)
            self.mirror.release(receipt)

    def audit(self) -> None:
        """Every slot of the tree holds its history's KV; every other is free or a request's."""
        mirror, store = self.mirror, self.memory.store
        for tier in (DEVICE, HOST):
            slots = []
            for node_id, start, own in mirror.slots.items(tier):
                node = mirror.state.nodes[node_id]
                store.check(own, prefill(node.key)[start : node.end], "lies", tier)
                slots += own
            if tier is DEVICE:
                slots += chain(*(own for _, own in self.running))
            assert sorted(slots) == sorted(store.held(tier))
        assert mirror.state.totals.reserved == 0


def _offer(slots: list[int], start: int):  # type: ignore[no-untyped-def]
    return lambda low, high: slots[low - start : high - start]


@st.composite
def configs(draw: st.DrawFn) -> Config:
    page = draw(st.integers(1, 3))
    block = draw(st.integers(1, 3))
    host, swap = draw(st.sampled_from([(0, 0), (0, 0), (4, block), (12, block), (24, 2 * block)]))
    name = draw(st.sampled_from(["penelope"] * 3 + ["tail-block"] + ([] if host else [*POLICIES])))
    position, granularity = named_policy(name)
    return Config(
        page * draw(st.integers(8, 24)),
        page,
        page * block,
        position,
        granularity,
        host_capacity=page * (host + swap),
        swap_buffer=page * swap,
    )


HISTORIES = st.lists(st.integers(0, 1), min_size=1, max_size=30)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("serve"), HISTORIES, st.booleans()),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("room"), st.integers(1, 20)),
        st.tuples(st.just("fail"), st.integers(1, 6)),
        st.tuples(st.just("all")),
    ),
    min_size=4,
    max_size=40,
)


@given(configs(), ACTS)
@example(
    Config(8, 1, 1),
    [
        ("serve", [0], True),
        ("serve", [0, 0], False),
        ("serve", [0], True),
        ("serve", [0, 0], False),
    ],
)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_an_engine_is_served_from_memory_that_it_owns(config: Config, acts: list) -> None:  # type: ignore[type-arg]
    engine = Serving(config)
    for act, *given_ in acts:
        if act == "serve":
            engine.serve(given_[0], ends=given_[1])
        elif act == "end":
            engine.end_one(given_[0])
        elif act == "room":
            totals = engine.mirror.state.totals
            units = min(given_[0], totals.device - totals.locked)
            units = units // config.page_size * config.page_size
            if units:
                engine.make_room(units)
        elif act == "fail":
            engine.memory.failing_in = given_[0]
        else:
            engine.mirror.drop_all()
            assert engine.mirror.state.evictable == 0
        engine.audit()
    while engine.running:
        engine.end_one(0)
    engine.mirror.drop_all()
    assert engine.memory.store.allocated == 0
    assert engine.memory.store.held(HOST) == {}


def test_copies_happen_and_fail() -> None:
    """The property above is about something."""
    config = Config(16, 1, 2, host_capacity=18, swap_buffer=2)
    engine = Serving(config)
    for first in range(6):
        assert engine.serve([first] * 8, ends=True)
    assert engine.moved > 0
    assert engine.mirror.state.totals.host == 16
    engine.memory.failing_in = 1
    engine.serve([4] * 8 + [1], ends=True)
    assert engine.failed == 1
    engine.audit()


def test_forgetting_is_refused_while_a_path_is_locked() -> None:
    engine = Serving(Config(16))
    engine.serve([1, 2, 3], ends=False)
    with pytest.raises(InUse):
        engine.mirror.forget(Config(8))
    engine.end_one(0)
    engine.mirror.forget(Config(8))
    assert engine.mirror.state == empty(Config(8))
    assert list(engine.mirror.slots.items()) == []


# Plans for an engine that owns its allocator


def test_such_a_plan_reserves_what_is_held_and_promises_the_rest() -> None:
    config = Config(8, 1, 2, host_capacity=6, swap_buffer=2)
    state = insert(empty(config), pack([1, 2, 3, 4])).state
    nothing = match(state, pack([]))
    planned = plan_matched(nothing, units=4, held=3)
    assert (planned.allocate, planned.shortfall, planned.evict, planned.holes) == (4, 3, 0, ())
    done = admit(state, planned)
    lease = done.state.lease(done.receipt)
    assert (lease.reserved, lease.due, done.pending) == (3, 4, True)
    assert check_step(state, done.state, "admit", plan=planned, effects=done.effects, freed=0) == []


def test_what_is_held_cannot_be_more_than_is_free() -> None:
    state = insert(empty(Config(8, 1, 2)), pack([1, 2, 3, 4])).state
    planned = plan_matched(match(state, pack([])), held=5)
    assert not planned.admissible
    with pytest.raises(InsufficientSpace):
        admit(state, planned)


def test_what_a_plan_says_follows_from_its_match() -> None:
    """Nobody can write a plan that promises more than its state has."""
    state = insert(empty(Config(8, 1, 2)), pack([1, 2, 3, 4])).state
    nothing = match(state, pack([]))
    with pytest.raises(InvalidAmount):
        plan_matched(nothing, units=-1)
    with pytest.raises(InvalidAmount):
        admit(state, Plan(nothing, -1))
    with pytest.raises(StalePlan):
        plan_matched(planned := plan_matched(nothing))  # type: ignore[arg-type]
    assert Plan._fields == ("match", "compute", "held")
    assert admit(state, planned).freed == 0
    with pytest.raises(InsufficientSpace):
        admit(state, Plan(nothing, 9))


def test_a_match_that_leaves_is_not_planned_around() -> None:
    from penelope.policy import begin_move, next_demotion

    config = Config(8, 1, 2, host_capacity=4, swap_buffer=2)
    state = insert(empty(config), pack([1, 2, 3, 4])).state
    transfer = next_demotion(state, 2)
    assert transfer is not None
    state = begin_move(state, transfer).state
    with pytest.raises(InFlight):
        admit(state, plan_matched(match(state, pack([1, 2, 3, 4, 5]))))
