"""Stores that fail, observers that object, a core that refuses: nothing has happened then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penelope.policy import (
    Config,
    Effect,
    InsufficientSpace,
    InUse,
    NotAPrefix,
    OverCapacity,
    Refused,
    RequestTooLarge,
    StalePlan,
    State,
    UnknownReceipt,
    pack,
)
from penelope.runtime.cache import Cache, Request
from penelope.runtime.store import StoreError
from penelope.runtime.symbolic import Job, SymbolicStore
from tests.unit.serving import (
    CAPACITY,
    FailingStore,
    audit,
    cached,
    compute,
    serve,
    snapshot,
)


@pytest.fixture
def store() -> FailingStore:
    return FailingStore(CAPACITY)


@pytest.fixture
def cache(store: FailingStore) -> Cache:
    return Cache(Config(CAPACITY, block_size=2), store)


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
        (growth_beyond_the_device, RequestTooLarge),
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
