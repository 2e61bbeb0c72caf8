"""What the runtime asks of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penelope.policy import PenelopeError, Residency


class StoreError(PenelopeError):
    """A store could not do what it was asked to.  It has changed nothing."""


class KVStore(Protocol):
    """Slots of KV, one a unit, named by integers, in each tier.

    Every method does all or nothing.  A store of one tier never sees `Residency.HOST`.
    """

    def allocate(self, units: int, tier: Residency = Residency.DEVICE) -> list[int]:
        """Take `units` free slots.  Raises `StoreError` if there are fewer."""
        ...

    def free(self, slots: Sequence[int], host: Sequence[int] = ()) -> None:
        """Give slots of the device, and of the host, back.

        Raises `StoreError` if one is not allocated, or is named twice.
        """
        ...

    def copy(self, source: Sequence[int], target: Sequence[int], tier: Residency) -> None:
        """Copy KV, slot by slot, from the other tier into allocated slots of `tier`.

        Returns when the copy may be relied upon.  Raises `StoreError` if it failed.
        """
        ...
