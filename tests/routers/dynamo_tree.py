"""Dynamo's radix tree as a small model, as it behaves in version 1.6.1.

A node is a run of blocks, its edge, with those replicas that have all of it and, for the others,
how much of it.  Where a block is removed, the replica loses the rest of that edge.  What hangs
below stays known to it by name only: once no replica has the whole edge, the branches below are
cut off, and a block that is stored under one of them is taken and never found.  An edge that no
replica has any of gives way to the next that begins with its first block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.routers.indexes import Event


@dataclass
class Edge:
    blocks: list[int] = field(default_factory=list)
    reach: dict[int, int] = field(default_factory=dict)
    """How many of the blocks each replica has; none is left out."""
    below: dict[int, Edge] = field(default_factory=dict)
    """By their first block."""
    leaf: bool = True
    """Whether it never had anything below: only then it grows."""

    def has(self, replica: int, position: int) -> bool:
        return self.reach.get(replica, 0) > position

    def whole(self, replica: int) -> bool:
        return self.reach.get(replica) == len(self.blocks)

    def cover(self, replica: int, blocks: int) -> None:
        self.reach[replica] = max(blocks, self.reach.get(replica, 0))

    def cut_off_below(self) -> None:
        if not any(map(self.whole, self.reach)):
            self.below.clear()


class DynamoTree:
    """`dynamo.llm.RadixTree`.

    A block whose parent is not known is refused, with all that comes in the same event.
    """

    def __init__(self) -> None:
        self.refused = 0
        self._root = Edge(leaf=False)
        self._known: dict[int, dict[int, Edge]] = {}
        """Where each replica's blocks lie, or lay when they were last heard of."""

    def apply(self, event: Event) -> None:
        known = self._known.setdefault(event.replica, {})
        if event.stored:
            self._store(event.replica, known, event)
        else:
            self._remove(event.replica, known, list(event.blocks))

    def clear(self, replica: int) -> None:
        for edge in self._known.pop(replica, {}).values():
            edge.reach.pop(replica, None)
            edge.cut_off_below()

    def scores(self, request: Sequence[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        running: set[int] | None = None
        depth, edge = 0, self._root
        while depth < len(request) and (below := edge.below.get(request[depth])):
            edge = below
            agreed = _agreeing(edge.blocks, request[depth:])
            for replica in edge.reach if running is None else running:
                found[replica] = depth + min(edge.reach.get(replica, 0), agreed)
            whole = {replica for replica in edge.reach if edge.whole(replica)}
            running = whole if running is None else running & whole
            depth += agreed
            if not running or agreed < len(edge.blocks):
                break
        return found

    def _store(self, replica: int, known: dict[int, Edge], event: Event) -> None:
        above, blocks = self._root, list(event.blocks)
        if event.parent is not None:
            parent = known.get(event.parent)
            if parent is None or event.parent not in parent.blocks:
                self.refused += len(blocks)
                return
            at = parent.blocks.index(event.parent)
            if not parent.has(replica, at):
                del known[event.parent]
                self.refused += len(blocks)
                return
            if self._within(replica, known, parent, at, blocks):
                return
            if at + 1 < len(parent.blocks):
                self._split(parent, at + 1)
            above = parent
        self._put_below(replica, known, above, blocks)

    def _within(
        self, replica: int, known: dict[int, Edge], edge: Edge, at: int, blocks: list[int]
    ) -> bool:
        """Blocks that the edge goes on with, or that a leaf can be made to go on with."""
        rest = edge.blocks[at + 1 :]
        if rest[: len(blocks)] == blocks:
            edge.cover(replica, at + 1 + len(blocks))
        elif edge.leaf and blocks[: len(rest)] == rest:
            edge.blocks += blocks[len(rest) :]
            edge.cover(replica, len(edge.blocks))
        else:
            return False
        known.update(dict.fromkeys(blocks, edge))
        return True

    def _put_below(
        self, replica: int, known: dict[int, Edge], above: Edge, blocks: list[int]
    ) -> None:
        while blocks:
            edge = above.below.get(blocks[0])
            if edge is None or not edge.reach:
                if above.leaf and above.whole(replica):
                    above.blocks += blocks
                    above.cover(replica, len(above.blocks))
                    edge = above
                else:
                    edge = Edge(blocks, {replica: len(blocks)})
                    above.below[blocks[0]] = edge
                    above.leaf = False
                known.update(dict.fromkeys(blocks, edge))
                return
            agreed = _agreeing(edge.blocks, blocks)
            if agreed < len(edge.blocks) and agreed < len(blocks):
                self._split(edge, agreed)
            edge.cover(replica, agreed)
            known.update(dict.fromkeys(blocks[:agreed], edge))
            above, blocks = edge, blocks[agreed:]

    def _split(self, edge: Edge, at: int) -> None:
        """Cut an edge in two; the upper part stays where it is."""
        lower = Edge(edge.blocks[at:], {}, edge.below, edge.leaf)
        for replica, reach in edge.reach.items():
            if reach > at:
                lower.reach[replica] = reach - at
                self._known[replica].update(dict.fromkeys(lower.blocks[: reach - at], lower))
        edge.blocks, edge.below, edge.leaf = edge.blocks[:at], {lower.blocks[0]: lower}, False
        edge.reach = {replica: min(reach, at) for replica, reach in edge.reach.items()}

    def _remove(self, replica: int, known: dict[int, Edge], blocks: list[int]) -> None:
        while blocks:
            block = blocks.pop(0)
            edge = known.get(block)
            if edge is None or block not in edge.blocks:
                continue
            del known[block]
            first = edge.blocks.index(block)
            # Those that follow in the list and lie in the same edge go together.
            while (
                blocks
                and known.get(blocks[0]) is edge
                and blocks[0] in edge.blocks
                and edge.has(replica, first)
                and edge.has(replica, edge.blocks.index(blocks[0]))
            ):
                first = min(first, edge.blocks.index(blocks.pop(0)))
            if edge.has(replica, first):
                edge.reach[replica] = first
                if not first:
                    del edge.reach[replica]
                for stale in edge.blocks[first:]:
                    known.pop(stale, None)
            edge.cut_off_below()


def _agreeing(edge: Sequence[int], request: Sequence[int]) -> int:
    """How many blocks two runs have in common from their beginning on.

    A block stands for all that precedes it too, so they part once.
    """
    count = 0
    for ours, theirs in zip(edge, request, strict=False):
        if ours != theirs:
            break
        count += 1
    return count
