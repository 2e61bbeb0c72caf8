"""What routers are told of a cache: which blocks a replica holds, as they come and go.

A router scores a replica by how much of a prompt's beginning it holds.  Most indexes assume that
what is held is closed under prefixes: they refuse a block whose parent they do not know, or forget
all that follows a block that is removed.  A hole would cost a history its score, for good.

`STICKY`, the default, announces the spans of the tree's nodes, holes included, once for both tiers:
what is announced is prefix-closed after every single event, covers what is resident, and has KV at
or behind it (`announced-covers-resident`).  What it promises too much is the cheapest to compute.
`EXACT` announces KV where it is, block by block and tier by tier, for routers that see holes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum

from penelope.policy import (
    Adopt,
    Effect,
    Free,
    Merge,
    Moved,
    Node,
    NodeId,
    Remove,
    Residency,
    Split,
    State,
)
from penelope.runtime.announcement import Announcement
from penelope.runtime.prefixes import whole_prefixes

__all__ = ["Announce", "Announcement", "announcements"]


class Announce(Enum):
    """What is announced."""

    STICKY = "sticky"
    """Every history as far as the tree knows it, while there is KV at its end."""
    PREFIX = "prefix"
    """Of every history what is resident, in either tier, before its first hole."""
    EXACT = "exact"
    """Resident KV, in each tier."""


_OTHER = {Residency.DEVICE: Residency.HOST, Residency.HOST: Residency.DEVICE}


def announcements(
    mode: Announce, before: State, after: State, effects: Iterable[Effect]
) -> Iterator[Announcement]:
    """What one transition changes for routers, in the order in which they must be told.

    `Reset` is left to the caller, who says that all is gone.  Cost: one step for each effect, and
    with `PREFIX` one for each node above them, and for each that is withdrawn or announced again.
    """
    if mode is Announce.PREFIX:
        return whole_prefixes(before, after, effects)
    follow = _Follow(before, after, effects)
    return follow.sticky() if mode is Announce.STICKY else follow.exact()


class _Follow:
    """Where nodes lie while the effects of one transition are gone through."""

    def __init__(self, before: State, after: State, effects: Iterable[Effect]) -> None:
        self._before = before
        self._after = after
        self._effects = tuple(effects)
        self._spans: dict[NodeId, tuple[int, int]] = {}
        self._holders: dict[NodeId, Node] = {}
        self._survivor = {e.upper: e.node for e in self._effects if isinstance(e, Merge)}

    def sticky(self) -> Iterator[Announcement]:
        for effect in self._effects:
            match effect:
                case Adopt(node, start, end):
                    if self._is_new(effect):
                        yield self._announce(True, node, start, end, Residency.DEVICE)
                case Remove(node):
                    yield self._announce(False, node, *self._span(node), Residency.DEVICE)
                case _:
                    self._move_bounds(effect)

    def exact(self) -> Iterator[Announcement]:
        for effect in self._effects:
            match effect:
                case Adopt(node, start, end):
                    self._is_new(effect)
                    yield self._announce(True, node, start, end, Residency.DEVICE)
                case Free(node, start, end, tier):
                    yield self._announce(False, node, start, end, tier)
                case Moved(_, node, start, end, target):
                    # Announced where it is before it is withdrawn from where it was.
                    yield self._announce(True, node, start, end, target)
                    yield self._announce(False, node, start, end, _OTHER[target])
                case _:
                    self._move_bounds(effect)

    def _move_bounds(self, effect: Effect) -> None:
        match effect:
            case Split(node, upper, at):
                start, end = self._span(node)
                self._spans[upper], self._spans[node] = (start, at), (at, end)
                self._holders[upper] = self._holder(node)
            case Merge(upper, node):
                self._spans[node] = (self._span(upper)[0], self._span(node)[1])

    def _is_new(self, adopted: Adopt) -> bool:
        """Whether the tree did not have the span before, neither with KV nor without."""
        node, start, end = adopted
        if node in self._spans or node in self._before.nodes:
            return False
        self._spans[node] = (start, end)
        return True

    def _span(self, node: NodeId) -> tuple[int, int]:
        if node in self._spans:
            return self._spans[node]
        found = self._before.nodes[node]
        return found.start, found.end

    def _holder(self, node: NodeId) -> Node:
        """A node whose key runs through the span of this one, which may be gone by now."""
        if node in self._holders:
            return self._holders[node]
        if node in self._before.nodes:
            return self._before.nodes[node]
        while node not in self._after.nodes:
            node = self._survivor[node]
        return self._after.nodes[node]

    def _announce(
        self, stored: bool, node: NodeId, start: int, end: int, tier: Residency
    ) -> Announcement:
        holder = self._holder(node)
        return Announcement(stored, holder.namespace, holder.key, start, end, tier)
