"""What may be evicted, in any order: the walk from a leaf to the earliest point of its history."""

from __future__ import annotations

from enum import Enum

from penelope.policy.config import Config
from penelope.policy.matching import Nodes
from penelope.policy.state import Node, NodeId, Residency


class Stop(Enum):
    """Why the walk from a leaf towards the root went no further."""

    ROOT = "the predecessor is the root"
    SHARED = "the predecessor has more than one child: it and all above is a shared prefix"
    LOCKED = "the predecessor is in use by a running request"
    HOLE = "the predecessor's KV has been evicted already"
    USED_LATER = "the predecessor was used later than this history: others still use it"


def stop_reason(config: Config, predecessor: Node, last_use: int) -> Stop | None:
    """Why a walk must stop below this node; None when it may go on to it.

    `last_use` is the tick at which the history of the walk was used last.
    """
    shared = len(predecessor.children) > 1 or (config.sticky_shared and predecessor.branched)
    return stop_below(predecessor, last_use, shared=shared)


def stop_below(predecessor: Node, last_use: int, *, shared: bool) -> Stop | None:
    """The same, where it is known whether the predecessor is shared: eviction and demotion differ
    in which children count.
    """
    if predecessor.is_root:
        return Stop.ROOT
    if shared:
        return Stop.SHARED
    if predecessor.locks:
        return Stop.LOCKED
    if predecessor.residency is Residency.HOLE:
        return Stop.HOLE
    if predecessor.stamp > last_use:
        return Stop.USED_LATER
    return None


def private_span(config: Config, nodes: Nodes, leaf: NodeId) -> tuple[list[NodeId], Stop]:
    """Walk from a victim leaf to the earliest evictable point of its private history.

    Returns the nodes from that point down to the leaf, in position order, and why it is the
    earliest.  Linear in the nodes of the private span.
    """
    node = nodes[leaf]
    last_use = node.stamp
    span = [leaf]
    while True:
        predecessor = nodes[parent_of(node)]
        reason = stop_reason(config, predecessor, last_use)
        if reason is not None:
            span.reverse()
            return span, reason
        span.append(predecessor.id)
        node = predecessor


def is_victim(node: Node) -> bool:
    """Whether the node is an unlocked leaf with KV, which eviction may begin with."""
    return not node.children and not node.locks and node.residency is not Residency.HOLE


def parts(node: Node) -> bool:
    """Whether no walk passes the node, whatever the history: none begins there either."""
    return (
        node.locks > 0
        or node.residency is Residency.HOLE
        or len(node.children) > 1
        or node.parent is None
    )


def device_span(nodes: Nodes, leaf: NodeId) -> list[Node]:
    """The same as the device sees it, deepest node first: host spans are passed by, and branches
    wholly on the host are as good as gone.
    """
    node = nodes[leaf]
    last_use = node.stamp
    span = [node]
    while True:
        node = nodes[parent_of(node)]
        if stop_below(node, last_use, shared=node.device_below > 1):
            return span
        span.append(node)


def parent_of(node: Node) -> NodeId:
    """The predecessor of a node that is not a root."""
    assert node.parent is not None, "a root is never a victim"
    return node.parent
