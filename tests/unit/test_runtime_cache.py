"""The cache on a store that checks: examples, and stores that fail at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from penelope.policy import (
    Config,
    Effect,
    InsufficientSpace,
    InUse,
    Key,
    Namespace,
    NotAPrefix,
    OverCapacity,
    Refused,
    Residency,
    StalePlan,
    State,
    UnknownReceipt,
    pack,
)
from penelope.runtime.cache import Cache, Request
from penelope.runtime.store import StoreError
from penelope.runtime.symbolic import Job, SymbolicStore, WrongKV, prefill

CAPACITY = 12


class FailingStore(SymbolicStore):
    """Fails the next call of the methods in `failing`, once, without doing anything."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.failing: set[str] = set()

    def _fail(self, method: str) -> None:
        if method in self.failing:
            self.failing.discard(method)
            raise StoreError(f"{method} is out of order")

    def allocate(self, units: int, tier: Residency = Residency.DEVICE) -> list[int]:
        self._fail("allocate")
        return super().allocate(units, tier)

    def free(self, slots: Sequence[int], host: Sequence[int] = ()) -> None:
        self._fail("free")
        super().free(slots, host)


@pytest.fixture
def store() -> FailingStore:
    return FailingStore(CAPACITY)


@pytest.fixture
def cache(store: FailingStore) -> Cache:
    return Cache(Config(CAPACITY, block_size=2), store)


