"""The cache, by examples: what an engine asks of it, on a store that checks every slot."""

from __future__ import annotations

import pytest

from penelope.policy import Config, Namespace, pack
from penelope.runtime.cache import Cache
from penelope.runtime.store import StoreError
from penelope.runtime.symbolic import Job, WrongKV
from tests.unit.serving import CAPACITY, FailingStore, audit, cached, compute, serve


@pytest.fixture
def store() -> FailingStore:
    return FailingStore(CAPACITY)


@pytest.fixture
def cache(store: FailingStore) -> Cache:
    return Cache(Config(CAPACITY, block_size=2), store)


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


def test_an_insertion_frees_what_nobody_needs(store: FailingStore) -> None:
    paged = Cache(Config(CAPACITY, page_size=2, block_size=2), store)
    slots = store.allocate(5)
    store.step([Job(pack(range(5)), slots, 0, 5)])
    offered = paged.insert(pack(range(5)), slots)
    assert (offered.adopted, offered.resident, offered.surplus) == (4, 0, slots[4:])
    # The same slots again are not duplicates; others are.
    assert paged.insert(pack(range(4)), slots[:4]).surplus == []
    others = store.allocate(4)
    assert paged.insert(pack(range(4)), others).surplus == others
    others = store.allocate(2)
    assert paged.insert(pack(range(4)), others, start=2).surplus == others
    assert sorted(store.held()) == sorted(slots[:4])


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


def test_parts_of_a_hole_may_come_back_in_any_order(cache: Cache, store: FailingStore) -> None:
    cached(cache, store, range(8))
    cache.evict(6)
    request = cache.admit(cache.plan(pack(range(9))))
    mine = list(request.holes[0, 6])
    compute(cache, store, range(9), request)
    for start in (4, 0, 2):
        cache.refill(request, start, start + 2)
        audit(cache, store, request)
    assert cache.table(request)[:6] == mine


@pytest.mark.parametrize("rest", range(4))
def test_the_end_that_fills_no_page_is_handed_back_whole(rest: int, store: FailingStore) -> None:
    paged = Cache(Config(CAPACITY, page_size=4, block_size=4), store)
    slots = store.allocate(4 + rest)
    store.step([Job(pack(range(4 + rest)), slots, 0, 4 + rest)])
    assert paged.insert(pack(range(4 + rest)), slots).surplus == slots[4:]
    assert sorted(store.held()) == sorted(slots[:4])
