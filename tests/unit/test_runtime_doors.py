"""What enters a cache is checked at the door: lengths, owners, debris, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import pytest

from penelope import policy
from penelope.policy import (
    Adopt,
    Config,
    InsufficientSpace,
    InvalidKey,
    NodeId,
    NotBeingRefilled,
    PenelopeError,
    Receipt,
    RequestTooLarge,
    Residency,
    StalePlan,
    UnknownReceipt,
    pack,
)
from penelope.runtime.cache import Cache, ConcurrentUse, Request
from penelope.runtime.slots import SlotTable
from penelope.runtime.store import StoreError
from penelope.runtime.symbolic import Job, SymbolicStore
from tests.unit.serving import CAPACITY, FailingStore, audit, cached, compute, serve

DEVICE, HOST = Residency.DEVICE, Residency.HOST


@pytest.fixture
def store() -> FailingStore:
    return FailingStore(CAPACITY)


@pytest.fixture
def cache(store: FailingStore) -> Cache:
    return Cache(Config(CAPACITY, block_size=2), store)


# --- lengths --------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1, 2])
def test_a_key_that_is_longer_than_its_kv_is_not_taken(page: int, store: FailingStore) -> None:
    """The natural slip: the token that was sampled last has no KV yet."""
    cache = Cache(Config(CAPACITY, page, page), store)
    request = cache.admit(cache.plan(pack([1, 2, 3, 4])))
    compute(cache, store, [1, 2, 3, 4], request)
    before = cache.state
    with pytest.raises(StoreError, match=r"^5 units are offered and the request has 4 slots bey"):
        cache.checkpoint(request, pack([1, 2, 3, 4, 5]))
    assert cache.state is before
    audit(cache, store, request)
    assert cache.checkpoint(request, pack([1, 2, 3, 4])).adopted == 4
    cache.release(request)
    reader = cache.admit(cache.plan(pack([1, 2, 3, 4, 5, 6, 7])))
    assert len(cache.table(reader)) == 7 + (page == 2)


def test_nor_one_whose_end_is_computed_beside_another_request(
    cache: Cache, store: FailingStore
) -> None:
    """The tree has the sampled token already, from another request: still not this one's."""
    one, other = (cache.admit(cache.plan(pack([1, 2, 3]))) for _ in range(2))
    compute(cache, store, [1, 2, 3], one)
    compute(cache, store, [1, 2, 3], other)
    cache.grow(one, 1)
    compute(cache, store, [1, 2, 3, 4], one)
    cache.checkpoint(one, pack([1, 2, 3, 4]))
    with pytest.raises(StoreError, match="4 units are offered and the request has 3 slots"):
        cache.checkpoint(other, pack([1, 2, 3, 4]))
    audit(cache, store, one, other)


@pytest.mark.parametrize("count", [3, 5])
def test_the_slot_table_takes_one_slot_for_each_unit(count: int) -> None:
    """The one place where slots are adopted, whoever offers them: the engine's shell as well."""
    table: SlotTable[list[int]] = SlotTable(lambda pieces: [*chain(*pieces)])
    with pytest.raises(StoreError, match=rf"{count} slots are offered for \[2, 6\): one for each"):
        table.stage([Adopt(NodeId(0), 2, 6)], lambda start, end: [*range(count)])


# --- owners ---------------------------------------------------------------------------------------


def other_requests_slots(cache: Cache, store: SymbolicStore) -> tuple[Request, Sequence[int]]:
    running = serve(cache, store, [1, 2, 3], extra=4)
    return running, running.tail[:4]


def own_table(cache: Cache, store: SymbolicStore) -> tuple[Request, Sequence[int]]:
    """The slots are still the request's: checkpoint() hands them over, insert() would not."""
    running = cache.admit(cache.plan(pack([7, 8, 9, 9])))
    compute(cache, store, [7, 8, 9, 9], running)
    return running, cache.table(running)


def the_trees_slots(cache: Cache, store: SymbolicStore) -> tuple[Request, Sequence[int]]:
    running = serve(cache, store, [1, 2, 3, 4])
    return running, cache.table(running)


def slots_that_were_handed_over(
    cache: Cache, store: SymbolicStore
) -> tuple[Request, Sequence[int]]:
    """By an insertion: the caller has nothing to do with them any more."""
    running = serve(cache, store, [1, 2])
    slots = store.allocate(4)
    cache.insert(pack([50, 51, 52, 53]), slots)
    store.step([Job(pack([50, 51, 52, 53]), slots, 0, 4)])
    return running, slots


def the_trees_slots_in_another_order(
    cache: Cache, store: SymbolicStore
) -> tuple[Request, Sequence[int]]:
    running = serve(cache, store, [7, 8, 9, 9])
    return running, cache.table(running)[::-1]