def compute(cache: Cache, store: SymbolicStore, tokens: Iterable[int], *requests: Request) -> None:
    """Compute what a request lacks, holes first, in one batch with the others' holes."""
    key = pack(tokens)
    request = requests[0]
    slots = cache.table(request, requests[1:])
    jobs = [Job(key, slots, start, end) for start, end in request.holes]
    jobs.append(Job(key, slots, request.start, len(key) // 4))
    store.step(jobs)


def serve(cache: Cache, store: SymbolicStore, tokens: Sequence[int], extra: int = 0) -> Request:
    """Plan, admit, compute and hand over; the request is still running."""
    key = pack(tokens)
    request = cache.admit(cache.plan(key, extra=extra))
    compute(cache, store, tokens, request)
    for start, end in list(request.holes):
        cache.refill(request, start, end)
    cache.checkpoint(request, key)
    return request


def cached(cache: Cache, store: SymbolicStore, tokens: Sequence[int]) -> None:
    cache.release(serve(cache, store, tokens))


def audit(cache: Cache, store: SymbolicStore, *running: Request) -> None:
    """Every slot has one owner, and holds the KV of the history that it is owned for."""
    owned = [slot for request in running for slot in request.owned]
    for node, slots in cache.resident():
        assert len(slots) == node.length
        digests = prefill(Key(node.key[: node.end * 4]))[node.start :]
        store.check(slots, digests, "is kept")
        owned += slots
    assert len(owned) == len(set(owned)) == store.allocated
    assert store.allocated == cache.state.used <= CAPACITY


# --- examples -------------------------------------------------------------------------------------


def test_a_request_from_admission_to_release(cache: Cache, store: FailingStore) -> None:
    key = pack(range(4))
    request = cache.admit(cache.plan(key, extra=2))
    assert (request.holes, request.start, len(request.tail)) == ({}, 0, 6)
    store.step([Job(key, cache.table(request), 0, 4)])
    offered = cache.checkpoint(request, key)
    assert (offered.adopted, offered.resident, offered.surplus) == (4, 0, [])
    assert (request.start, len(request.tail)) == (4, 2)
    audit(cache, store, request)
    cache.release(request)
    assert store.allocated == 4, "room that was not used is free again"
    assert not request.owned
    audit(cache, store)


def test_a_hole_is_refilled_in_parts_into_the_slots_of_the_request(
    cache: Cache, store: FailingStore
) -> None:
    cached(cache, store, range(8))
    assert cache.evict(3) == 4
    request = cache.admit(cache.plan(pack(range(9))))
    assert list(request.holes) == [(0, 4)]
    mine = list(request.holes[0, 4])
    compute(cache, store, range(9), request)
    offered = cache.refill(request, 0, 2)
    assert (offered.adopted, offered.resident, offered.surplus) == (2, 0, [])
    assert request.holes == {(2, 4): mine[2:]}
    audit(cache, store, request)
    cache.refill(request, 2, 4)
    assert not request.holes
    assert cache.table(request)[:4] == mine
    audit(cache, store, request)


def test_a_middle_part_leaves_two(cache: Cache, store: FailingStore) -> None:
    cached(cache, store, range(8))
    cache.evict(6)
    request = cache.admit(cache.plan(pack(range(9))))
    mine = list(request.holes[0, 6])
    compute(cache, store, range(9), request)
    cache.refill(request, 2, 4)
    assert request.holes == {(0, 2): mine[:2], (4, 6): mine[4:]}
    audit(cache, store, request)


def test_requests_of_one_batch_read_each_others_holes(cache: Cache, store: FailingStore) -> None:
    cached(cache, store, range(6))
    cache.evict(2)
    one = cache.admit(cache.plan(pack([*range(6), 7])))
    other = cache.admit(cache.plan(pack([*range(6), 8])))
    assert (list(one.holes), list(other.holes)) == ([(0, 2)], [])
    with pytest.raises(StoreError, match=r"\[0, 2\) is a hole that another request refills"):
        cache.table(other)
    compute(cache, store, [*range(6), 7], one)
    compute(cache, store, [*range(6), 8], other, one)
    cache.refill(one, 0, 2)
    assert cache.table(other)[:2] == cache.table(one)[:2]
    audit(cache, store, one, other)


def test_what_both_computed_is_kept_once(cache: Cache, store: FailingStore) -> None:
    one, other = (cache.admit(cache.plan(pack(range(4)))) for _ in range(2))
    for request in (one, other):
        compute(cache, store, range(4), request)
    duplicates = list(other.tail)
    assert cache.checkpoint(one, pack(range(4))).adopted == 4
    offered = cache.checkpoint(other, pack(range(4)))
    assert (offered.adopted, offered.resident, offered.surplus) == (0, 4, duplicates)
    assert store.allocated == 4
    audit(cache, store, one, other)


def test_room_for_an_output_evicts_the_shortfall(cache: Cache, store: FailingStore) -> None:
    cached(cache, store, range(6))
    request = serve(cache, store, range(100, 104))
    cache.grow(request, 4)
    assert len(request.tail) == 4
    assert cache.state.totals.hole == 2
    audit(cache, store, request)


def test_evicted_slots_are_handed_over_without_a_detour(cache: Cache, store: FailingStore) -> None:
    cached(cache, store, range(CAPACITY))
    store.failing = {"allocate"}
    request = cache.admit(cache.plan(pack(range(100, 104))))
    assert store.failing == {"allocate"}, "nothing was free, so nothing was asked for"
    audit(cache, store, request)


def test_an_insertion_keeps_what_nobody_needs_with_the_caller(store: FailingStore) -> None:
    paged = Cache(Config(CAPACITY, page_size=2, block_size=2), store)
    slots = store.allocate(5)
    store.step([Job(pack(range(5)), slots, 0, 5)])
    offered = paged.insert(pack(range(5)), slots)
    assert (offered.adopted, offered.resident, offered.surplus) == (4, 0, slots[4:])
    # The same slots again are not duplicates; others are.
    assert paged.insert(pack(range(4)), slots[:4]).surplus == []
    others = store.allocate(4)
    assert paged.insert(pack(range(4)), others).surplus == others
    assert paged.insert(pack(range(4)), others[2:], start=2).surplus == others[2:]


def test_as_many_slots_are_offered_as_units(cache: Cache, store: FailingStore) -> None:
    with pytest.raises(StoreError, match="3 slots are offered for 4 units: one for each"):
        cache.insert(pack(range(4)), store.allocate(3))


def test_namespaces_share_nothing(cache: Cache, store: FailingStore) -> None:
    cached(cache, store, range(4))
    assert cache.match(pack(range(5)), Namespace("adapter")).end == 0
    assert cache.match(pack(range(5))).end == 4


def test_a_touched_history_outlives_the_others(cache: Cache, store: FailingStore) -> None:
    cached(cache, store, range(4))
    cached(cache, store, range(100, 104))
    cache.touch(cache.match(pack(range(5))))
    cache.evict(4)
    assert cache.match(pack(range(5))).reusable == 4
    assert cache.match(pack(range(100, 105))).reusable == 0


def test_a_reset_gives_every_slot_back(cache: Cache, store: FailingStore) -> None:
    cached(cache, store, range(6))
    cache.evict(2)
    cache.reset()
    assert store.allocated == 0
    assert list(cache.resident()) == []
    cached(cache, store, range(6))
    audit(cache, store)


def test_the_store_notices_kv_of_another_history(cache: Cache, store: FailingStore) -> None:
    cached(cache, store, range(4))
    request = cache.admit(cache.plan(pack(range(5))))
    with pytest.raises(WrongKV, match=r"position 0 is read from .* KV of another history"):
        compute(cache, store, [9, 1, 2, 3, 4], request)


# --- refusals and failures ------------------------------------------------------------------------


def snapshot(cache: Cache, store: SymbolicStore, request: Request) -> tuple[object, ...]:
    resident = [(node, list(slots)) for node, slots in cache.resident()]
    holes = {span: list(slots) for span, slots in request.holes.items()}
    own = (request.receipt, holes, request.start, list(request.tail))
    return cache.state, resident, store.held(), own


Prepared = tuple[Request, Callable[[], object]]
"""A running request, and what is to be attempted."""


def admission(cache: Cache, store: SymbolicStore) -> Prepared:
    """Partly from what is evicted, partly from what is free."""
    cached(cache, store, range(100, 106))
    running = serve(cache, store, range(4))
    return running, lambda: cache.admit(cache.plan(pack(range(200, 207))))


def admission_into_less(cache: Cache, store: SymbolicStore) -> Prepared:
    """A block is evicted where a slot is needed: the other slot is given back."""
    cached(cache, store, range(100, 108))
    running = serve(cache, store, range(4))
    return running, lambda: cache.admit(cache.plan(pack([200])))


def growth(cache: Cache, store: SymbolicStore) -> Prepared:
    running = serve(cache, store, range(4))
    return running, lambda: cache.grow(running, 3)


def duplicate(cache: Cache, store: SymbolicStore) -> Prepared:
    one, other = (cache.admit(cache.plan(pack(range(4)))) for _ in range(2))
    for request in (one, other):
        compute(cache, store, range(4), request)
    cache.checkpoint(one, pack(range(4)))
    return other, lambda: cache.checkpoint(other, pack(range(4)))


def refill_of_what_came_back(cache: Cache, store: SymbolicStore) -> Prepared:
    cached(cache, store, range(6))
    cache.evict(2)
    running = cache.admit(cache.plan(pack(range(7))))
    compute(cache, store, range(7), running)
    slots = store.allocate(2)
    store.step([Job(pack(range(2)), slots, 0, 2)])
    cache.insert(pack(range(2)), slots)
    return running, lambda: cache.refill(running, 0, 2)


def ending(cache: Cache, store: SymbolicStore) -> Prepared:
    cached(cache, store, range(6))
    cache.evict(2)
    running = cache.admit(cache.plan(pack(range(7)), extra=2))
    return running, lambda: cache.release(running)


def eviction(cache: Cache, store: SymbolicStore) -> Prepared:
    cached(cache, store, range(100, 106))
    return serve(cache, store, range(4)), lambda: cache.evict(3)


@pytest.mark.parametrize(
    ("prepare", "method"),
    [
        (admission, "allocate"),
        (admission_into_less, "free"),
        (growth, "allocate"),
        (duplicate, "free"),
        (refill_of_what_came_back, "free"),
        (ending, "free"),
        (eviction, "free"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_store_that_fails_leaves_everything_as_it_was(
    prepare: Callable[[Cache, SymbolicStore], Prepared],
    method: str,
    cache: Cache,
    store: FailingStore,
) -> None:
    request, attempt = prepare(cache, store)
    before = snapshot(cache, store, request)
    store.failing = {method}
    with pytest.raises(StoreError, match=f"{method} is out of order"):
        attempt()
    after = snapshot(cache, store, request)
    assert after[0] is before[0]
    assert after[1:] == before[1:]
    assert not store.failing
    attempt()
    assert cache.state is not before[0], "what failed can be tried again"


def test_a_reset_that_fails_keeps_the_cache(cache: Cache, store: FailingStore) -> None:
    cached(cache, store, range(6))
    before, store.failing = cache.state, {"free"}
    with pytest.raises(StoreError):
        cache.reset()
    assert cache.state is before
    audit(cache, store)
    cache.reset()
    assert store.allocated == 0


@pytest.mark.parametrize("prepare", [admission, growth, duplicate, ending, eviction])
def test_an_observer_that_objects_prevents_the_transition(
    prepare: Callable[[Cache, SymbolicStore], Prepared], store: FailingStore
) -> None:
    class Objection(Exception):
        pass

    objecting = False
    seen: list[State] = []

    def observe(before: State, name: str, after: State, effects: tuple[Effect, ...]) -> None:
        if objecting:
            raise Objection(name)
        assert before is watched.state, "called before the transition is committed"
        assert isinstance(effects, tuple)
        seen.append(after)

    watched = Cache(Config(CAPACITY, block_size=2), store, observe)
    request, attempt = prepare(watched, store)
    before = snapshot(watched, store, request)
    objecting = True
    with pytest.raises(Objection):
        attempt()
    assert snapshot(watched, store, request) == before
    objecting = False
    attempt()
    assert seen[-1] is watched.state


def too_much(cache: Cache, store: SymbolicStore) -> Prepared:
    running = serve(cache, store, range(8))
    return running, lambda: cache.admit(cache.plan(pack(range(100, 106))))


def two_admissions_of_one_plan(cache: Cache, store: SymbolicStore) -> Prepared:
    plan = cache.plan(pack(range(100, 104)))
    return serve(cache, store, range(4)), lambda: cache.admit(plan)


def second_release(cache: Cache, store: SymbolicStore) -> Prepared:
    running = serve(cache, store, range(4))
    cache.release(running)
    return running, lambda: cache.release(running)


def growth_beyond_the_device(cache: Cache, store: SymbolicStore) -> Prepared:
    running = serve(cache, store, range(8))
    return running, lambda: cache.grow(running, 5)


def checkpoint_of_another_history(cache: Cache, store: SymbolicStore) -> Prepared:
    running = serve(cache, store, range(4))
    return running, lambda: cache.checkpoint(running, pack([0, 1, 9, 9, 9]))


def reset_in_use(cache: Cache, store: SymbolicStore) -> Prepared:
    return serve(cache, store, range(4)), cache.reset


def insertion_into_a_full_device(cache: Cache, store: SymbolicStore) -> Prepared:
    running = serve(cache, store, range(8))
    return running, lambda: cache.insert(pack(range(100, 105)), range(5))


@pytest.mark.parametrize(
    ("prepare", "refusal"),
    [
        (too_much, InsufficientSpace),
        (two_admissions_of_one_plan, StalePlan),
        (second_release, UnknownReceipt),
        (growth_beyond_the_device, InsufficientSpace),
        (checkpoint_of_another_history, NotAPrefix),
        (reset_in_use, InUse),
        (insertion_into_a_full_device, OverCapacity),
    ],
    ids=lambda value: value.__name__,
)
def test_a_refusal_leaves_everything_as_it_was(
    prepare: Callable[[Cache, SymbolicStore], Prepared],
    refusal: type[Refused],
    cache: Cache,
    store: FailingStore,
) -> None:
    request, attempt = prepare(cache, store)
    before: Any = snapshot(cache, store, request)
    with pytest.raises(refusal):
        attempt()
    assert snapshot(cache, store, request) == before
    assert cache.state is before[0]


# --- the store itself -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda store: store.allocate(4), "4 slots of the device are asked for and 1 are free"),
        (lambda store: store.free([0, 0]), "freed twice in one call"),
        (lambda store: store.free([0, 3]), "slot 3 is freed and is not allocated"),
        (lambda store: store.free([0], [3]), "slot 3 is freed and is not allocated"),
        (lambda store: store.copy([0], [0, 1], Residency.HOST), "1 slots are copied to 2"),
        (lambda store: store.copy([0], [3], Residency.HOST), "slot 3 is copied to and is not"),
        (lambda store: store.copy([3], [0], Residency.HOST), "slot 3 is copied from and is not"),
    ],
)
def test_the_symbolic_store_refuses_and_changes_nothing(
    act: Callable[[SymbolicStore], object], says: str
) -> None:
    store = SymbolicStore(4, host_capacity=4)
    taken = store.allocate(3)
    store.step([Job(pack(range(3)), taken, 0, 3)])
    store.allocate(2, Residency.HOST)
    before = store.held(), store.held(Residency.HOST)
    with pytest.raises(StoreError, match=says):
        act(store)
    assert (store.held(), store.held(Residency.HOST)) == before


def test_copied_kv_is_the_same_kv() -> None:
    store = SymbolicStore(2, host_capacity=2)
    key, slots = pack(range(2)), store.allocate(2)
    store.step([Job(key, slots, 0, 2)])
    host = store.allocate(2, Residency.HOST)
    store.copy(slots, host[::-1], Residency.HOST)
    store.check(host[::-1], prefill(key), "is kept", Residency.HOST)
    with pytest.raises(WrongKV):
        store.check(host, prefill(key), "is kept", Residency.HOST)
    store.free(slots)
    back = store.allocate(2)
    store.copy(host[::-1], back, Residency.DEVICE)
    store.check(back, prefill(key), "is read")


@pytest.mark.parametrize(("start", "says"), [(0, "is written to slot"), (1, "is read from slot")])
def test_a_freed_slot_cannot_be_used(start: int, says: str) -> None:
    store = SymbolicStore(4)
    key, slots = pack(range(2)), store.allocate(2)
    store.step([Job(key, slots, 0, 2)])
    store.free(slots[:1])
    with pytest.raises(WrongKV, match=f"position 0 {says} {slots[0]}, which is free"):
        store.step([Job(key, slots, start, 2)])


def test_a_slot_without_kv_cannot_be_read() -> None:
    store = SymbolicStore(4)
    slots = store.allocate(2)
    with pytest.raises(WrongKV, match="which holds nothing yet"):
        store.step([Job(pack(range(2)), slots, 1, 2)])
