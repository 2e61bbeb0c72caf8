"""State predicates about the shape of the trees, and the walk that all of them share.

Each returns what is wrong, as texts that name nodes and numbers; none recurses, and none trusts
what another one checks: a corrupted state is reported, never a reason to loop or to crash.
"""

from __future__ import annotations

from penelope.policy import Granularity, Node, NodeId, Position, Residency, State
from penelope.policy.ticks import TickMap


def preorder(state: State) -> list[Node]:
    """Every node that a walk down from the roots reaches, parents first, each once."""
    seen: set[NodeId] = set()
    order: list[Node] = []
    pending = list(state.roots.values())
    while pending:
        node_id = pending.pop()
        node = state.nodes.get(node_id)
        if node is None or node_id in seen:
            continue
        seen.add(node_id)
        order.append(node)
        pending.extend(node.children.values())
    return order


def band(node: Node) -> str:
    return f"node {node.id} [{node.start}, {node.end})"


def label(state: State, node: Node, start: int, end: int) -> bytes:
    width = state.config.unit_bytes
    return node.key[start * width : end * width]


def well_formed(state: State) -> list[str]:
    """Parents and children agree, labels continue their parents', spans are whole pages."""
    wrong = _roots(state)
    reached = {node.id for node in preorder(state)}
    for node_id, node in state.nodes.items():
        if node.id != node_id or not 0 <= node_id < state.next_node:
            wrong.append(f"{band(node)} is filed as {node_id} (next id {state.next_node})")
        if node_id not in reached:
            wrong.append(f"{band(node)} is not reached from any root")
        if len(node.children) > 1 and not node.branched:
            wrong.append(f"{band(node)} has {len(node.children)} children and never branched")
        for child_id in node.children.values():
            child = state.nodes.get(child_id)
            if child is None or child.parent != node_id:
                wrong.append(f"{band(node)} lists child {child_id}, which is not its child")
        if not node.is_root:
            wrong += _misplaced(state, node)
    wrong.extend(
        f"receipt {receipt} was never issued (next is {state.next_receipt})"
        for receipt in state.leases
        if not 0 <= receipt < state.next_receipt
    )
    return wrong


def _roots(state: State) -> list[str]:
    wrong: list[str] = []
    for namespace, root_id in state.roots.items():
        root = state.nodes.get(root_id)
        if root is None or not root.is_root or root.namespace != namespace:
            wrong.append(f"the root {root_id} of {namespace} is not a root of it")
        elif (
            root.start
            or root.end
            or root.residency is not Residency.HOLE
            or root.filler is not None
            or root.move is not None
        ):
            wrong.append(f"root {root_id} holds a span")
        elif not root.children and not root.locks:
            wrong.append(f"root {root_id} of {namespace} is idle and empty: it should be gone")
    return wrong


def _misplaced(state: State, node: Node) -> list[str]:
    """What is wrong between a node and its parent."""
    parent = None if node.parent is None else state.nodes.get(node.parent)
    if parent is None:
        return [f"{band(node)} has a parent {node.parent} that does not exist"]
    wrong: list[str] = []
    page = state.config.page_size
    if node.id not in parent.children.values():
        wrong.append(f"{band(node)} is not among the children of node {parent.id}")
    if node.namespace != parent.namespace:
        wrong.append(f"{band(node)} is in another namespace than node {parent.id}")
    if not node.start == parent.end < node.end or node.start % page or node.end % page:
        wrong.append(f"{band(node)} does not continue {band(parent)} in whole pages of {page}")
    if len(node.key) < node.end * state.config.unit_bytes:
        wrong.append(f"{band(node)} reaches beyond its key")
    if node.key is not parent.key and label(state, node, parent.start, parent.end) != label(
        state, parent, parent.start, parent.end
    ):
        wrong.append(f"the key of {band(node)} leaves the history of {band(parent)}")
    if not 0 < node.stamp <= state.tick:
        wrong.append(f"{band(node)} has stamp {node.stamp} at tick {state.tick}")
    return wrong


