"""Device and host memory as one cache: room is made by demotion, and host KV is brought back.

SGLang's allocator owns the device memory.  For the length of one exchange the core is told, as a
reservation, what SGLang's requests hold of it; the core then decides what is dropped and what is
moved, as in any other runtime.  No move is in flight between two calls: `HostMemory` orders copies
with the engine's batches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

from penelope import policy
from penelope.policy import (
    Effect,
    Free,
    Key,
    Match,
    Plan,
    Receipt,
    Residency,
    State,
    Step,
    Transfer,
)
from penelope.runtime.store import StoreError
from penelope.sglang_adapter.paths import Path
from penelope.sglang_adapter.slots import Offer, SlotTable
from penelope.sglang_adapter.statistics import Statistics

if TYPE_CHECKING:
    from penelope.sglang_adapter.host_memory import HostMemory

logger = logging.getLogger(__name__)


class Owner(Protocol):
    """The cache whose KV is moved: what an exchange needs of it."""

    state: State
    slots: SlotTable
    statistics: Statistics
    token_to_kv_pool_allocator: Any

    def find(self, path: Path) -> Match: ...

    def apply(
        self, state: State, effects: tuple[Effect, ...], offer: Offer | None = None
    ) -> object: ...


class Tiers:
    def __init__(self, cache: Owner, memory: HostMemory) -> None:
        self._cache = cache
        self._allocator = cache.token_to_kv_pool_allocator
        self.memory = memory

    def make_room(self, need: int) -> int:
        """Free `need` device tokens, of which the core has as many unlocked; returns the dropped.

        Where a copy fails, KV is dropped in the order of eviction instead of demoted.
        """
        cache = self._cache
        wanted = self._allocator.available_size() + need
        with self._holdings() as holdings:
            dropped = self._dropping(policy.reserve(cache.state, holdings, wanted))
            try:
                self._carry_out(holdings)
            except StoreError as error:
                logger.error("Penelope drops KV that it could not move to the host: %s", error)
        while (short := wanted - self._allocator.available_size()) > 0:
            evicted = policy.evict(cache.state, min(short, cache.state.evictable))
            dropped += self._dropping(Step(evicted.state, evicted.effects))
        return dropped

    def bring(self, path: Path) -> bool:
        """Bring the host KV of a locked path to the device; False if a copy failed."""
        cache = self._cache
        with self._holdings():
            matched = cache.find(path)
            spare = cache.state.available - cache.state.free
            undertaken = Plan(matched, (), (), allocate=matched.host, evict=0, available=spare)
            admitted = policy.admit(cache.state, undertaken)
            cache.apply(admitted.state, admitted.effects)
            try:
                self._carry_out(admitted.receipt)
            except StoreError as error:
                logger.error("Penelope leaves KV on the host and will try again: %s", error)
                return False
            finally:
                cache.apply(*policy.release(cache.state, admitted.receipt))
        return True

    @contextmanager
    def _holdings(self) -> Iterator[Receipt]:
        """A receipt for the device tokens that SGLang's requests hold outside the tree."""
        cache = self._cache
        nothing = policy.match(cache.state, Key(b""))
        state, effects, receipt = policy.acquire(cache.state, nothing)
        cache.apply(state, effects)
        try:
            held = (
                self._allocator.size - self._allocator.available_size() - cache.state.totals.device
            )
            cache.apply(*policy.reserve(cache.state, receipt, held))
            yield receipt
        finally:
            cache.apply(*policy.release(cache.state, receipt))

    def _dropping(self, step: Step) -> int:
        self._cache.apply(*step)
        return sum(e.end - e.start for e in step.effects if isinstance(e, Free))

    def _carry_out(self, receipt: Receipt) -> None:
        while (transfer := policy.next_transfer(self._cache.state, receipt)) is not None:
            self._move(transfer)

    def _move(self, transfer: Transfer) -> None:
        """Raises `StoreError`, and then the KV is where it was."""
        cache, target = self._cache, transfer.target
        demotion = target is Residency.HOST
        state, effects, move = policy.begin(cache.state, transfer)
        swap = not demotion and cache.state.staged > 0
        fresh = self._allocate(transfer)
        cache.apply(
            state,
            effects,
            lambda low, high: fresh[low - transfer.start : high - transfer.start],
        )
        node = state.moves[move].node
        own = cache.slots.part(node, transfer.start, transfer.end)
        device, host = (own, fresh) if demotion else (fresh, own)
        try:
            self.memory.copy(device, host, target)
        except StoreError:
            cache.apply(*policy.fail(cache.state, move))
            cache.statistics.add("failed_moves")
            raise
        cache.apply(*policy.end(cache.state, move))
        cache.statistics.moved(transfer.length, demotion=demotion, swap=swap)

    def _allocate(self, transfer: Transfer) -> torch.Tensor:
        if transfer.target is Residency.HOST:
            return self.memory.allocate(transfer.length)
        slots: torch.Tensor | None = self._allocator.alloc(transfer.length)
        assert slots is not None, f"no {transfer.length} device tokens, which the core has free"
        return slots
