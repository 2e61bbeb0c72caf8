"""Which KV slots a node owns: the memory side of the pure core.

The core decides in spans and node ids; this table keeps a tensor of slot
indices for every resident node and follows the effects.  A hole has no entry:
it carries no slots.  Nothing here reads a tensor's values, so nothing waits for
the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from penelope.policy import Adopt, Effect, Free, Merge, NodeId, Remove, Reset, Split, Surplus

Offer = Callable[[int, int], torch.Tensor]
"""The caller's slots for positions [start, end)."""


class SlotTable:
    """Follows effects; reports freed and surplus slots to the callbacks."""

    def __init__(self, free: Callable[[torch.Tensor, int], None], device: torch.device) -> None:
        self._free = free
        self._slots: dict[NodeId, tuple[int, torch.Tensor]] = {}
        self._empty = torch.empty((0,), dtype=torch.int64, device=device)

    def __getitem__(self, node: NodeId) -> torch.Tensor:
        """Slots of a resident node, in position order."""
        return self._slots[node][1]

    def __contains__(self, node: NodeId) -> bool:
        return node in self._slots

    def items(self) -> Iterator[tuple[NodeId, int, torch.Tensor]]:
        """(node, start, slots) of every resident node."""
        for node, (start, slots) in self._slots.items():
            yield node, start, slots

    @property
    def empty(self) -> torch.Tensor:
        return self._empty

    def apply(self, effects: Iterable[Effect], offer: Offer | None = None) -> list[tuple[int, int]]:
        """Carry out effects in order; returns the spans whose offered slots are surplus."""
        surplus: list[tuple[int, int]] = []
        for effect in effects:
            match effect:
                case Split(node, upper, at):
                    self._split(node, upper, at)
                case Merge(upper, node):
                    self._merge(upper, node)
                case Free(node, start, _):
                    self._free(self._slots.pop(node)[1], start)
                case Adopt(node, start, end):
                    assert offer is not None, "slots are adopted only when offered"
                    self._slots[node] = (start, offer(start, end))
                case Surplus(_, start, end):
                    surplus.append((start, end))
                case Remove(_):
                    pass  # a hole: it has no slots
                case Reset():
                    self._slots.clear()
        return surplus

    def part(self, node: NodeId, start: int, end: int) -> torch.Tensor:
        """Slots of positions [start, end) of a resident node."""
        first, slots = self._slots[node]
        return slots[start - first : end - first]

    def _split(self, node: NodeId, upper: NodeId, at: int) -> None:
        if node not in self._slots:
            return
        start, slots = self._slots[node]
        self._slots[upper] = (start, slots[: at - start])
        self._slots[node] = (at, slots[at - start :])

    def _merge(self, upper: NodeId, node: NodeId) -> None:
        if upper not in self._slots:
            return
        start, above = self._slots.pop(upper)
        self._slots[node] = (start, torch.cat([above, self._slots[node][1]]))
