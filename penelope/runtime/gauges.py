"""What each tier holds now, and what has become of the KV that moved: numbers to export.

One number for one thing: a tier that is full of idle KV is not in transfer, and KV that was copied
out and dropped without a read is neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from penelope.policy import Adopt, Effect, Free, Moved, Residency, State, Unmoved


class Gauge(NamedTuple):
    """One tier at one moment, in units."""

    resident: int
    evictable: int
    """Resident, and in nobody's use."""
    in_transfer: int
    """Being written to this tier by moves in flight: neither resident here nor free."""
    orphaned: int
    """Of these, for requests that have ended.  They become free when their moves fail."""


def gauge(state: State, tier: Residency) -> Gauge:
    """Raises `ValueError` for `Residency.HOLE`, which is no tier."""
    if tier is Residency.HOLE:
        raise ValueError("a hole is no tier: choose DEVICE or HOST")
    totals = state.totals
    orphaned = sum(
        move.length
        for move in state.moves.values()
        if move.target is tier and move.receipt is not None and move.receipt not in state.leases
    )
    if tier is Residency.DEVICE:
        evictable = totals.device - totals.locked
        return Gauge(totals.device, evictable, totals.inbound, orphaned)
    return Gauge(totals.host, totals.host - totals.locked_host, totals.outbound, orphaned)


class Flow(NamedTuple):
    """What has happened since a cache was made, in units."""

    demoted: int = 0
    promoted: int = 0
    failed: int = 0
    """Of moves that were given up."""
    dropped: int = 0
    """Evicted from the device."""
    dropped_unread: int = 0
    """Evicted from the host: copied out, and never read again."""
    replaced: int = 0
    """Host KV that made way for the same KV, computed again."""

    def after(self, effects: Sequence[Effect]) -> Flow:
        """With what these effects of one transition add."""
        count = dict.fromkeys(self._fields, 0)
        for effect, then in zip_longest(effects, effects[1:]):
            match effect:
                case Moved(_, _, start, end, target):
                    count["demoted" if target is Residency.HOST else "promoted"] += end - start
                case Unmoved(_, start, end, _):
                    count["failed"] += end - start
                case Free(node, start, end, Residency.HOST):
                    again = isinstance(then, Adopt) and then.node == node
                    count["replaced" if again else "dropped_unread"] += end - start
                case Free(_, start, end, _):
                    count["dropped"] += end - start
        return Flow(*(was + count[name] for name, was in zip(self._fields, self, strict=True)))