def pages_once(state: State) -> list[str]:
    """No page of a history belongs to two nodes, or to one that a match would not find."""
    wrong: list[str] = []
    page = state.config.page_size
    for node in state.nodes.values():
        owners: dict[bytes, NodeId] = {}
        for edge, child_id in node.children.items():
            child = state.nodes.get(child_id)
            if child is None:
                continue
            first = label(state, child, child.start, child.start + page)
            if first in owners:
                wrong.append(
                    f"nodes {owners[first]} and {child_id} both own the page at {child.start} "
                    f"below node {node.id}"
                )
            elif first != edge:
                wrong.append(
                    f"{band(child)} is filed under another page than its first: "
                    f"its span could be adopted a second time"
                )
            owners[first] = child_id
    return wrong


def victim_order(state: State) -> list[str]:
    """The indexes of victims, and of what is demoted next, are what a search would find."""
    order = preorder(state)
    victims = [n for n in order if not (n.is_root or n.children or n.locks)]
    wrong = _indexed("victims", state.victims, victims)
    below = device_below(state)
    demotable = [
        node
        for node in order
        if state.config.host_capacity
        and node.residency is Residency.DEVICE
        and not node.locks
        and not below[node.id]
    ]
    wrong += _indexed("demotable nodes", state.demotable, demotable)
    for node in order:
        due = below[node.id] if state.config.host_capacity else 0
        if node.device_below != due:
            wrong.append(
                f"{band(node)} counts {node.device_below} children that lead to device KV, "
                f"{due} are due"
            )
    return wrong


def device_below(state: State) -> dict[NodeId, int]:
    """How many children of each node have device KV at or below them."""
    below: dict[NodeId, int] = {}
    for node in reversed(preorder(state)):
        count = below.setdefault(node.id, 0)
        if node.parent is not None and (count or node.residency is Residency.DEVICE):
            below[node.parent] = below.get(node.parent, 0) + 1
    return below


def _indexed(what: str, index: TickMap[NodeId], nodes: list[Node]) -> list[str]:
    """Where an index by stamp is not exactly these nodes, oldest first."""
    wrong: list[str] = []
    expected: dict[int, NodeId] = {}
    for node in nodes:
        if node.stamp in expected:
            wrong.append(f"{what} {expected[node.stamp]} and {node.id} share stamp {node.stamp}")
        expected[node.stamp] = node.id
    indexed = dict(index.in_order())
    wrong.extend(
        f"the index of {what} says {indexed.get(stamp)} at stamp {stamp}, the trees say "
        f"{expected.get(stamp)}"
        for stamp in sorted(expected.keys() | indexed.keys())
        if expected.get(stamp) != indexed.get(stamp)
    )
    if index.size != len(indexed):
        wrong.append(f"the index of {what} counts {index.size} and holds {len(indexed)}")
    first = indexed[min(indexed)] if indexed else None
    if index.first() != first:
        wrong.append(f"the index of {what} offers {index.first()} first, the oldest is {first}")
    return wrong


def merged(state: State) -> list[str]:
    """Between the nodes of every pair of neighbours something differs that decisions see."""
    if state.config.granularity is Granularity.NODE:
        return []
    wrong: list[str] = []
    for upper in state.nodes.values():
        if upper.is_root or len(upper.children) != 1:
            continue
        lower = state.nodes.get(next(iter(upper.children.values())))
        if lower is None or not _alike(upper, lower):
            continue
        if state.config.position is Position.LEAF_HEAD and upper.residency is not Residency.HOLE:
            continue
        if not (state.config.sticky_shared and upper.branched):
            wrong.append(f"{band(upper)} and {band(lower)} differ in nothing and are not merged")
    return wrong


def _alike(upper: Node, lower: Node) -> bool:
    """Recency tells neighbours apart when the upper was used later; never two holes."""
    return (
        upper.residency is lower.residency
        and upper.locks == lower.locks
        and upper.filler == lower.filler
        and upper.move == lower.move
        and (upper.stamp <= lower.stamp or upper.residency is Residency.HOLE)
    )
