"""Announce of every history what is resident before its first hole: the mode `PREFIX`.

A node is resident as a whole or a hole as a whole, so it is announced when neither it nor any node
above it is a hole, in whichever tier they lie.  What a transition changes is found from its
effects: below a span that was lost all goes, below one that was gained all comes, and where the
path to it has another hole nothing is said.  Only the net change of a transition counts: a span
that changes its tier, or loses a host copy to fresh KV, stays announced.  Several transitions may
be told as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from penelope.policy import (
    Adopt,
    Effect,
    Free,
    Merge,
    Node,
    NodeId,
    Residency,
    Split,
    State,
)
from penelope.runtime.announcement import Announcement


class _Piece(NamedTuple):
    """A part of a node as it was before the transition."""

    node: NodeId
    start: int
    end: int


def whole_prefixes(
    before: State, after: State, effects: Iterable[Effect]
) -> Iterator[Announcement]:
    """What is withdrawn, the deepest first, and then what is announced, the shallowest first.

    So nothing is announced at any moment that was not there before the transition or is after it.
    """
    change = _Change(before)
    for effect in effects:
        change.follow(effect)
    yield from _behind(before, change.lost(), stored=False)
    yield from _behind(after, change.gained, stored=True)


class _Change:
    """Which spans a transition loses, in the tree before it, and gains, in the tree after it."""

    def __init__(self, before: State) -> None:
        self._before = before
        self._pieces: dict[NodeId, list[_Piece]] = {}
        self._lost: set[_Piece] = set()
        self.gained: dict[NodeId, int] = {}
        """From where on each node has KV now that it had not before."""

    def lost(self) -> dict[NodeId, int]:
        """From where on each node has lost its KV."""
        found: dict[NodeId, int] = {}
        for node, start, _ in self._lost:
            found[node] = min(start, found.get(node, start))
        return found

    def follow(self, effect: Effect) -> None:
        match effect:
            case Split(node, upper, at):
                self._split(node, upper, at)
            case Merge(upper, node):
                self._pieces[node] = self._of(upper) + self._of(node)
                if upper in self.gained:
                    self.gained[node] = self.gained.pop(upper)
            case Free(node, _, _, _):
                # What this transition gave it is not announced yet.
                self.gained.pop(node, None)
                self._lost.update(self._of(node))
            case Adopt(node, start, end):
                self._adopt(node, start, end)

    def _split(self, node: NodeId, upper: NodeId, at: int) -> None:
        pieces = self._of(node)
        self._pieces[upper] = [p._replace(end=min(at, p.end)) for p in pieces if p.start < at]
        self._pieces[node] = [p._replace(start=max(at, p.start)) for p in pieces if p.end > at]
        if self.gained.get(node, at) < at:
            self.gained[upper], self.gained[node] = self.gained[node], at

    def _adopt(self, node: NodeId, start: int, end: int) -> None:
        del end
        pieces = self._of(node)
        if pieces and self._lost.issuperset(pieces):
            self._lost.difference_update(pieces)  # a host copy that made way for it
        else:
            self.gained[node] = start

    def _of(self, node: NodeId) -> list[_Piece]:
        if node not in self._pieces:
            found = self._before.nodes.get(node)
            self._pieces[node] = [] if found is None else [_Piece(node, found.start, found.end)]
        return self._pieces[node]


def _behind(state: State, changed: Mapping[NodeId, int], *, stored: bool) -> Iterator[Announcement]:
    """All that is announced in `state` from these positions of these nodes on."""
    told: set[NodeId] = set()
    # Of two that lie on one path the upper one comes first, and takes the lower one along.
    for node, start in sorted(changed.items(), key=lambda item: (item[1], item[0])):
        if node not in told and _is_announced(state, state.nodes[node]):
            order = _subtree(state, state.nodes[node])
            told.update(below.id for below in order)
            for below in order if stored else reversed(order):
                first = max(start, below.start)
                yield Announcement(
                    stored, below.namespace, below.key, first, below.end, Residency.DEVICE
                )


def _is_announced(state: State, node: Node) -> bool:
    while node.parent is not None:
        if node.residency is Residency.HOLE:
            return False
        node = state.nodes[node.parent]
    return True


def _subtree(state: State, top: Node) -> list[Node]:
    """The node and what is announced behind it: parents before children, siblings by label."""
    order, ahead = [], [top]
    while ahead:
        node = ahead.pop()
        order.append(node)
        children = [state.nodes[node.children[edge]] for edge in sorted(node.children)]
        ahead += [child for child in children if child.residency is not Residency.HOLE]
    return order
