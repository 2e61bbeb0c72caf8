"""What the runtime asks of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penelope.policy.errors import PenelopeError


class StoreError(PenelopeError):
    """A store could not do what it was asked to.  It has changed nothing."""


class KVStore(Protocol):
    """Slots of KV, one a unit, named by integers.  Every method does all or nothing."""

    def allocate(self, units: int) -> list[int]:
        """Take `units` free slots.  Raises `StoreError` if there are fewer."""
        ...

    def free(self, slots: Sequence[int]) -> None:
        """Give slots back.  Raises `StoreError` if one is not allocated, or is named twice."""
        ...

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy KV from slot to slot, pair by pair; all slots are allocated, the targets written."""
        ...
