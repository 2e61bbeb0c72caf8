"""What the suite must be able to do to a store besides using it: look inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penelope.policy import Config, Residency
from penelope.runtime.store import KVStore
from penelope.runtime.symbolic import SymbolicStore


class InspectableStore(KVStore, Protocol):
    """A `KVStore` into which the suite can look: yours, with three methods more.

    A *mark* stands for the KV of one unit: an integer in [1, 2**31).  Keep it where the KV of the
    slot is kept (in a corner of the K of one layer, say): then what happens to the KV happens to
    the mark.
    """

    def write(self, slots: Sequence[int], marks: Sequence[int], tier: Residency) -> None:
        """Put one mark into each slot, as a batch of the model puts KV there."""
        ...

    def read(self, slots: Sequence[int], tier: Residency) -> Sequence[int]:
        """The mark that each slot holds now."""
        ...

    def room(self, tier: Residency) -> int:
        """How many slots the store says are free in a tier; 0 for a tier that it has not."""
        ...


class InspectableSymbolicStore(SymbolicStore):
    """The project's own symbolic store, with marks for digests."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.device_capacity, config.host_capacity)

    def write(self, slots: Sequence[int], marks: Sequence[int], tier: Residency) -> None:
        held = self._pools[tier].held
        for slot, mark in zip(slots, marks, strict=True):
            held[slot] = mark.to_bytes(4)

    def read(self, slots: Sequence[int], tier: Residency) -> list[int]:
        held = self._pools[tier].held
        return [int.from_bytes(held.get(slot) or b"") for slot in slots]

    def room(self, tier: Residency) -> int:
        return len(self._pools[tier].free)
