"""SGLang's prefix cache, kept by the pure core.

SGLang's allocator owns the device memory; a `Mirror` keeps the core's state beside it.  Here
SGLang's interface is answered from the mirror, and what happens there is counted and announced.
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
    InitLoadBackParams,
    MatchPrefixParams,
    MatchResult,
    TreeLock,
)

from penelope import policy
from penelope.policy import (
    Config,
    Effect,
    Key,
    Match,
    Namespace,
    Receipt,
    ReceiptId,
    Residency,
    State,
)
from penelope.runtime.exchange import Carried
from penelope.runtime.mirror import Mirror
from penelope.runtime.slots import SlotTable
from penelope.runtime.store import StoreError
from penelope.sglang_adapter.events import PlacementEvents
from penelope.sglang_adapter.memory import Memory
from penelope.sglang_adapter.options import Options
from penelope.sglang_adapter.paths import (
    Path,
    Range,
    namespace_of,
    pack_tokens,
    path_of,
    weights_of,
)
from penelope.sglang_adapter.refilling import Refilling
from penelope.sglang_adapter.sessions import Sessions
from penelope.sglang_adapter.statistics import Statistics
from penelope.sglang_adapter.waiting_line import WaitingLine

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    from penelope.sglang_adapter.host_memory import HostMemory

logger = logging.getLogger(__name__)

NO_PATH = Path()


class PenelopeCache(BasePrefixCache):
    """Keeps KV where recomputing it is dear, and finds it again behind holes."""

    def __init__(self, params: CacheInitParams, options: Options, linear_cost: int = 0) -> None:
        self.disable = False
        self.req_to_token_pool = params.req_to_token_pool
        self.token_to_kv_pool_allocator = params.token_to_kv_pool_allocator
        self.page_size: int = params.page_size
        self.sliding_window_size = None
        self.device = torch.device(self.token_to_kv_pool_allocator.device)
        self.options = options
        self.linear_cost = linear_cost
        self.statistics = Statistics()
        self.refilling = Refilling()
        self.host: HostMemory | None = None
        if options.host_tokens:
            # It relies on more of SGLang than the rest does.
            from penelope.sglang_adapter.host_memory import HostMemory

            pool = self.token_to_kv_pool_allocator.get_kvcache()
            self.host = HostMemory(pool, options.host_tokens, self.page_size)
        memory = Memory(self.token_to_kv_pool_allocator, self.host)
        self.mirror: Mirror[torch.Tensor] = Mirror(self._config(), memory, torch.cat, self)
        self.placement = PlacementEvents(params, options.kv_events)
        self.kv_events = self.placement.recorder
        self.weights = 0
        """How often the model's weights have changed: KV of others is another namespace's."""
        self.line = WaitingLine()
        self.sessions = Sessions(2 * self.state.config.logical_capacity, self.page_size)
        self._empty = torch.empty((0,), dtype=torch.int64, device=self.device)
        if params.enable_metrics:
            self.init_metrics_collector()
            self.statistics.export(self.metrics_collector)

    @property
    def state(self) -> State:
        """What the core holds now."""
        return self.mirror.state

    @property
    def slots(self) -> SlotTable[torch.Tensor]:
        """Which slots each of its nodes has."""
        return self.mirror.slots

    # What SGLang asks about

    @property
    def root_node(self) -> Path:
        return NO_PATH

    def evictable_size(self) -> int:
        """Device tokens that can be had: what is dropped or goes to the host makes way."""
        return self.state.totals.device - self.state.totals.locked

    def full_evictable_size(self) -> int:
        return self.evictable_size()

    def protected_size(self) -> int:
        return self.state.totals.locked

    def full_protected_size(self) -> int:
        return self.protected_size()

    def total_size(self) -> int:
        return self.state.totals.device

    def all_values_flatten(self) -> torch.Tensor:
        parts = [slots for _, _, slots in self.slots.items()]
        return torch.cat(parts) if parts else self._empty

    def pretty_print(self) -> None:
        """SGLang asks for it when an allocation has failed."""
        logger.error("%r", self.state)

    # Reading

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """Match through holes.

        The match counts as a use, as it does in SGLang's own trees, unless the queue is in view:
        then it is known that the request waits, and its use is what it will have computed.
        """
        matched = self._use(params.key, params.req)
        path = path_of(matched)
        # SGLang takes the device part for a prefix and the host part for what follows it.  Only
        # their sum is used before `init_load_back`, and then all of it is on the device.
        return MatchResult(
            device_prefix_len=path.end - path.host,
            last_device_node=path,
            last_host_node=path,
            best_match_node=path,
            host_hit_length=path.host,
            full_kv_hit_length=matched.device,
        )

    def touch_prefix(self, key: RadixKey) -> None:
        """Refused: a key does not say whose KV it is.  A hook calls `touch` instead."""
        raise TypeError("Penelope touches the prefix of a request, not of a key")

    def touch(self, key: RadixKey, req: Req) -> None:
        """A request that waits uses its prefix: it is not the least recent one."""
        self._use(key, req)

    def _use(self, key: RadixKey, req: Req) -> Match:
        packed, limit = self._packed(key)
        namespace = namespace_of(req, self.weights)
        matched = policy.match(self.state, packed, namespace, at_most=limit)
        if matched.spans and not self.options.queue_in_view:
            self.mirror.apply(*policy.touch(self.state, matched))
        return matched

    def path_device_indices(self, node: Path) -> torch.Tensor:
        """Slots along a path; those of page 0, never handed out, stand in for a hole."""
        if node.end == 0:
            return self._empty
        parts: list[torch.Tensor] = []
        for span in self.find(node).spans:
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
            for part in self.find(path).spans
            if part.start < end and part.end > start
        ]
        return torch.cat(found)

    def dfs_weight_order(self, node_handles: Iterable[Path]) -> list[int]:
        """Requests in depth-first order, the subtree with most requests first."""
        paths = [[span.node for span in self.find(p).spans] for p in node_handles]
        weight: dict[int, int] = {}
        for path in paths:
            for node in path:
                weight[node] = weight.get(node, 0) + 1
        # A request that ends in a node comes after those that go on below it.
        keys = [[(-weight[n], n) for n in path] + [(1, 0)] for path in paths]
        return sorted(range(len(paths)), key=lambda i: (keys[i], i))

    # Locks

    def inc_lock_ref(self, node: Path) -> IncLockRefResult:
        before = self.evictable_size()
        receipt = self.mirror.lock(self.find(node))
        return IncLockRefResult(delta=self.evictable_size() - before, node_id=int(receipt.id))

    def dec_lock_ref(self, node: Path, params: DecLockRefParams | None = None) -> DecLockRefResult:
        """Release by receipt; a second release of one receipt is refused by the core."""
        assert params is not None, "a lock is released with its receipt"
        before = self.evictable_size()
        self.mirror.release(Receipt(ReceiptId(params.node_id)))
        return DecLockRefResult(delta=self.evictable_size() - before)

    def lock_for_refill(self, path: Path) -> TreeLock:
        """Lock a path and undertake to refill its holes.

        SGLang allocates and evicts for the whole batch later, so nothing is reserved here.
        """
        receipt = self.mirror.undertake(self.find(path))
        return TreeLock(path, DecLockRefParams(node_id=int(receipt.id)))

    def release_aborted_request(self, handle: CacheRequestHandle) -> None:
        self.refilling.drop_if(handle, self)

    # Moving

    def init_load_back(self, params: InitLoadBackParams) -> tuple[int, Path] | None:
        """Bring the host part of a locked path to the device; None to try again later."""
        path: Path = params.best_match_node
        if not self.bring(path):
            return None
        return path.host, path_of(self.find(path))

    def bring(self, path: Path) -> bool:
        """Whether all KV of a locked path is on the device now."""
        if not path.host:
            return True
        self.look_at_queue()
        return self.mirror.bring(self.find(path))

    # Writing

    def refill(self, lock: TreeLock, span: Range, slots: torch.Tensor) -> None:
        """The slots that a phantom request computes become the tree's."""
        start, end = span
        step = policy.refill(self.state, _receipt(lock), start, end)
        surplus = self.mirror.apply(
            step.state, step.effects, lambda low, high: slots[low - start : high - start].clone()
        )
        assert not surplus, f"[{start}, {end}) had KV before it was refilled"
        self.statistics.add("phantom_tokens", end - start)

    def checkpoint(self, req: Req, *, up_to: int, **kwargs: Any) -> None:
        """Publish the request's KV, repoint its row onto the tree's copy, extend its lock."""
        if weights_of(req.lock.node.namespace) != self.weights:
            return  # Nobody will ask for KV that other weights computed.
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

        duplicates = self.mirror.apply(step.state, step.effects, offer)
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
        """Free what is asked for, or all there is: SGLang asks for a little more than it needs.

        With a host tier, what it has room for goes there instead of being dropped.
        """
        if params.num_tokens > self.evictable_size():
            self.refilling.yield_memory(self)
        need = min(params.num_tokens, self.evictable_size())
        if need <= 0:
            return EvictResult()
        started = time.perf_counter()
        self.look_at_queue()
        before = self.state.totals.device
        dropped = self.mirror.make_room(-(-need // self.page_size) * self.page_size)
        freed = before - self.state.totals.device
        self.statistics.add("evictions")
        self.statistics.add("evicted_tokens", dropped)
        self.statistics.add("over_evicted_tokens", freed - need)
        self.update_eviction_metrics(freed, started)
        return EvictResult(num_tokens_evicted=freed)

    def reset(self) -> None:
        """Forget everything.  SGLang clears the allocator itself."""
        self.refilling.drop(self)
        self.line.forget(self.mirror)
        self.sessions.clear()
        self.mirror.forget(self._config())
        if self.host is not None:
            self.host.clear()
        self.placement.cleared(self.weights)
        self.statistics.follow(self.state, ())

    def weights_changed(self) -> None:
        """The model computes other KV from now on.

        Requests that run keep what they have, as in SGLang; nobody else finds it.  What no
        request uses goes at once, in both tiers.
        """
        self.refilling.drop(self)
        if not self.state.nodes:
            return
        self.weights += 1
        self.line.forget(self.mirror)
        self.sessions.clear()
        self.placement.cleared(self.weights)
        self.statistics.add("evicted_tokens", self.mirror.drop_all())

    # What is known of the future

    def look_at_queue(self) -> None:
        """KV is about to go: who waits for some, in order of service?"""
        if self.options.queue_in_view:
            self.line.look(self.mirror, self.weights)

    def on_release(self, req: Req, *, checkpointed: bool) -> None:
        """A request has ended, or was retracted."""
        if checkpointed and req.finished():
            self.sessions.heard(self, req)

    # Inside

    def _config(self) -> Config:
        capacity = self.token_to_kv_pool_allocator.size
        return self.options.config(capacity, self.page_size, self.linear_cost)

    def find(self, path: Path) -> Match:
        """Where a path lies in the tree now."""
        return self.mirror.find(path.key, path.namespace, path.end)

    def followed(self, before: State, after: State, effects: tuple[Effect, ...]) -> None:
        self.placement.record(before, after, effects)
        self.line.count(self.statistics, before, effects)
        self.statistics.follow(after, effects)

    def carried(self, done: Carried) -> None:
        self.statistics.moved(done)

    def not_carried(self, error: StoreError) -> None:
        logger.error("Penelope leaves KV where it is: %s", error)
        self.statistics.add("failed_moves")

    def _packed(self, key: RadixKey) -> tuple[Key, int]:
        tokens: array[int] = key.token_ids
        length = len(key)
        return pack_tokens(tokens, length), length


def _receipt(lock: TreeLock) -> Receipt:
    return Receipt(ReceiptId(lock.receipt.node_id))


__all__ = ["NO_PATH", "Namespace", "PenelopeCache"]
