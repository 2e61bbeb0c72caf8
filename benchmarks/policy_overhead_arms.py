"""The caches that are compared, each asked in the way in which SGLang asks it.

None has pools: slots are numbers, nothing is allocated, and what is freed is forgotten.  What is
left is what the tree itself costs.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from benchmarks.policy_overhead_stream import LONGEST, VOCABULARY
from penelope import policy
from penelope.sglang_adapter.cache import PenelopeCache
from penelope.sglang_adapter.options import Options
from penelope.sglang_adapter.paths import Path

SLOTS = torch.arange(LONGEST + 1024)
"""The slot of every position: values mean nothing here."""
LINEAR_COST = 23_552
"""That of Qwen3-8B, in tokens."""
WAITING, WAITING_TOKENS = 100, 100_000
FURTHER = array("q", [VOCABULARY - 1]) * WAITING_TOKENS
"""What a request that waits has beyond what is in the tree."""
SCATTER = 7_919
"""Who waits for which history: far apart, one after another."""


class NoAllocator:
    """Gives nothing, and takes back whatever is freed: memory is full, whoever asks."""

    device = "cpu"
    size = 1 << 40

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size

    def available_size(self) -> int:
        return 0

    def free_segment(self, slots: torch.Tensor, start_pos: int) -> None:
        pass


class OneRow:
    """A request pool in which every request has the same row."""

    req_to_token = SLOTS.to(torch.int32)[None]

    def write(self, where: object, slots: torch.Tensor) -> None:
        pass


@dataclass(slots=True)
class Running:
    """What an engine keeps of a request in progress."""

    tokens: array[int]
    lock: Any = None
    cached: int = 0
    """Tokens of it that the tree has, as far as the request knows."""
    phantoms: list[Any] = field(default_factory=list)
    """Locks of the requests that refill its holes."""


class Arm(Protocol):
    """One cache.  Each method is what is timed of it."""

    name: str

    def match(self, tokens: array[int]) -> tuple[int, Any]:
        """Tokens found from the beginning without a gap, and the handle of the match."""

    def lock(self, running: Running, handle: Any) -> None: ...

    def evict(self, tokens: int) -> int:
        """Tokens that were evicted: at least so many."""

    def checkpoint(self, running: Running) -> None:
        """A prompt is computed: it joins the tree, and the lock moves to its end."""

    def insert(self, running: Running) -> None:
        """A request has ended: its history joins the tree."""

    def unlock(self, running: Running) -> None: ...

    def fill(self, tokens: array[int]) -> None:
        """A history that nobody runs: not timed."""

    def moves_up(self) -> None:
        """The queue, where there is one: the first is admitted and another arrives.  Not timed."""

    def idle(self) -> int | None:
        """Leaves that nobody holds, None where the tree does not tell: not timed."""


NOBODYS = SimpleNamespace(lora_id=None, extra_key=None, cache_salt=None)
"""As much of a request as names its KV."""


class Ours:
    """The policy core behind the adapter's cache."""

    def __init__(self, page_size: int, name: str) -> None:
        self.name = name
        position, granularity = policy.named_policy(name)
        order, in_view = policy.ordering(name)
        parameters = CacheInitParams(
            disable=False,
            req_to_token_pool=OneRow(),
            token_to_kv_pool_allocator=NoAllocator(page_size),
            page_size=page_size,
        )
        options = Options(position, granularity, order=order, queue_in_view=in_view)
        self.cache = PenelopeCache(parameters, options, linear_cost=LINEAR_COST)

    def match(self, tokens: array[int]) -> tuple[int, Path]:
        found = self.cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens), req=NOBODYS))
        path: Path = found.last_device_node
        gaps = path.holes + path.awaits
        return min((start for start, _ in gaps), default=path.end), path

    def lock(self, running: Running, handle: Path) -> None:
        running.lock = self.cache.lock(handle)
        running.cached = handle.end
        if handle.holes:
            # As the adapter admits: each phantom request holds a lock too.
            plain, running.lock = running.lock, self.cache.lock_for_refill(handle)
            self.cache.unlock(plain)
            running.phantoms = [self.cache.lock(handle) for _ in handle.holes]

    def evict(self, tokens: int) -> int:
        evicted: int = self.cache.evict(EvictParams(num_tokens=tokens)).num_tokens_evicted
        return evicted

    def checkpoint(self, running: Running) -> None:
        for span, phantom in zip(running.lock.node.holes, running.phantoms, strict=True):
            self.cache.refill(running.lock, span, SLOTS[span[0] : span[1]])
            self.cache.unlock(phantom)
        running.phantoms = []
        self.insert(running)

    def insert(self, running: Running) -> None:
        kv = SimpleNamespace(
            cache_protected_len=running.cached, cache_inserted_len=0, req_pool_idx=0
        )
        request: Any = SimpleNamespace(
            full_untruncated_fill_ids=running.tokens, kv=kv, lock=running.lock, last_node=None
        )
        self.cache.checkpoint(request, up_to=len(running.tokens))
        running.cached = kv.cache_protected_len

    def unlock(self, running: Running) -> None:
        self.cache.unlock(running.lock)

    def fill(self, tokens: array[int]) -> None:
        _, path = self.match(tokens)
        running = Running(tokens)
        self.lock(running, path)
        self.checkpoint(running)
        self.unlock(running)

    def moves_up(self) -> None:
        pass

    def idle(self) -> int:
        return self.cache.state.victims.size


