"""Which KV slots a node owns: the runtime's table, over tensors of slot indices.

Nothing here reads a tensor's values, so nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from penelope.policy import Effect, NodeId, Reset, Residency
from penelope.runtime import slots as runtime

Offer = Callable[[int, int], torch.Tensor]
"""The caller's slots for positions [start, end)."""


class SlotTable:
    """Follows effects; gives freed slots, whole pages at a time, to the callback of their tier."""

    def __init__(
        self,
        free: Callable[[torch.Tensor], None],
        free_host: Callable[[torch.Tensor], None],
        device: torch.device,
    ) -> None:
        self._free = free
        self._free_host = free_host
        self._table: runtime.SlotTable[torch.Tensor] = runtime.SlotTable(torch.cat)
        self._empty = torch.empty((0,), dtype=torch.int64, device=device)

    def __contains__(self, node: NodeId) -> bool:
        return node in self._table.nodes()

    def items(
        self, tier: Residency = Residency.DEVICE
    ) -> Iterator[tuple[NodeId, int, torch.Tensor]]:
        """(node, start, slots) of every node with KV in a tier."""
        for node, rope in self._table.ropes():
            if rope.tier is tier:
                yield node, rope.start, _whole(rope.pieces)

    @property
    def empty(self) -> torch.Tensor:
        return self._empty

    def apply(self, effects: Iterable[Effect], offer: Offer | None = None) -> list[tuple[int, int]]:
        """Carry out effects in order; returns the spans whose offered slots are surplus."""
        staged = self._table.stage(effects, offer)
        self._table.commit(staged)
        for slots in staged.freed:
            self._free(slots)
        for slots in staged.freed_host:
            self._free_host(slots)
        return [(start, start + len(own)) for start, own in staged.surplus]

    def clear(self) -> None:
        """Forget everything; the slots are free by other means."""
        self._table.commit(self._table.stage([Reset()]))

    def part(self, node: NodeId, start: int, end: int) -> torch.Tensor:
        """Slots of positions [start, end) of a resident node."""
        return _whole(self._table.slots(node, start, end))


def _whole(pieces: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
