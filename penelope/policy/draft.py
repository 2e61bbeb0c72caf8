"""A state under construction: the moves that every transition is made of.

A transition opens a draft on a state, changes the draft and closes it.  The state itself is never
touched, and a draft whose transition is refused is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from immutables import Map

from penelope.policy.config import Granularity, Position
from penelope.policy.effects import Effect, Free, Merge, Remove, Split
from penelope.policy.errors import InsufficientSpace, UnknownReceipt
from penelope.policy.keys import Key
from penelope.policy.tree import (
    Lease,
    Namespace,
    Node,
    NodeId,
    Receipt,
    ReceiptId,
    Residency,
    State,
    Totals,
)

_NO_CHILDREN: Final[Map[bytes, NodeId]] = Map()
_DEVICE, _HOLE = Residency.DEVICE, Residency.HOLE


class Draft:
    """Mutable, short-lived, private to one transition."""

    __slots__ = (
        "base",
        "config",
        "device",
        "effects",
        "hole",
        "host",
        "leases",
        "locked",
        "next_node",
        "next_receipt",
        "nodes",
        "reserved",
        "roots",
        "tick",
        "victims",
    )

    def __init__(self, state: State) -> None:
        self.base = state
        self.config = state.config
        self.nodes = state.nodes.mutate()
        self.roots = state.roots
        self.leases = state.leases
        self.victims = state.victims
        self.device, self.locked, self.host, self.hole, self.reserved = state.totals
        self.tick = state.tick
        self.next_node = state.next_node
        self.next_receipt = state.next_receipt
        self.effects: list[Effect] = []

    def close(self) -> tuple[State, tuple[Effect, ...]]:
        """The new state, and what the shell must do."""
        return (
            State(
                self.config,
                self.nodes.finish(),
                self.roots,
                self.leases,
                self.victims,
                Totals(self.device, self.locked, self.host, self.hole, self.reserved),
                self.tick,
                self.next_node,
                self.next_receipt,
            ),
            tuple(self.effects),
        )

    @property
    def free(self) -> int:
        return self.config.device_capacity - self.device - self.reserved

    @property
    def evictable(self) -> int:
        return self.device - self.locked

    # Nodes

    def root(self, namespace: Namespace) -> Node:
        """The namespace's root, made now if this is its first use."""
        known = self.roots.get(namespace)
        if known is not None:
            return self.nodes[known]
        root = Node(self._new_node(), None, namespace, 0, 0, Key(b""), _HOLE, 0, 0, _NO_CHILDREN)
        self.nodes[root.id] = root
        self.roots = self.roots.set(namespace, root.id)
        return root

    def add_leaf(self, parent: Node, key: Key, end: int) -> Node:
        """A resident node for key[parent.end:end] below `parent`, which has no child like it.

        The use that it records ends in it, now.
        """
        self.tick += 1
        leaf = Node(
            self._new_node(),
            parent.id,
            parent.namespace,
            parent.end,
            end,
            key,
            _DEVICE,
            0,
            self.tick,
            _NO_CHILDREN,
        )
        if self.is_victim(parent):
            self.victims = self.victims.remove(parent.stamp)
        self.nodes[leaf.id] = leaf
        self.nodes[parent.id] = parent._replace(
            children=parent.children.set(self.edge(leaf), leaf.id),
            branched=parent.branched or bool(parent.children),
        )
        self.device += leaf.length
        self.victims = self.victims.insert(leaf.stamp, leaf.id)
        return leaf

    def split(self, node: Node, at: int) -> tuple[Node, Node]:
        """Cut a node in two at a position inside it: (upper, lower)."""
        upper_id = self._new_node()
        parent = self.nodes[_not_none(node.parent)]
        lower = node._replace(start=at, parent=upper_id)
        upper = node._replace(
            id=upper_id,
            end=at,
            children=_NO_CHILDREN.set(self.edge(lower), lower.id),
            branched=False,
        )
        self.nodes[parent.id] = parent._replace(
            children=parent.children.set(self.edge(node), upper_id)
        )
        self.nodes[upper_id] = upper
        self.nodes[lower.id] = lower
        self.effects.append(Split(node.id, upper_id, at))
        return upper, lower

    def edge(self, node: Node) -> bytes:
        """The node's name among its parent's children: the first page of its label."""
        width = self.config.unit_bytes
        start = node.start * width
        return node.key[start : start + self.config.page_size * width]

    def path(self, node: NodeId) -> Iterator[Node]:
        """The node and its ancestors, deepest first, the root excluded."""
        at = self.nodes[node]
        while at.parent is not None:
            yield at
            at = self.nodes[at.parent]

    # Residency

    def drop(self, node: Node) -> Node:
        """Evict the KV of a whole resident node: it becomes a hole."""
        hole = node._replace(residency=_HOLE)
        self.nodes[node.id] = hole
        if not node.children:
            self.victims = self.victims.remove(node.stamp)
        self.device -= node.length
        self.hole += node.length
        self.effects.append(Free(node.id, node.start, node.end))
        return hole

    def fill(self, node: Node) -> Node:
        """Give a whole hole its KV back."""
        filled = node._replace(residency=_DEVICE, filler=None)
        self.nodes[node.id] = filled
        self.hole -= node.length
        self.device += node.length
        if node.locks:
            self.locked += node.length
        return filled

    def is_victim(self, node: Node) -> bool:
        """Whether the node is an unlocked leaf, which eviction may begin with."""
        return not (node.children or node.locks or node.is_root)

    # Recency

    def stamp(self, node: Node) -> Node:
        """Mark the node as the end of a use that happens now."""
        self.tick += 1
        stamped = node._replace(stamp=self.tick)
        self.nodes[node.id] = stamped
        if self.is_victim(node):
            self.victims = self.victims.remove(node.stamp).insert(self.tick, node.id)
        return stamped

    # Locks

    def lock(self, node: Node, above: NodeId | None = None) -> None:
        """One more receipt on the path from below `above` (by default from the root) to `node`."""
        if self.is_victim(node):
            self.victims = self.victims.remove(node.stamp)
        at: Node | None = node
        while at is not None and at.id != above:
            if not at.locks and at.residency is _DEVICE:
                self.locked += at.length
            self.nodes[at.id] = at._replace(locks=at.locks + 1)
            at = None if at.parent is None else self.nodes[at.parent]

    def unlock(self, receipt: ReceiptId, node: NodeId) -> NodeId | None:
        """One receipt less on the path to `node`; what it undertook to refill is a plain hole.

        Returns the node where the path ends now, None if the whole tree has gone.
        """
        at: Node | None = self.nodes[node]
        while at is not None:
            filler = None if at.filler == receipt else at.filler
            freed = at._replace(locks=at.locks - 1, filler=filler)
            self.nodes[at.id] = freed
            if not freed.locks and freed.residency is _DEVICE:
                self.locked -= freed.length
            at = None if at.parent is None else self.nodes[at.parent]
        return self.prune(node)

    def lease(self, receipt: Receipt) -> Lease:
        """What the receipt holds.  Raises `UnknownReceipt`."""
        lease = self.leases.get(receipt.id)
        if lease is None:
            raise UnknownReceipt(
                f"receipt {receipt.id} is not live: it was released before or never issued"
            )
        return lease

    def issue(self, node: Node, reserved: int) -> Receipt:
        """Lock the path to `node` and prove it."""
        self.lock(node)
        receipt = Receipt(ReceiptId(self.next_receipt))
        self.next_receipt += 1
        self.leases = self.leases.set(receipt.id, Lease(node.id, reserved))
        self.reserved += reserved
        return receipt

    def set_lease(self, receipt: Receipt, lease: Lease) -> None:
        self.reserved += lease.reserved - self.leases[receipt.id].reserved
        self.leases = self.leases.set(receipt.id, lease)

    def withdraw(self, receipt: Receipt) -> None:
        self.reserved -= self.leases[receipt.id].reserved
        self.leases = self.leases.delete(receipt.id)

    # Canonical shape

    def prune(self, start: NodeId) -> NodeId | None:
        """Restore the shape from a node that may just have become an idle leaf.

        Leaves without KV go, and so do the holes above them that no longer lead to any KV.
        The node where this ends, which is returned unless the whole tree has gone, is a victim
        again if it is now a leaf.
        """
        node = self.nodes[start]
        while not node.children and not node.locks and node.residency is _HOLE:
            del self.nodes[node.id]
            if node.parent is None:
                self.roots = self.roots.delete(node.namespace)
                return None
            self.hole -= node.length
            self.effects.append(Remove(node.id))
            parent = self.nodes[node.parent]
            node = parent._replace(
                children=parent.children.delete(self.edge(node)),
                stamp=max(parent.stamp, node.stamp),
            )
            self.nodes[node.id] = node
        if node.parent is None:
            return node.id
        if self.is_victim(node):
            self.victims = self.victims.insert(node.stamp, node.id)
        node = self.merge(node)
        # A boundary further up can only have changed if the one below it did.
        while node.parent is not None:
            merged = self.merge(self.nodes[node.parent])
            if merged.id != node.id:
                break
            node = merged
        return node.id

    def merge(self, upper: Node, *, used_now: bool = False) -> Node:
        """Join a node to its only child if nothing distinguishes the two any more.

        Recency distinguishes them when the upper half was used later than anything below it,
        unless `used_now`: the path through both has just been used.  It never distinguishes two
        holes: no hole is a victim, and a refill comes with a later use of both.
        Returns the node in which the upper half is now.
        """
        if upper.is_root or len(upper.children) != 1:
            return upper
        child = self.nodes[next(iter(upper.children.values()))]
        if (
            upper.residency is not child.residency
            or upper.locks != child.locks
            or upper.filler != child.filler
            or not self._merges(upper)
            or not (used_now or upper.stamp <= child.stamp or upper.residency is _HOLE)
        ):
            return upper
        above = self.nodes[_not_none(upper.parent)]
        self.nodes[above.id] = above._replace(
            children=above.children.set(self.edge(upper), child.id)
        )
        merged = child._replace(
            start=upper.start, parent=above.id, stamp=max(upper.stamp, child.stamp)
        )
        self.nodes[child.id] = merged
        del self.nodes[upper.id]
        self.effects.append(Merge(upper.id, child.id))
        return merged

    def merge_path(self, end: NodeId, *, used_now: bool = False) -> None:
        """Merge wherever possible on the path from the root to `end`."""
        parent = self.nodes[end].parent
        while parent is not None:
            upper = self.nodes[parent]
            parent = upper.parent
            self.merge(upper, used_now=used_now)

    def merge_each(self, nodes: Iterable[NodeId]) -> None:
        """Merge each of these, which may be gone by then, with its parent."""
        for node_id in nodes:
            node = self.nodes.get(node_id)
            if node is not None and node.parent is not None:
                self.merge(self.nodes[node.parent])

    def _merges(self, upper: Node) -> bool:
        """Whether the policy may forget the boundary at the end of `upper`.

        Node-granular policies evict what was inserted, so they keep every boundary; the head of a
        leaf is where its last insertion began, so there only the boundary between two holes means
        nothing; and a boundary may be kept as the mark of a prefix that was shared.
        """
        if self.config.granularity is Granularity.NODE:
            return False
        if self.config.position is Position.LEAF_HEAD and upper.residency is not _HOLE:
            return False
        return not (self.config.sticky_shared and upper.branched)

    def _new_node(self) -> NodeId:
        fresh = NodeId(self.next_node)
        self.next_node += 1
        return fresh

    def require(self, need: int) -> None:
        """Raises `InsufficientSpace` unless `need` units are free or could be freed now."""
        if need > self.free + self.evictable:
            raise InsufficientSpace(
                f"{need} units are needed, {self.free} are free and {self.evictable} can be "
                f"evicted: wait until a running request ends"
            )


def _not_none(parent: NodeId | None) -> NodeId:
    assert parent is not None, "a root has no span to split or merge"
    return parent