class Queued(Ours):
    """The same with requests that wait, which the cache looks at before it evicts.

    Each waits for one of the histories in the tree, early ones and late ones, and has much to
    compute beyond it.
    """

    def __init__(self, page_size: int, name: str) -> None:
        super().__init__(page_size, name)
        self.histories: list[array[int]] = []
        self.arrived = 0
        self.waiting: deque[Any] = deque()
        self.cache.line.follow(lambda: self.waiting)

    def fill(self, tokens: array[int]) -> None:
        super().fill(tokens)
        self.histories.append(tokens)

    def moves_up(self) -> None:
        if self.waiting:
            self.waiting.popleft()
        while len(self.waiting) < WAITING:
            self.arrived += 1
            self.waiting.append(self._arrival())

    def _arrival(self) -> SimpleNamespace:
        """As much of a request as the adapter reads of one that waits."""
        tokens = self.histories[self.arrived * SCATTER % len(self.histories)] + FURTHER
        return SimpleNamespace(
            origin_input_ids=tokens[:WAITING_TOKENS],
            output_ids=array("q"),
            retraction_count=0,
            lock=None,
            positional_embed_overrides=None,
            _compute_max_prefix_len=lambda length: length - 1,
            **vars(NOBODYS),
        )


class Stock:
    """A tree of SGLang's: a node is a handle, and a lock moves by matching again."""

    def __init__(self, name: str, cache: Any) -> None:
        self.name = name
        self.cache = cache

    def match(self, tokens: array[int]) -> tuple[int, Any]:
        found = self.cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens)))
        return found.device_prefix_len, found.last_device_node

    def lock(self, running: Running, handle: Any) -> None:
        running.lock = self.cache.lock(handle)

    def evict(self, tokens: int) -> int:
        evicted: int = self.cache.evict(EvictParams(num_tokens=tokens)).num_tokens_evicted
        return evicted

    def checkpoint(self, running: Running) -> None:
        self.insert(running)
        _, handle = self.match(running.tokens)
        self.cache.unlock(running.lock)
        self.lock(running, handle)

    def insert(self, running: Running) -> None:
        length = len(running.tokens)
        self.cache.insert(
            InsertParams(
                key=RadixKey(running.tokens), value=SLOTS[:length], inserted_len=running.cached
            )
        )
        running.cached = length

    def unlock(self, running: Running) -> None:
        self.cache.unlock(running.lock)

    def fill(self, tokens: array[int]) -> None:
        self.insert(Running(tokens))

    def moves_up(self) -> None:
        pass

    def idle(self) -> int | None:
        return len(self.cache.evictable_leaves) if isinstance(self.cache, RadixCache) else None


def python_tree(page_size: int) -> Stock:
    allocator = NoAllocator(page_size)
    cache = RadixCache.create_simulated(mock_allocator=allocator, page_size=page_size)
    return Stock("RadixCache (Python)", cache)


def rust_tree(page_size: int) -> Stock:
    """SGLang's default.  Raises `RuntimeError` where SGLang would fall back to Python."""
    parameters = CacheInitParams(
        disable=False,
        req_to_token_pool=None,
        token_to_kv_pool_allocator=NoAllocator(page_size),
        page_size=page_size,
        tree_components=(ComponentType.FULL,),
    )
    cache = UnifiedRadixCache(parameters)
    if type(cache.tree_core).__name__ != "RustUnifiedTreeCore":
        raise RuntimeError(f"SGLang falls back to {type(cache.tree_core).__name__} here")
    return Stock("UnifiedRadixCache (Rust)", cache)


PENELOPE, LRU, QUEUED = "penelope", "sglang-lru", "expected-cost"
PYTHON, RUST = "RadixCache (Python)", "UnifiedRadixCache (Rust)"
ARMS: dict[str, Callable[[int], Arm]] = {
    PENELOPE: lambda page_size: Ours(page_size, PENELOPE),
    LRU: lambda page_size: Ours(page_size, LRU),
    QUEUED: lambda page_size: Queued(page_size, QUEUED),
    PYTHON: python_tree,
    RUST: rust_tree,
}
