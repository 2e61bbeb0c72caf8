"""Why there may be no room for what is asked, or no place for what is offered.

Read on the labels of nodes, page by page, and on a recount of the nodes: not on the counters, the
children maps or the comparisons of keys that the core goes by.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penelope.policy import Key, Match, Namespace, Node, NodeId, Residency, State
from penelope_spec.balance import recount


class Meeting(NamedTuple):
    """Where a key meets the tree: [start, end) of one node."""

    node: Node
    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


def whole_pages(state: State, key: Key) -> int:
    """Units of the key that fill pages."""
    units = len(key) // state.config.unit_bytes
    return units - units % state.config.page_size


def meetings(state: State, key: Key, namespace: Namespace) -> list[Meeting]:
    """The nodes that the key runs through, as far as it agrees with them, from the root on."""
    at: NodeId | None = state.roots.get(namespace)
    found: list[Meeting] = []
    end, position = whole_pages(state, key), 0
    while at is not None and position < end:
        below = [node for node in state.nodes.values() if node.parent == at]
        at = None
        for node in below:
            stop = position
            while stop < min(node.end, end) and _page(state, node.key, stop) == _page(
                state, key, stop
            ):
                stop += state.config.page_size
            if stop > position:
                found.append(Meeting(node, position, stop))
                at, position = (node.id if stop == node.end else None), stop
                break
    return found


def _page(state: State, key: Key, position: int) -> Key:
    width = state.config.unit_bytes
    return Key(key[position * width : (position + state.config.page_size) * width])


def path_to(state: State, node: NodeId) -> list[Node]:
    """The node and those above it, the root excluded."""
    found = []
    at = state.nodes[node]
    while at.parent is not None:
        found.append(at)
        at = state.nodes[at.parent]
    return found


class Room(NamedTuple):
    """What promises are measured by (T1), in units."""

    free: int
    device: int
    locked: int
    host: int
    locked_host: int
    reserved: int

    def breaks_promises(self, state: State) -> bool:
        """Whether what is promised to live receipts could not be had any more."""
        counted, config = recount(state), state.config
        promised = counted.due + counted.promote
        if not promised:
            return False
        return (
            self.free + self.device - self.locked < promised
            or self.device + self.host + self.reserved + counted.due > config.logical_capacity
            or self.locked_host > config.host_resident + counted.promote + counted.inbound
        )


def room(state: State) -> Room:
    counted = recount(state)
    used = counted.device + counted.reserved + counted.inbound
    return Room(
        state.config.device_capacity - used,
        counted.device,
        counted.locked,
        counted.host,
        counted.locked_host,
        counted.reserved,
    )


def available(state: State) -> int:
    """Device units that are free or can be made so, and are promised to nobody."""
    counted, now = recount(state), room(state)
    return now.free + now.device - now.locked - counted.due - counted.promote


def evictable(state: State) -> int:
    now = room(state)
    return now.device - now.locked + now.host - now.locked_host


def unlocked(state: State, matched: Match, tier: Residency) -> int:
    """Units of a match in a tier that nobody has locked yet: a lock on it takes them away."""
    return sum(
        span.length
        for span in matched.spans
        if span.residency is tier and not state.nodes[span.node].locks
    )


def with_locked(state: State, matched: Match) -> Room:
    """The room once the match is locked."""
    now = room(state)
    return now._replace(
        locked=now.locked + unlocked(state, matched, Residency.DEVICE),
        locked_host=now.locked_host + unlocked(state, matched, Residency.HOST),
    )


def with_offer(
    state: State, offered: Iterable[Meeting], beyond: int, consumed: int, *, locks: bool
) -> tuple[int, Room]:
    """Units that an offer would have the tree adopt, and the room after that.

    `offered` meets nodes of the tree; `beyond` units it lacks; `consumed` leave a reservation;
    `locks`: whether what is offered is locked by it.
    """
    now = room(state)
    adopted, locked, host, locked_host = beyond, beyond if locks else 0, 0, 0
    for node, start, end in offered:
        held = node.residency is Residency.DEVICE
        if not held:
            adopted += end - start
        if node.residency is Residency.HOST:
            host += end - start
            locked_host += end - start if node.locks else 0
        if (locks and not (held and node.locks)) or (not held and node.locks):
            locked += end - start
    after = Room(
        now.free - adopted + consumed,
        now.device + adopted,
        now.locked + locked,
        now.host - host,
        now.locked_host - locked_host,
        now.reserved - consumed,
    )
    return adopted, after
