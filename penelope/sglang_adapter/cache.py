"""SGLang's prefix cache, kept by the pure core.

One mutable cell, ``state``; every operation is a pure step whose effects the
slot table carries out.  SGLang's allocator owns the memory: the core is told
what SGLang allocated and freed, and reserves nothing itself.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    CacheRequestHandle,
    DecLockRefParams,
    DecLockRefResult,
    EvictParams,
    EvictResult,
    IncLockRefResult,
    MatchPrefixParams,
    MatchResult,
    TreeLock,
)

from penelope import policy
from penelope.policy import (
    Effect,
    Key,
    Match,
    Namespace,
    Plan,
    Receipt,
    ReceiptId,
    Residency,
    State,
)
from penelope.sglang_adapter.events import PlacementEvents
from penelope.sglang_adapter.options import Options
from penelope.sglang_adapter.paths import Path, Range, namespace_of, pack_tokens, path_of
from penelope.sglang_adapter.refilling import Refilling
from penelope.sglang_adapter.slots import Offer, SlotTable
from penelope.sglang_adapter.statistics import Statistics

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

logger = logging.getLogger(__name__)

NO_PATH = Path()


class PenelopeCache(BasePrefixCache):
    """Keeps KV where recomputing it is dear, and finds it again behind holes."""

    def __init__(self, params: CacheInitParams, options: Options) -> None:
        self.disable = False
        self.req_to_token_pool = params.req_to_token_pool
        self.token_to_kv_pool_allocator = params.token_to_kv_pool_allocator
        self.page_size: int = params.page_size
        self.sliding_window_size = None
        self.device = torch.device(self.token_to_kv_pool_allocator.device)
        self.options = options
        self.statistics = Statistics()
        self.refilling = Refilling()
        self.slots = SlotTable(self._free_slots, self.device)
        self.placement = PlacementEvents(params)
        self.kv_events = self.placement.recorder
        self._recent: Match | None = None
        self.state = self._empty_state()
        if params.enable_metrics:
            self.init_metrics_collector()
            self.statistics.export(self.metrics_collector)

    # What SGLang asks about

    @property
    def root_node(self) -> Path:
        return NO_PATH

    def evictable_size(self) -> int:
        return self.state.evictable

    def full_evictable_size(self) -> int:
        return self.state.evictable

    def protected_size(self) -> int:
        return self.state.protected

    def full_protected_size(self) -> int:
        return self.state.protected

    def total_size(self) -> int:
        return self.state.totals.device

    def all_values_flatten(self) -> torch.Tensor:
        parts = [slots for _, _, slots in self.slots.items()]
        return torch.cat(parts) if parts else self.slots.empty

    def pretty_print(self) -> None:
        """SGLang asks for it when an allocation has failed."""
        logger.error("%r", self.state)

    # Reading

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """Match through holes; the match counts as a use, as it does in SGLang's own trees."""
        key, limit = self._packed(params.key)
        namespace = namespace_of(params.key, params.req)
        matched = policy.match(self.state, key, namespace, at_most=limit)
        if matched.spans:
            self._apply(*policy.touch(self.state, matched))
        path = path_of(matched)
        return MatchResult(
            device_prefix_len=path.end,
            last_device_node=path,
            last_host_node=path,
            best_match_node=path,
            full_kv_hit_length=matched.device,
        )

    def touch_prefix(self, key: RadixKey) -> None:
        packed, limit = self._packed(key)
        matched = policy.match(self.state, packed, namespace_of(key), at_most=limit)
        if matched.spans:
            self._apply(*policy.touch(self.state, matched))

    def path_device_indices(self, node: Path) -> torch.Tensor:
        """Slots along a path; those of page 0, never handed out, stand in for a hole."""
        if node.end == 0:
            return self.slots.empty
        parts: list[torch.Tensor] = []
        for span in self._find(node).spans:
            if span.residency is Residency.DEVICE:
                parts.append(self.slots.part(span.node, span.start, span.end))
            else:
                parts.append(self._placeholder(span.start, span.end))
        return torch.cat(parts)

    def _placeholder(self, start: int, end: int) -> torch.Tensor:
        """Stands in for missing KV until it is refilled, at the right offsets within a page.

        The allocator checks the last slot of a prefix against its position.
        """
        return torch.arange(start, end, dtype=torch.int64, device=self.device) % self.page_size

    def slots_between(self, path: Path, span: Range) -> torch.Tensor:
        """Slots of a resident part of a path."""
        start, end = span
        found = [
            self.slots.part(part.node, max(start, part.start), min(end, part.end))
            for part in self._find(path).spans
            if part.start < end and part.end > start
        ]
        return torch.cat(found)

    def dfs_weight_order(self, node_handles: Iterable[Path]) -> list[int]:
        """Requests in depth-first order, the subtree with most requests first."""
        paths = [[span.node for span in self._find(p).spans] for p in node_handles]
        weight: dict[int, int] = {}
        for path in paths:
            for node in path:
                weight[node] = weight.get(node, 0) + 1
        # A request that ends in a node comes after those that go on below it.
        keys = [[(-weight[n], n) for n in path] + [(1, 0)] for path in paths]
        return sorted(range(len(paths)), key=lambda i: (keys[i], i))

    # Locks

    def inc_lock_ref(self, node: Path) -> IncLockRefResult:
        before = self.state.evictable
        acquired = policy.acquire(self.state, self._find(node))
        self._apply(acquired.state, acquired.effects)
        return IncLockRefResult(
            delta=self.state.evictable - before, node_id=int(acquired.receipt.id)
        )

    def dec_lock_ref(self, node: Path, params: DecLockRefParams | None = None) -> DecLockRefResult:
        """Release by receipt; a second release of one receipt is refused by the core."""
        assert params is not None, "a lock is released with its receipt"
        before = self.state.evictable
        self._apply(*policy.release(self.state, Receipt(ReceiptId(params.node_id))))
        return DecLockRefResult(delta=self.state.evictable - before)

    def lock_for_refill(self, path: Path) -> TreeLock:
        """Lock a path and undertake to refill its holes.

        SGLang allocates and evicts for the whole batch later, so nothing is reserved here.
        """
        matched = self._find(path)
        undertaken = Plan(matched, path.holes, path.awaits, allocate=0, evict=0, available=0)
        admitted = policy.admit(self.state, undertaken)
        self._apply(admitted.state, admitted.effects)
        return TreeLock(path, DecLockRefParams(node_id=int(admitted.receipt.id)))

    def release_aborted_request(self, handle: CacheRequestHandle) -> None:
        self.refilling.drop_if(handle, self)

    # Writing

    def refill(self, lock: TreeLock, span: Range, slots: torch.Tensor) -> None:
        """The slots that a phantom request computes become the tree's."""
        start, end = span
        step = policy.refill(self.state, _receipt(lock), start, end)
        surplus = self._apply(
            step.state, step.effects, lambda low, high: slots[low - start : high - start].clone()
        )
        assert not surplus, f"[{start}, {end}) had KV before it was refilled"
        self.statistics.add("phantom_tokens", end - start)

    def checkpoint(self, req: Req, *, up_to: int, **kwargs: Any) -> None:
        """Publish the request's KV, repoint its row onto the tree's copy, extend its lock."""
        # Under overlap a mixed batch may have moved `extend_end` on by a token that is not
        # known yet.
        known = min(up_to, len(req.full_untruncated_fill_ids))
        aligned = known // self.page_size * self.page_size
        protected: int = req.kv.cache_protected_len
        if aligned <= protected:
            return
        row = self.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
        key = pack_tokens(req.full_untruncated_fill_ids, aligned)
        step = policy.checkpoint(self.state, _receipt(req.lock), key)

        def offer(start: int, end: int) -> torch.Tensor:
            return row[start:end].to(dtype=torch.int64, copy=True)

        duplicates = self._apply(step.state, step.effects, offer)
        path = Path(req.lock.node.namespace, key, aligned)
        for start, end in duplicates:
            self._replace_duplicate(req, start, end, self.slots_between(path, (start, end)))
        req.kv.cache_protected_len = aligned
        req.kv.cache_inserted_len = max(req.kv.cache_inserted_len, aligned)
        req.last_node = req.lock.node = path

    def _replace_duplicate(self, req: Req, start: int, end: int, kept: torch.Tensor) -> None:
        """The tree already had [start, end): the request gives its own copy back."""
        row = self.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
        own = row[start:end].to(dtype=torch.int64, copy=True)
        self.token_to_kv_pool_allocator.free_segment(own, start_pos=start)
        self.req_to_token_pool.write((req.kv.req_pool_idx, slice(start, end)), kept.to(row.dtype))

    def evict(self, params: EvictParams) -> EvictResult:
        """Free what is asked for, or all there is: SGLang asks for a little more than it needs."""
        if params.num_tokens > self.state.evictable:
            self.refilling.yield_memory(self)
        need = min(params.num_tokens, self.state.evictable)
        if need <= 0:
            return EvictResult()
        started = time.perf_counter()
        step = policy.evict(self.state, need)
        self._apply(step.state, step.effects)
        self.statistics.add("evictions")
        self.statistics.add("evicted_tokens", step.freed)
        self.statistics.add("over_evicted_tokens", step.freed - need)
        self.update_eviction_metrics(step.freed, started)
        return EvictResult(num_tokens_evicted=step.freed)

    def reset(self) -> None:
        """Forget everything.  SGLang clears the allocator itself."""
        self.refilling.drop(self)
        policy.reset(self.state)  # refuses while a request holds a lock
        self.slots.clear()
        self.state = self._empty_state()
        self._recent = None
        self.placement.cleared()

    # Inside

    def _empty_state(self) -> State:
        return policy.empty(
            policy.Config(
                device_capacity=self.token_to_kv_pool_allocator.size,
                page_size=self.page_size,
                block_size=self.options.block_for(self.page_size),
                position=self.options.position,
                granularity=self.options.granularity,
            )
        )

    def _find(self, path: Path) -> Match:
        """Where a path lies in the tree now."""
        recent = self._recent
        if (
            recent is None
            or recent.made_on is not self.state
            or recent.end != path.end
            or recent.key != path.key
            or recent.namespace != path.namespace
        ):
            recent = policy.match(self.state, path.key, path.namespace, at_most=path.end)
            assert recent.end == path.end, f"{path.end} tokens were matched, {recent.end} are left"
            self._recent = recent
        return recent

    def _apply(
        self, state: State, effects: tuple[Effect, ...], offer: Offer | None = None
    ) -> list[Range]:
        before, self.state = self.state, state
        self.placement.record(before, state, effects)
        surplus = self.slots.apply(effects, offer)
        self.statistics.holes(state.totals.hole)
        return surplus

    def _free_slots(self, slots: torch.Tensor) -> None:
        # Pieces of a node are whole pages: each starts at the beginning of one.
        self.token_to_kv_pool_allocator.free_segment(slots, start_pos=0)

    def _packed(self, key: RadixKey) -> tuple[Key, int]:
        tokens: array[int] = key.token_ids
        length = len(key)
        return pack_tokens(tokens, length), length


def _receipt(lock: TreeLock) -> Receipt:
    return Receipt(ReceiptId(lock.receipt.node_id))


__all__ = ["NO_PATH", "Namespace", "PenelopeCache"]
