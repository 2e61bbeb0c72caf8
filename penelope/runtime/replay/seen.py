"""What was ever computed: what a cache without limits would hold."""

from __future__ import annotations

from penelope.policy import UNIT_BYTES, Key
from penelope.policy.keys import common_prefix


class _Node:
    """The part of a history up to `end`, in bytes, from where the node above it ends."""

    __slots__ = ("children", "end", "key")

    def __init__(self, key: Key, end: int, children: dict[bytes, _Node]) -> None:
        self.key = key
        self.end = end
        self.children = children
        """By the first unit of the child's part."""


class Seen:
    """Tells how much of a history was computed before, by any request.

    No policy is at work here: nothing is evicted or in use, and nobody needs an earlier state.  A
    mutable tree says it in a fraction of the time that a transition of the core takes.
    """

    def __init__(self) -> None:
        self._root = _Node(Key(b""), 0, {})

    def add(self, history: Key) -> int:
        """Remember a history: how many of its units, from the beginning, were known before."""
        node, at, stop = self._root, 0, len(history)
        while at < stop:
            edge = history[at : at + UNIT_BYTES]
            child = node.children.get(edge)
            if child is None:
                if node.children or node is self._root:
                    node.children[edge] = _Node(history, stop, {})
                else:
                    # A history that goes on from its end stays one node.
                    node.key, node.end = history, stop
                break
            agreed = common_prefix(history, child.key, at, min(child.end, stop), UNIT_BYTES)
            if agreed < child.end:
                if agreed < stop:
                    below = child.key[agreed : agreed + UNIT_BYTES]
                    node.children[edge] = upper = _Node(child.key, agreed, {below: child})
                    upper.children[history[agreed : agreed + UNIT_BYTES]] = _Node(history, stop, {})
                at = agreed
                break
            node, at = child, agreed
        return at // UNIT_BYTES
