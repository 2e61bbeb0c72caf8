"""A cache on a store that checks, and requests that are served as an engine would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penelope.policy import Key, Residency, pack
from penelope.runtime.cache import Cache, Request
from penelope.runtime.store import StoreError
from penelope.runtime.symbolic import Job, SymbolicStore, prefill

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
    owned = [slot for request in running for slot in request.owned]
    for node, slots in cache.resident():
        assert len(slots) == node.length
        digests = prefill(Key(node.key[: node.end * 4]))[node.start :]
        store.check(slots, digests, "is kept")
        owned += slots
    assert len(owned) == len(set(owned)) == store.allocated
    assert store.allocated == cache.state.used <= CAPACITY


def snapshot(cache: Cache, store: SymbolicStore, request: Request) -> tuple[object, ...]:
    resident = [(node, list(slots)) for node, slots in cache.resident()]
    holes = {span: list(slots) for span, slots in request.holes.items()}
    own = (request.receipt, holes, request.start, list(request.tail))
    return cache.state, resident, store.held(), own
