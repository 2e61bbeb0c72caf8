"""A baseline: a hierarchical cache as SGLang has it.

Copies are inclusive: what comes back from the host stays there too.  Each tier evicts the end of
its least recently used history.  The host drops only what has left the device, so a copy of what
is still there takes room of its own; and it keeps no more than a prefix of every history.

        write-through   every node is copied to the host as soon as it is computed
        write-back      a node is copied when the device evicts it

None of this is the policy core, whose rules it does not share.  What it has in common with the
core's cache in this replay: locks, the reservation of a request's whole output, and that a request
is admitted as soon as unlocked device KV makes it possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penelope.policy import Config, Key, Receipt, ReceiptId
from penelope.policy.keys import common_prefix
from penelope.runtime.replay.caches import Admission, Ask, Waiter


@dataclass(frozen=True, slots=True)
class Variant:
    """What differs between the arms."""

    write_back: bool = False
    blocks: bool = False
    """Evict as many blocks as are needed, not whole nodes."""
    device_lpm: bool = False
    """The scheduler does not count what is on the host."""


@dataclass(eq=False, slots=True)
class _Node:
    """A span [start, end) of a history.  Its KV is on the device, on the host, or on both."""

    id: int
    parent: _Node | None
    key: Key
    start: int
    end: int
    device: bool
    host: bool = False
    locks: int = 0
    stamp: int = 0
    children: dict[bytes, _Node] = field(default_factory=dict)

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class _Held:
    """What a running request holds."""

    node: _Node
    reserved: int


class HiCache:
    """The baseline's tree and its two tiers."""

    def __init__(self, config: Config, variant: Variant) -> None:
        self._config = config
        self._variant = variant
        self._root = _Node(0, None, Key(b""), 0, 0, device=True, host=True)
        self._held: dict[ReceiptId, _Held] = {}
        self._device_leaves: dict[int, _Node] = {}
        self._host_leaves: dict[int, _Node] = {}
        self._made = self._tick = 0
        self.nodes = 1
        self.device = self.locked = self.host = self.reserved = 0
        """Units on the device, of these in use; on the host; and held outside the tree."""
        self._dropped = self._copied = 0

    @property
    def free(self) -> int:
        return self._config.device_capacity - self.device - self.reserved

    def clock(self, now: float) -> None:
        """It has none."""
        del now

    def line_up(self, waiting: Sequence[Waiter]) -> None:
        """It does not look at the queue."""
        del waiting

    def expect(self, prompt: Key, arrival: float) -> None:
        """It does not know the future."""
        del prompt, arrival

    def reusable(self, ask: Ask) -> int:
        path = self._walk(ask.prompt, ask.at_most)
        counted = (n.device or not self._variant.device_lpm for n, _ in path)
        return sum(
            end - node.start for (node, end), counts in zip(path, counted, strict=True) if counts
        )

    def admit(self, ask: Ask) -> Admission | None:
        page = self._config.page_size
        width = self._config.unit_bytes
        total = -(-(len(ask.prompt) // width + ask.extra) // page) * page
        path = self._walk(ask.prompt, ask.at_most)
        device = sum(end - n.start for n, end in path if n.device)
        own = sum(end - n.start for n, end in path if n.device and not n.locks)
        if total - device > self.free + self.device - self.locked - own:
            return None
        node, end = path[-1] if path else (self._root, 0)
        if end < node.end:
            node = self._split(node, end)
        self._use(node)
        self._lock(node, 1)
        self._copied = 0
        short = max(0, total - device - self.free)
        freed = self._evict_device(short)
        for above in self._path(node):
            if not above.device:
                self._set(above, device=True)
        self._made += 1
        receipt = Receipt(ReceiptId(self._made))
        self._held[receipt.id] = _Held(node, total - node.end)
        self.reserved += total - node.end
        # With what the host has dropped since the last admission, for copies written through.
        dropped, self._dropped = self._dropped, 0
        return Admission(
            receipt,
            (),
            node.end,
            device,
            node.end - device,
            dropped,
            max(0, freed - short),
            self._copied,
        )

    def computed(self, admission: Admission, prompt: Key) -> int:
        """Take the prompt into the tree, where its lock now ends."""
        self._copied = 0
        held = self._held[admission.receipt.id]
        before = held.node
        held.node = self._insert(prompt)
        self._lock(held.node, 1, above=before)
        consumed = held.node.end - before.end
        held.reserved -= consumed
        self.reserved -= consumed
        self._use(held.node)
        if not self._variant.write_back:
            self._write_through(held.node)
        return self._copied

    def finished(self, admission: Admission, history: Key) -> int:
        copied = self.computed(admission, history)
        held = self._held.pop(admission.receipt.id)
        self.reserved -= held.reserved
        self._lock(held.node, -1)
        return copied

    # The tree

    def _walk(self, key: Key, limit: int) -> list[tuple[_Node, int]]:
        """The nodes on the path of key[:limit], each with the position to which it agrees."""
        width, page = self._config.unit_bytes, self._config.page_size
        limit -= limit % page
        node, at = self._root, 0
        path: list[tuple[_Node, int]] = []
        while at < limit and at == node.end:
            child = node.children.get(key[at * width : (at + page) * width])
            if child is None:
                break
            stop = min(child.end, limit)
            at = common_prefix(key, child.key, at * width, stop * width, page * width) // width
            path.append((child, at))
            node = child
        return path

    def _path(self, node: _Node) -> list[_Node]:
        """From the root's child to the node."""
        path = []
        at: _Node | None = node
        while at is not None and at is not self._root:
            path.append(at)
            at = at.parent
        return path[::-1]

    def _edge(self, node: _Node) -> bytes:
        width = self._config.unit_bytes
        return node.key[node.start * width : (node.start + self._config.page_size) * width]

    def _new(self, parent: _Node, key: Key, start: int, end: int) -> _Node:
        self._made += 1
        self.nodes += 1
        node = _Node(self._made, parent, key, start, end, device=True)
        parent.children[self._edge(node)] = node
        return node

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut a node in two; the upper half, which is new.  Nothing moves and nothing is freed."""
        assert node.parent is not None
        upper = self._new(node.parent, node.key, node.start, at)
        upper.device, upper.host, upper.locks = node.device, node.host, node.locks
        upper.stamp = node.stamp
        node.start, node.parent = at, upper
        upper.children[self._edge(node)] = node
        self._note(upper)
        self._note(node)
        return upper

    def _insert(self, key: Key) -> _Node:
        """Put a computed history on the device, as far as it fills pages."""
        page = self._config.page_size
        length = len(key) // self._config.unit_bytes
        length -= length % page
        path = self._walk(key, length)
        node, end = path[-1] if path else (self._root, 0)
        if end < node.end:
            node = self._split(node, end)
        for above in self._path(node):
            if not above.device:  # computed again: the host keeps its copy
                self._set(above, device=True)
        if end < length:
            node = self._new(node, key, end, length)
            node.device = False
            self._set(node, device=True)
        return node

    def _forget(self, node: _Node) -> None:
        """Take a node out of the tree with all that follows it, which has left the device."""
        for child in list(node.children.values()):
            self._forget(child)
        assert node.parent is not None
        self._dropped += node.length
        self._set(node, device=False, host=False)
        del node.parent.children[self._edge(node)]
        self.nodes -= 1
        self._device_leaves.pop(node.id, None)
        self._host_leaves.pop(node.id, None)
        self._note(node.parent)

    # Counters, leaves, locks, recency

    def _set(self, node: _Node, *, device: bool | None = None, host: bool | None = None) -> None:
        """Change where a node's KV is."""
        if device is not None and device is not node.device:
            sign = 1 if device else -1
            self.device += sign * node.length
            self.locked += sign * node.length if node.locks else 0
            node.device = device
        if host is not None and host is not node.host:
            self.host += node.length if host else -node.length
            node.host = host
        self._note(node)
        if node.parent is not None:
            self._note(node.parent)

    def _note(self, node: _Node) -> None:
        """Keep the two collections of leaves that may be evicted."""
        idle = node is not self._root and not node.locks
        for leaves, belongs in (
            (
                self._device_leaves,
                idle and node.device and not any(c.device for c in node.children.values()),
            ),
            (self._host_leaves, idle and node.host and not node.device and not node.children),
        ):
            if belongs:
                leaves[node.id] = node
            else:
                leaves.pop(node.id, None)

    def _lock(self, node: _Node, by: int, above: _Node | None = None) -> None:
        at: _Node | None = node
        while at is not None and at is not above and at is not self._root:
            was, at.locks = at.locks, at.locks + by
            if at.device and bool(was) is not bool(at.locks):
                self.locked += at.length if at.locks else -at.length
            self._note(at)
            at = at.parent

    def _use(self, node: _Node) -> None:
        """A use is one of the whole path."""
        self._tick += 1
        for above in self._path(node):
            above.stamp = self._tick

    # Eviction

    def _evict_device(self, need: int) -> int:
        freed = 0
        while freed < need:
            node = _oldest(self._device_leaves)
            assert node is not None, "unlocked device KV without a leaf"
            node = self._end_of(node, need - freed)
            if self._variant.write_back and not node.host:
                self._back_up(node)
            freed += node.length
            if node.host:
                self._set(node, device=False)
            else:
                self._forget(node)
        return freed

    def _evict_host(self, need: int) -> None:
        while need > 0:
            node = _oldest(self._host_leaves)
            if node is None:
                return
            node = self._end_of(node, need)
            need -= node.length
            self._forget(node)

    def _end_of(self, node: _Node, need: int) -> _Node:
        """The part of a leaf that goes: all of it, or as many blocks from its end as needed."""
        block = self._config.block_size
        start = max(0, node.end - need) // block * block
        if self._variant.blocks and start > node.start:
            self._split(node, start)
        return node

    def _back_up(self, node: _Node) -> None:
        """Copy a node to the host, which makes room by its own order; where there is too little
        room, its first blocks, or nothing if nodes are not divided."""
        capacity = self._config.host_capacity
        self._evict_host(node.length - (capacity - self.host))
        room = capacity - self.host
        if node.length > room and self._variant.blocks:
            block = self._config.block_size
            kept = (node.start + room) // block * block
            if kept > node.start:
                self._copy_out(self._split(node, kept))
        elif node.length <= room:
            self._copy_out(node)

    def _copy_out(self, node: _Node) -> None:
        self._set(node, host=True)
        self._copied += node.length

    def _write_through(self, node: _Node) -> None:
        for above in self._path(node):
            if not above.host:
                self._back_up(above)
            if not above.host:
                return  # the host keeps prefixes only: what follows could not be used


def _oldest(leaves: dict[int, _Node]) -> _Node | None:
    """The least recently used; of one path the deepest."""
    return min(leaves.values(), key=lambda n: (n.stamp, -n.start, n.id), default=None)