def slots_of_a_hole(cache: Cache, store: SymbolicStore) -> tuple[Request, Sequence[int]]:
    cached(cache, store, range(20, 26))
    cache.evict(4)
    running = cache.admit(cache.plan(pack(range(20, 27))))
    return running, running.holes[0, 4]


@pytest.mark.parametrize(
    "prepare",
    [
        other_requests_slots,
        own_table,
        the_trees_slots,
        slots_that_were_handed_over,
        the_trees_slots_in_another_order,
        slots_of_a_hole,
    ],
)
def test_a_slot_that_has_an_owner_is_not_inserted(
    prepare: Callable[[Cache, SymbolicStore], tuple[Request, Sequence[int]]],
    cache: Cache,
    store: FailingStore,
) -> None:
    request, slots = prepare(cache, store)
    before = cache.state
    with pytest.raises(StoreError, match=r"^slot \d+ is offered and belongs to the cache or to a"):
        cache.insert(pack([7, 8, 9, 9]), slots)
    assert cache.state is before
    audit(cache, store, request)
    cache.release(request)
    audit(cache, store)


def test_a_slot_is_offered_once(cache: Cache, store: FailingStore) -> None:
    slots = store.allocate(3)
    with pytest.raises(StoreError, match="a slot is offered twice"):
        cache.insert(pack([1, 2, 3, 4]), [*slots, slots[0]])
    assert not cache.state.nodes
    cached(cache, store, [1, 2])
    with pytest.raises(StoreError, match="a slot is offered twice"):
        cache.insert(pack([1, 2]), [slots[0], slots[0]])  # both would be surplus, freed twice


def test_a_slot_that_has_become_free_may_come_back(cache: Cache, store: FailingStore) -> None:
    """The books of owners follow evictions, releases, surplus and resets."""
    for _ in range(4):
        slots = store.allocate(4)
        store.step([Job(pack([1, 2, 3, 4]), slots, 0, 4)])
        cache.insert(pack([1, 2, 3, 4]), slots)
        duplicates = store.allocate(4)
        assert cache.insert(pack([1, 2, 3, 4]), duplicates).surplus == duplicates
        running = serve(cache, store, [1, 2, 9], extra=3)
        cache.release(running)
        cache.evict(3)
        cache.reset()
        assert store.allocated == 0


def test_one_rule_for_what_nobody_needs(cache: Cache, store: FailingStore) -> None:
    """Whatever offers it, surplus is free again: the caller has nothing left to do."""
    one, other = (cache.admit(cache.plan(pack(range(4)))) for _ in range(2))
    for request in (one, other):
        compute(cache, store, range(4), request)
    cache.checkpoint(one, pack(range(4)))
    for surplus in (
        cache.checkpoint(other, pack(range(4))).surplus,
        cache.insert(pack(range(4)), store.allocate(4)).surplus,
    ):
        assert len(surplus) == 4
        assert store.held().keys().isdisjoint(surplus)
    audit(cache, store, one, other)


# --- errors are the core's, by name ---------------------------------------------------------------


def released(cache: Cache, store: SymbolicStore) -> Request:
    running = serve(cache, store, [1, 2, 3])
    cache.release(running)
    return running


def of_another_cache(cache: Cache, store: SymbolicStore) -> Request:
    serve(cache, store, [1, 2, 3])
    elsewhere = SymbolicStore(CAPACITY)
    return serve(Cache(Config(CAPACITY, block_size=2), elsewhere), elsewhere, [1, 2, 3])


@pytest.mark.parametrize("make", [released, of_another_cache])
def test_a_request_that_is_not_live_here_is_unknown(
    make: Callable[[Cache, SymbolicStore], Request], cache: Cache, store: FailingStore
) -> None:
    request = make(cache, store)
    before = cache.state
    attempts: list[Callable[[], object]] = [
        lambda: cache.table(request),
        lambda: cache.refill(request, 0, 2),
        lambda: cache.checkpoint(request, pack([1, 2, 3])),
        lambda: cache.grow(request, 1),
        lambda: cache.release(request),
    ]
    for attempt in attempts:
        with pytest.raises(UnknownReceipt):
            attempt()
    assert cache.state is before


def test_a_span_that_is_no_hole_of_the_request_is_named(cache: Cache, store: FailingStore) -> None:
    cached(cache, store, range(8))
    cache.evict(4)
    request = cache.admit(cache.plan(pack(range(9))))
    wrong: list[tuple[Any, Any]] = [(0, 6), (4, 8), (6, 10), (2, 2), (-2, 2), (0.5, 2)]
    for start, end in wrong:
        with pytest.raises(NotBeingRefilled):
            cache.refill(request, start, end)
    with pytest.raises(NotBeingRefilled, match=r"slots for: it has \[0, 4\)$"):
        cache.refill(request, 4, 6)  # resident, and locked: not this request's to refill
    audit(cache, store, request)
    compute(cache, store, range(9), request)
    cache.refill(request, 0, 4)
    with pytest.raises(NotBeingRefilled, match="it has none left"):
        cache.refill(request, 0, 4)


