"""One thing that routers are told."""

from __future__ import annotations

from typing import NamedTuple

from penelope.policy import Key, Namespace, Residency


class Announcement(NamedTuple):
    """Blocks that are there from now on, or no longer: [start, end) of a history."""

    stored: bool
    namespace: Namespace
    key: Key
    """A history that runs through the span."""
    start: int
    end: int
    tier: Residency
