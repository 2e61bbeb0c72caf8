"""SGLang's memory as the mirror sees it: its allocator's device slots, and the host pool's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penelope.policy import Residency

if TYPE_CHECKING:
    from penelope.sglang_adapter.host_memory import HostMemory


class Memory:
    """Slots are tensors of indices.  Their values are never read: nothing waits for the device."""

    def __init__(self, allocator: Any, host: HostMemory | None) -> None:
        self._allocator = allocator
        self._host = host

    def available(self) -> int:
        return int(self._allocator.available_size())

    def allocate(self, units: int, tier: Residency) -> torch.Tensor:
        if tier is Residency.HOST:
            return self._there.allocate(units)
        slots: torch.Tensor | None = self._allocator.alloc(units)
        assert slots is not None, f"no {units} device tokens, which the core has free"
        return slots

    def free(self, slots: torch.Tensor, tier: Residency) -> None:
        if tier is Residency.HOST:
            self._there.free(slots)
        else:
            # Pieces of a node are whole pages: each starts at the beginning of one.
            self._allocator.free_segment(slots, start_pos=0)

    def copy(self, source: torch.Tensor, target: torch.Tensor, tier: Residency) -> None:
        device, host = (source, target) if tier is Residency.HOST else (target, source)
        self._there.copy(device, host, tier)

    @property
    def _there(self) -> HostMemory:
        assert self._host is not None, "host slots without a host tier"
        return self._host