def test_a_growth_that_can_never_be_is_told_from_not_now(cache: Cache, store: FailingStore) -> None:
    one, other = serve(cache, store, [1, 2, 3, 4]), serve(cache, store, [5, 6, 7, 8])
    with pytest.raises(InsufficientSpace, match="wait until a running request ends"):
        cache.grow(one, CAPACITY - 4)
    for units in (CAPACITY - 3, 10**6):
        with pytest.raises(RequestTooLarge, match="end it or enlarge the device cache"):
            cache.grow(one, units)
    cache.release(other)
    cache.grow(one, CAPACITY - 4)
    assert len(cache.table(one)) == CAPACITY


def test_a_key_is_not_guessed_from_other_things(cache: Cache, store: FailingStore) -> None:
    slots = store.allocate(4)
    for wrong in ([1, 2, 3, 4], bytearray(16), None):
        with pytest.raises(InvalidKey):
            cache.insert(wrong, slots)  # type: ignore[arg-type]


# --- pages of more than one unit, two tiers -------------------------------------------------------


def test_room_for_a_part_of_a_page_is_made_by_moving_a_page() -> None:
    store = SymbolicStore(4, 6)
    cache = Cache(Config(4, 2, 2, host_capacity=6, swap_buffer=2), store)
    cached(cache, store, [1, 2])
    request = cache.admit(cache.plan(pack([7, 8])))
    cache.grow(request, 1)
    assert len(cache.table(request)) == 3
    assert cache.state.totals.host == 2
    again = cache.plan(pack([1, 2, 3]))
    assert not again.admissible
    cache.release(request)
    assert cache.table(cache.admit(cache.plan(pack([1, 2, 3]))))[:2]


# --- debris ---------------------------------------------------------------------------------------


class Unwilling(SymbolicStore):
    """Will not free, as often as told."""

    unwilling = 0

    def free(self, slots: Sequence[int], host: Sequence[int] = ()) -> None:
        if self.unwilling:
            self.unwilling -= 1
            raise StoreError("the store will not free")
        super().free(slots, host)


def left_in_flight(target: Residency) -> tuple[Cache, Unwilling]:
    """A move that ended neither way: the store would not free what either way leaves."""
    store = Unwilling(8, 8)
    cache = Cache(Config(8, block_size=2, host_capacity=8, swap_buffer=2), store)
    cached(cache, store, range(6))
    transfer = next_demotion(cache)
    if target is DEVICE:
        cache.transfer(transfer)
        node = next(n for n in cache.state.nodes.values() if n.residency is HOST)
        transfer = transfer._replace(node=node.id, target=DEVICE)
    store.unwilling = 2
    with pytest.raises(StoreError, match="will not free"):
        cache.transfer(transfer)
    assert cache.state.moves
    return cache, store


def next_demotion(cache: Cache) -> Any:
    return policy.next_demotion(cache.state, 6)


@pytest.mark.parametrize("target", [DEVICE, HOST])
def test_every_call_starts_without_debris(target: Residency) -> None:
    """What a store left behind stands in nobody's way, and host slots are never device slots."""
    cache, store = left_in_flight(target)
    request = cache.admit(cache.plan(pack(range(8))))
    assert not cache.state.moves
    compute(cache, store, range(8), request)  # reads every slot of the table
    cache.checkpoint(request, pack(range(8)))
    audit(cache, store, request)


@pytest.mark.parametrize("target", [DEVICE, HOST])
def test_a_plan_from_before_is_made_again(target: Residency) -> None:
    cache, store = left_in_flight(target)
    plan = cache.plan(pack(range(8)))
    cache, store = left_in_flight(target)
    with pytest.raises(StalePlan):
        cache.admit(plan)
    assert not cache.state.moves
    slots = store.allocate(2)
    assert cache.insert(pack([50, 51]), slots).adopted == 2


def test_a_store_that_stays_out_of_order_is_named_until_it_recovers() -> None:
    cache, store = left_in_flight(HOST)
    store.unwilling = 3
    before = cache.state
    for attempt in (lambda: cache.plan(pack([9])), cache.reset, lambda: cache.evict(1)):
        with pytest.raises(StoreError, match="will not free"):
            attempt()
        assert cache.state is before
    cache.reset()
    assert store.allocated == 0
    assert not store.held(HOST)


