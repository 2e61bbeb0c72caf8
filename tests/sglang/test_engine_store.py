"""SGLang's own memory, and the adapter's table of slots, under the conformance suite."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest

from penelope.policy import Config, Residency
from penelope.runtime.store import StoreError
from penelope.testing import (
    TWO_TIERS,
    ConformanceError,
    InspectableStore,
    StoreSuite,
    check_store,
)

pytestmark = [pytest.mark.sglang, pytest.mark.smoke]

DEVICE, HOST = Residency.DEVICE, Residency.HOST


class EngineStore:
    """SGLang's allocator and KV pool, and the adapter's host memory: K and V of two layers."""

    def __init__(self, config: Config) -> None:
        import torch
        from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        from penelope.sglang_adapter.host_memory import HostMemory

        self.torch = torch
        size = config.device_capacity
        self.pool: Any = MHATokenToKVPool(
            size,
            page_size=1,
            dtype=torch.float32,
            head_num=1,
            head_dim=4,
            layer_num=2,
            device="cpu",
            enable_memory_saver=False,
        )
        self.allocator = TokenToKVPoolAllocator(size, torch.float32, "cpu", self.pool, False)
        host = config.host_capacity
        self.memory: Any = HostMemory(self.pool, host, 1) if host else None

    def allocate(self, units: int, tier: Residency = DEVICE) -> list[int]:
        if tier is HOST:
            if units == 0:
                return []
            if self.memory is None:
                raise StoreError("there is no host")
            return [int(slot) for slot in self.memory.allocate(units)]
        slots = self.allocator.alloc(units)
        if slots is None:
            raise StoreError(f"{units} slots are asked for")
        return [int(slot) for slot in slots]

    def free(self, slots: Sequence[int], host: Sequence[int] = ()) -> None:
        self.allocator.free(self._indices(slots))
        if host:
            self.memory.free(self._indices(host))

    def copy(self, source: Sequence[int], target: Sequence[int], tier: Residency) -> None:
        device, host = (target, source) if tier is DEVICE else (source, target)
        self.memory.copy(self._indices(device), self._indices(host), tier)

    def write(self, slots: Sequence[int], marks: Sequence[int], tier: Residency) -> None:
        """The bits of the mark, in K and in V of both layers."""
        values = self.torch.tensor(marks, dtype=self.torch.int32).view(self.torch.float32)
        for buffer in self._buffers(tier):
            buffer[self._indices(slots)] = values.reshape(-1, 1, 1).expand(-1, 1, 4)

    def read(self, slots: Sequence[int], tier: Residency) -> list[int]:
        """The mark, if all layers have it."""
        found = []
        for slot in slots:
            rows = [buffer[slot].contiguous() for buffer in self._buffers(tier)]
            marks = self.torch.cat(rows).view(self.torch.int32).unique().tolist()
            found.append(marks[0] if len(marks) == 1 else -1)
        return found

    def room(self, tier: Residency) -> int:
        if tier is HOST:
            return 0 if self.memory is None else int(self.memory.available())
        return int(self.allocator.available_size())

    def _buffers(self, tier: Residency) -> list[Any]:
        if tier is DEVICE:
            return [*self.pool.k_buffer, *self.pool.v_buffer]
        return list(chain(*self.memory.pool.kv_buffer))

    def _indices(self, slots: Sequence[int]) -> Any:
        return self.torch.tensor(list(slots), dtype=self.torch.int64)


class TestEngineStore(StoreSuite):
    operations = 200
    misuse = False  # SGLang's pools trust their callers

    def make_store(self, config: Config) -> InspectableStore:
        return EngineStore(config)


def test_a_copy_that_leaves_out_a_layer_is_noticed() -> None:
    class OneLayer(EngineStore):
        def copy(self, source: Sequence[int], target: Sequence[int], tier: Residency) -> None:
            kept = self.pool.k_buffer[1].clone()
            super().copy(source, target, tier)
            self.pool.k_buffer[1].copy_(kept)

    with pytest.raises(ConformanceError, match=r"^moves-do-not-evict: "):
        check_store(OneLayer, config=TWO_TIERS, misuse=False)
