"""The one request whose holes take more than one scheduler step to refill.

Its path stays locked between the steps, or its own later parts could evict what
the earlier ones filled.  There is at most one such request, as there is one
chunked request in SGLang: two that each held half of the memory would wait for
each other.  It is scheduled before all others until it is admitted, so
newcomers that the scheduling policy prefers cannot starve it; and it lets go of
its lock in a step in which it cannot go on, so it cannot starve them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from penelope.sglang_adapter.paths import Range

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, TreeLock


class Locks(Protocol):
    def lock(self, node: Any) -> Any: ...

    def unlock(self, lock: Any) -> None: ...


class Refilling:
    def __init__(self) -> None:
        self.req: Req | None = None
        self._lock: TreeLock | None = None
        self._settled = False
        self.filled: list[Range] = []
        """What was recomputed for the request in earlier steps: not a cache hit of its own."""
        self.brought = 0
        """Tokens that were brought back from the host for the request in earlier steps."""

    def may_begin(self, req: Req) -> bool:
        """Whether this request may take several steps: no other one does."""
        return self.req is None or self.req is req

    def hold(
        self, req: Req, lock: TreeLock, parts: Sequence[Range], cache: Locks, brought: int = 0
    ) -> None:
        """These parts of its holes are being refilled; it keeps its place and its path."""
        assert self.may_begin(req), "two requests refill over several steps"
        self.let_go(cache)
        self.req, self._lock, self._settled = req, lock, False
        self.filled.extend(parts)
        self.brought += brought

    def settle(self, cache: Locks) -> None:
        """This step's parts have their slots: between steps a plain lock is enough.

        The lock that undertook the refill marks what is left of the holes as arriving, and the
        next step must see it as missing.
        """
        if self._lock is None or self._settled:
            return
        undertaken = self._lock
        self._lock, self._settled = cache.lock(undertaken.node), True
        cache.unlock(undertaken)

    def yield_memory(self, cache: Locks) -> None:
        """Somebody else is short of memory and the request is only waiting for its next step."""
        if self._settled:
            self.let_go(cache)

    def let_go(self, cache: Locks) -> None:
        """Give up the path, not the place in front."""
        lock, self._lock, self._settled = self._lock, None, False
        if lock is not None:
            cache.unlock(lock)

    def drop(self, cache: Locks) -> None:
        """The request was admitted, or it is gone."""
        self.let_go(cache)
        self.req = None
        self.filled = []
        self.brought = 0

    def drop_if(self, handle: CacheRequestHandle, cache: Locks) -> None:
        if self.req is not None and self.req.cache_request_handle == handle:
            self.drop(cache)

    def move_to_front(self, waiting: list[Req], cache: Locks) -> None:
        """Reorder the waiting queue in place; a request that has left it holds nothing up."""
        if self.req is None:
            return
        for index, req in enumerate(waiting):
            if req is self.req:
                waiting.insert(0, waiting.pop(index))
                return
        self.drop(cache)