def test_kv_on_the_host_is_never_in_a_table(store: FailingStore) -> None:
    """A running request whose promotion failed has no table."""
    tiers = Unwilling(8, 8)
    cache = Cache(Config(8, block_size=2, host_capacity=8, swap_buffer=2), tiers)
    cached(cache, tiers, range(4))
    cache.transfer(next_demotion(cache))
    # No method leaves a request like this; a table asks all the same where its KV is.
    done = policy.acquire(cache.state, cache.match(pack(range(5))))
    cache._kept.now = cache.now._replace(state=done.state)
    with pytest.raises(StoreError, match=r"\[0, 4\) is on the host"):
        cache.table(Request(done.receipt, {}, 4, []))


# --- threads --------------------------------------------------------------------------------------


def test_a_call_during_another_one_is_refused() -> None:
    """From another thread, or from within: the store or the observer calls back."""
    inside, done = threading.Event(), threading.Event()

    class Slow(SymbolicStore):
        def allocate(self, units: int, tier: Residency = DEVICE) -> list[int]:
            inside.set()
            assert done.wait(20)
            return super().allocate(units, tier)

    cache = Cache(Config(8, block_size=2), Slow(8))
    plan = cache.plan(pack([1, 2]))
    admitted: list[Request] = []
    worker = threading.Thread(target=lambda: admitted.append(cache.admit(plan)))
    worker.start()
    assert inside.wait(20)
    for attempt in (cache.reset, lambda: cache.evict(1), lambda: cache.plan(pack([1]))):
        with pytest.raises(ConcurrentUse, match="while another call to this cache is under way"):
            attempt()
    assert cache.state.tick == cache.now.state.tick == 0  # may be read at any time
    done.set()
    worker.join(20)
    assert len(cache.table(admitted[0])) == 2


def test_an_observer_may_look_but_not_call_back() -> None:
    store = SymbolicStore(8)

    def observe(*_: object) -> None:
        watched.evict(1)

    watched = Cache(Config(8, block_size=2), store, observe)
    with pytest.raises(ConcurrentUse):
        watched.insert(pack([1]), store.allocate(1))
    assert not watched.state.nodes


def test_four_threads_do_not_corrupt_a_cache() -> None:
    store = SymbolicStore(64)
    cache = Cache(Config(64, block_size=4), store)
    refused, torn = [0] * 4, []

    def use(me: int) -> None:
        for turn in range(300):
            units = pack([me, *range(turn % 7 + 1)])
            try:
                cache.release(cache.admit(cache.plan(units)))
            except (ConcurrentUse, StalePlan, InsufficientSpace):
                refused[me] += 1
            except PenelopeError as error:
                torn.append(error)

    workers = [threading.Thread(target=use, args=(me,)) for me in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not torn
    for lease in list(cache.state.leases):  # released by nobody: its release was refused
        cache.release(Request(Receipt(lease), {}, 0, []))
    assert cache.state.totals.locked == 0


def test_what_is_published_belongs_together(cache: Cache, store: FailingStore) -> None:
    cached(cache, store, range(6))
    moments = [cache.now]
    cache.evict(2)
    moments.append(cache.now)
    assert [(m.state.totals.device, m.flow.dropped) for m in moments] == [(6, 0), (4, 2)]
    assert cache.state is moments[1].state
    assert cache.flow == moments[1].flow


# --- what fails leaves nothing behind -------------------------------------------------------------


def test_fresh_slots_go_back_where_the_store_will_not_free_what_is_dropped() -> None:
    """One block to drop lies in both tiers, and a slot more is needed than it frees."""
    store = Unwilling(8, 5)
    cache = Cache(Config(8, block_size=4, host_capacity=5, swap_buffer=4), store)
    cached(cache, store, range(8))
    cache.transfer(next_demotion(cache)._replace(end=1))
    plan = cache.plan(pack(range(20, 24)))
    assert (plan.evict, plan.allocate, cache.state.free) == (3, 4, 1)
    before = (cache.state, store.held(), store.held(HOST))
    store.unwilling = 1
    with pytest.raises(StoreError, match="will not free"):
        cache.admit(plan)
    assert (cache.state, store.held(), store.held(HOST)) == before
    assert len(cache.table(cache.admit(plan))) == 4


def test_an_observer_is_told_of_a_move_that_failed() -> None:
    class NoCopies(SymbolicStore):
        def copy(self, source: Sequence[int], target: Sequence[int], tier: Residency) -> None:
            raise StoreError("no copies today")

    told: list[str] = []
    store = NoCopies(8, 8)
    cache = Cache(
        Config(8, block_size=2, host_capacity=8, swap_buffer=2),
        store,
        lambda before, name, after, effects: told.append(name),
    )
    cached(cache, store, range(4))
    with pytest.raises(StoreError, match="no copies today"):
        cache.transfer(next_demotion(cache))
    assert told[-2:] == ["begin_move", "fail_move"]
    assert cache.flow.failed == 4
