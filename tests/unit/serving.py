"""A cache on a store that checks, and requests that are served as an engine would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penelope.policy import Residency, pack
from penelope.runtime.cache import Cache, Request
from penelope.runtime.store import StoreError
from penelope.runtime.symbolic import Job, SymbolicStore, prefill
from penelope.testing.audit import TIERS
from penelope.testing.audit import audit as found_wrong

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
    held = {tier: store.held(tier) for tier in TIERS}
    assert found_wrong(cache, held, running, prefill) == []
    assert store.allocated == cache.state.used


def snapshot(cache: Cache, store: SymbolicStore, request: Request) -> tuple[object, ...]:
    resident = [(node, list(slots)) for node, slots in cache.resident()]
    holes = {span: list(slots) for span, slots in request.holes.items()}
    own = (request.receipt, holes, request.start, list(request.tail))
    return cache.state, resident, store.held(), own
