"""A state under construction: the moves that every transition is made of.

A transition opens a draft on a state, changes the draft and closes it.  The state itself is never
touched, and a draft whose transition is refused is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from immutables import Map

from penelope.policy.accounts import Accounts, has_device
from penelope.policy.config import Granularity, Position
from penelope.policy.effects import Free, Merge, Remove, Split
from penelope.policy.keys import Key
from penelope.policy.state import (
    Lease,
    Namespace,
    Node,
    NodeId,
    Receipt,
    ReceiptId,
    Residency,
)
from penelope.policy.waiting import fallen_back, moved

_NO_CHILDREN: Final[Map[bytes, NodeId]] = Map()
_DEVICE, _HOST, _HOLE = Residency.DEVICE, Residency.HOST, Residency.HOLE


class Draft(Accounts):
    """Mutable, short-lived, private to one transition."""

    __slots__ = ()

    # Nodes

    def root(self, namespace: Namespace) -> Node:
        """The namespace's root, made now if this is its first use."""
        known = self.roots.get(namespace)
        if known is not None:
            return self.nodes[known]
        root = Node(self._new_node(), None, namespace, 0, 0, Key(b""), _HOLE, 0, 0, _NO_CHILDREN)
        self.add(root)
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
        self.change(parent, parent.with_children(parent.children.set(self.edge(leaf), leaf.id)))
        self.gained_device(leaf)
        self.add(leaf)
        return leaf

    def split(self, node: Node, at: int) -> tuple[Node, Node]:
        """Cut a node in two at a position inside it: (upper, lower)."""
        upper_id = self._new_node()
        parent = self.parent(node)
        lower = node._replace(start=at, parent=upper_id)
        upper = node._replace(
            id=upper_id,
            end=at,
            children=_NO_CHILDREN.set(self.edge(lower), lower.id),
            branched=False,
            device_below=1 if self.tiers and has_device(lower) else 0,
            retired=False,
        )
        self.change(parent, parent.with_children(parent.children.set(self.edge(node), upper_id)))
        self.change(node, lower)
        self.add(upper)
        if node.id in self.waiting.at:
            self.waiting = moved(self.waiting, node.id, upper_id, at)
        self.effects.append(Split(node.id, upper_id, at))
        return upper, lower

    def edge(self, node: Node) -> bytes:
        """The node's name among its parent's children: the first page of its label."""
        width = self.config.unit_bytes
        start = node.start * width
        return node.key[start : start + self.config.page_size * width]

    def parent(self, node: Node) -> Node:
        """The predecessor of a node that is not a root."""
        assert node.parent is not None, "a root has no predecessor"
        return self.nodes[node.parent]

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
        self.change(node, hole)
        self.effects.append(Free(node.id, node.start, node.end, node.residency))
        if node.residency is _DEVICE:
            self.lost_device(hole)
        return hole

    def settle_on(self, node: Node, residency: Residency) -> Node:
        """Give a whole node its KV in a tier, whatever it was before."""
        settled = node._replace(residency=residency, filler=None, move=None)
        if residency is _DEVICE:
            self.gained_device(node)
            self.change(node, settled)
        else:
            self.change(node, settled)
            self.lost_device(settled)
        return settled

    def gained_device(self, node: Node) -> None:
        """Tell the ancestors of a node that it has device KV now, which it had not before."""
        if not self.tiers or node.device_below:
            return
        while node.parent is not None:
            above = self.nodes[node.parent]
            node = above._replace(device_below=above.device_below + 1)
            self.change(above, node)
            if has_device(above):
                return

    def lost_device(self, node: Node) -> None:
        """Tell the ancestors of a node that it has no device KV now, which it had before.

        A history whose device KV is gone passes its recency on to what is left of it there.
        """
        while self.tiers and not has_device(node) and node.parent is not None:
            above = self.nodes[node.parent]
            node = above._replace(
                device_below=above.device_below - 1, stamp=max(above.stamp, node.stamp)
            )
            self.change(above, node)

    # Recency

    def stamp(self, node: Node) -> Node:
        """Mark the node as the end of a use that happens now."""
        self.tick += 1
        stamped = node._replace(stamp=self.tick, retired=False)
        self.change(node, stamped)
        at = stamped
        while self.tiers and not has_device(at) and at.parent is not None:
            above = self.nodes[at.parent]
            at = above._replace(stamp=self.tick)
            self.change(above, at)
        return stamped

    # Locks

    def lock(self, node: NodeId, above: NodeId | None = None) -> None:
        """One more lock on the path from below `above` (by default from the root) to `node`."""
        at: NodeId | None = node
        while at is not None and at != above:
            old = self.nodes[at]
            self.change(old, old.with_locks(old.locks + 1))
            at = old.parent

    def unlock(self, node: NodeId, receipt: ReceiptId | None = None) -> NodeId | None:
        """One lock less on the path to `node`.

        What `receipt` undertook to refill is a plain hole again.
        Returns the node where the path ends now, None if the whole tree has gone.
        """
        at: NodeId | None = node
        while at is not None:
            old = self.nodes[at]
            new = old.with_locks(old.locks - 1)
            if receipt is not None and old.filler == receipt:
                new = new._replace(filler=None)
            self.change(old, new)
            at = old.parent
        return self.prune(node)

    def issue(self, node: Node) -> Receipt:
        """Lock the path to `node` and prove it."""
        self.lock(node.id)
        receipt = Receipt(ReceiptId(self.next_receipt), self.origin)
        self.next_receipt += 1
        self.leases = self.leases.set(receipt.id, Lease(node.id, 0))
        return receipt

    # Canonical shape

    def prune(self, start: NodeId) -> NodeId | None:
        """Restore the shape from a node that may just have become an idle leaf.

        Leaves without KV go, and so do the holes above them that no longer lead to any KV.
        Returns the node where this ends, None if the whole tree has gone.
        """
        node = self.nodes[start]
        while not node.children and not node.locks and node.residency is _HOLE:
            self.remove(node)
            if node.parent is None:
                self.roots = self.roots.delete(node.namespace)
                return None
            self.effects.append(Remove(node.id))
            parent = self.nodes[node.parent]
            if node.id in self.waiting.at:
                self.waiting = fallen_back(self.waiting, node.id, parent)
            left = parent._replace(
                children=parent.children.delete(self.edge(node)),
                stamp=max(parent.stamp, node.stamp),
            )
            self.change(parent, left)
            node = left
        if node.parent is None:
            return node.id
        node = self.merge(node)
        # A boundary further up can only have changed if the one below it did.
        while (merged := self.merge(self.parent(node))).id == node.id:
            node = merged
        return node.id

    def merge(self, upper: Node, *, used_now: bool = False) -> Node:
        """Join a node to its only child if nothing distinguishes the two any more.

        Recency distinguishes them when the upper half was used later than anything below it,
        unless `used_now`: the path through both has just been used.  It never distinguishes two
        holes: no hole is a victim, and a refill comes with a later use of both.
        Returns the node in which the upper half is now.
        """
        if len(upper.children) != 1 or upper.parent is None:
            return upper
        child = self.nodes[next(iter(upper.children.values()))]
        if (
            upper.residency is not child.residency
            or upper.locks != child.locks
            or upper.filler != child.filler
            or upper.move != child.move
            or not self._merges(upper)
            or not (used_now or upper.stamp <= child.stamp or upper.residency is _HOLE)
        ):
            return upper
        above = self.nodes[upper.parent]
        self.change(above, above.with_children(above.children.set(self.edge(upper), child.id)))
        merged = child._replace(
            start=upper.start, parent=above.id, stamp=max(upper.stamp, child.stamp)
        )
        self.remove(upper)
        self.change(child, merged)
        if upper.id in self.waiting.at:
            self.waiting = moved(self.waiting, upper.id, child.id)
        self.effects.append(Merge(upper.id, child.id))
        return merged

    def merge_path(self, end: NodeId, *, used_now: bool = False) -> None:
        """Merge wherever possible on the path from the root to `end`."""
        if self.config.granularity is Granularity.NODE:
            return
        parent = self.nodes[end].parent
        while parent is not None:
            upper = self.nodes[parent]
            parent = upper.parent
            if len(upper.children) == 1:
                self.merge(upper, used_now=used_now)

    def merge_each(self, nodes: Iterable[NodeId]) -> None:
        """Merge each of these nodes of one path, given in position order, with its parent."""
        for node_id in nodes:
            self.merge(self.parent(self.nodes[node_id]))

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
