"""Real states as the relations that the theorems are about.

Whatever the state says is taken as it is, even where it is corrupt: a formula must fail on the
picture of a state exactly where the fast predicate fails on the state.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count

from penelope.policy import MoveId, Node, NodeId, Residency, State
from penelope_spec.logic import CELL, DERIVED, NODE, PREFIX, RECEIPT, RELATIONS, Finite

Cell = tuple[Hashable, bytes]
"""The namespace, and the history up to the end of the page."""
ReceiptName = Hashable


@dataclass
class Drawn:
    """One node."""

    parent: NodeId | None
    cells: tuple[Cell, ...]
    device: bool
    stamp: int
    host: bool = False
    covers: set[ReceiptName] = field(default_factory=set)
    filler: ReceiptName | None = None
    mover: ReceiptName | None = None
    """The move that takes the node's KV to the other tier."""
    children: int = 0

    @property
    def is_root(self) -> bool:
        return self.parent is None


@dataclass
class Picture:
    """One state."""

    nodes: dict[NodeId, Drawn]
    leases: dict[ReceiptName, NodeId]

    def copy(self) -> Picture:
        return deepcopy(self)

    def path(self, node: NodeId) -> list[NodeId]:
        """The node and its ancestors, as far as they exist."""
        path: list[NodeId] = []
        at: NodeId | None = node
        while at is not None and at in self.nodes and at not in path:
            path.append(at)
            at = self.nodes[at].parent
        return path

    def clear(self) -> None:
        self.nodes.clear()
        self.leases.clear()

    def forget(self, node: NodeId) -> None:
        del self.nodes[node]

    def below(self, node: NodeId) -> list[NodeId]:
        return [child for child, drawn in self.nodes.items() if drawn.parent == node]

    def leads_to_device(self, node: NodeId) -> bool:
        """Whether device KV is at or below the node."""
        return self.nodes[node].device or any(map(self.leads_to_device, self.below(node)))

    def relations(self) -> dict[str, frozenset[tuple[Hashable, ...]]]:
        above = {(a, n) for n in self.nodes for a in self.path(n)}
        spans = [n for n, drawn in self.nodes.items() if not drawn.is_root]
        facts: dict[str, set[tuple[Hashable, ...]]] = {name: set() for name in RELATIONS}
        facts["above"] |= above
        facts["lease"] |= set(self.leases.items())
        facts["twin"] |= {
            (n, m) for n in spans for m in spans if self.nodes[n].stamp == self.nodes[m].stamp
        }
        for node, drawn in self.nodes.items():
            facts["tree"].add((node,))
            if drawn.is_root:
                facts["root"].add((node,))
            if drawn.device:
                facts["device"].add((node,))
            if drawn.host:
                facts["host"].add((node,))
            if drawn.mover is not None:
                facts["carries"].add((drawn.mover, node))
            facts["covers"] |= {(receipt, node) for receipt in drawn.covers}
            if drawn.filler is not None:
                facts["filler"].add((drawn.filler, node))
            facts["owns"] |= {(node, cell) for cell in drawn.cells}
        forks = {(node,) for node, drawn in self.nodes.items() if drawn.children > 1}
        facts |= {name: set() for name in DERIVED}
        facts["forks"] |= forks
        facts["later"] |= {
            (n, m) for n in spans for m in spans if self.nodes[n].stamp > self.nodes[m].stamp
        }
        return {name: frozenset(rows) for name, rows in facts.items()}


def cells_of(state: State, node: Node, start: int, end: int) -> tuple[Cell, ...]:
    """The pages of [start, end) of the node's history."""
    page, width = state.config.page_size, state.config.unit_bytes
    return tuple(
        (node.namespace, node.key[: position * width])
        for position in range(start + page, end + 1, page)
    )


def move_name(number: MoveId) -> ReceiptName:
    """What a move is called among the holders of locks."""
    return f"move {number}"


def picture(state: State) -> Picture:
    """The state, lock counts resolved into the receipts that they should count.

    A count that is too high counts receipts that nobody has; one that is too low misses some.
    """
    drawn = Picture({}, {receipt: lease.node for receipt, lease in state.leases.items()})
    drawn.leases |= {move_name(number): move.node for number, move in state.moves.items()}
    for node in state.nodes.values():
        drawn.nodes[node.id] = Drawn(
            node.parent,
            () if node.is_root else cells_of(state, node, node.start, node.end),
            node.residency is Residency.DEVICE,
            0 if node.is_root else node.stamp,
            node.residency is Residency.HOST,
            filler=node.filler,
            mover=None if node.move is None else move_name(node.move),
            children=len(node.children),
        )
    for holder, end in drawn.leases.items():
        for node_id in drawn.path(end):
            drawn.nodes[node_id].covers.add(holder)
    for node in state.nodes.values():
        counted = drawn.nodes[node.id].covers
        for ghost in count():
            if len(counted) >= node.locks:
                break
            counted.add(f"ghost {ghost}")
        while len(counted) > node.locks:
            counted.remove(max(counted, key=str))
    return drawn


def finite(views: Mapping[str, Picture], **derived: frozenset[tuple[Hashable, ...]]) -> Finite:
    """Several pictures as one world; `derived` gives notions of the view `before`."""
    facts: dict[tuple[str, str], frozenset[tuple[Hashable, ...]]] = {}
    for view in ("before", "middle", "after", "other"):
        drawn = views.get(view, Picture({}, {}))
        facts |= {(view, name): rows for name, rows in drawn.relations().items()}
    facts |= {("before", name): rows for name, rows in derived.items()}
    nodes = {node: None for drawn in views.values() for node in drawn.nodes}
    receipts: dict[Hashable, None] = {}
    cells: dict[Cell, None] = {}
    for drawn in views.values():
        receipts |= dict.fromkeys(drawn.leases)
        nodes |= dict.fromkeys(drawn.leases.values())
        for one in drawn.nodes.values():
            receipts |= dict.fromkeys(one.covers)
            receipts |= {name: None for name in (one.filler, one.mover) if name is not None}
            cells |= dict.fromkeys(one.cells)
    facts["", PREFIX] = frozenset(
        (short, long)
        for short in cells
        for long in cells
        if short[0] == long[0] and long[1].startswith(short[1])
    )
    return Finite({NODE: tuple(nodes), RECEIPT: tuple(receipts), CELL: tuple(cells)}, facts)
