"""State predicates about what is on its way: holes being refilled, and moves between the tiers."""

from __future__ import annotations

from penelope.policy import (
    Move,
    MoveId,
    Node,
    NodeId,
    Receipt,
    Refused,
    Residency,
    State,
    begin_move,
    next_demotion,
    next_transfer,
)
from penelope_spec.balance import recount
from penelope_spec.structure import band, pages_once, preorder

_SOURCE = {Residency.DEVICE: Residency.HOST, Residency.HOST: Residency.DEVICE}
"""Where a move takes KV from, by its target.  No other residency is a target."""


def in_flight(state: State) -> list[str]:
    """What is refilled or moved is marked so, once, by what is live; the marks are all there are.

    Nothing that a receipt covers is on its way out: it would be read there.
    """
    if not state.moves and not any(
        node.filler is not None or node.move is not None for node in state.nodes.values()
    ):
        return []
    limit = len(preorder(state))
    wrong: list[str] = []
    for node in state.nodes.values():
        if node.filler is not None:
            wrong += _refilled(state, node, limit)
        if node.move is not None and node.move not in state.moves:
            wrong.append(f"{band(node)} is moved by {node.move}, which is not in flight")
    for number, move in state.moves.items():
        wrong += _moved(state, number, move, limit)
    return wrong


def _refilled(state: State, node: Node, limit: int) -> list[str]:
    """A span that is refilled is a hole, and the receipt that does so is live and covers it."""
    wrong: list[str] = []
    lease = None if node.filler is None else state.leases.get(node.filler)
    if node.residency is not Residency.HOLE:
        wrong.append(f"{band(node)} is in flight for receipt {node.filler} and has KV")
    if lease is None:
        wrong.append(f"{band(node)} is in flight for receipt {node.filler}, which is not live")
    elif all(n.id != node.id for n in path_to(state, lease.node, limit)):
        wrong.append(f"{band(node)} is in flight for receipt {node.filler}, not on its path")
    return wrong


def _moved(state: State, number: MoveId, move: Move, limit: int) -> list[str]:
    """The nodes that a move's mark is on make up its span, up from the node where it ends."""
    wrong: list[str] = []
    span = f"move {number} of [{move.start}, {move.end})"
    marked = [node for node in state.nodes.values() if node.move == number]
    way = path_to(state, move.node, limit)
    expected = [node for node in way if node.end > move.start and node.start < move.end]
    exact = bool(expected) and (expected[-1].start, expected[0].end) == (move.start, move.end)
    if not 0 <= number < state.next_move:
        wrong.append(f"{span} never began (the next is {state.next_move})")
    if not exact or way[:1] != expected[:1]:
        wrong.append(f"{span} does not end in node {move.node}, or not begin where a node does")
    elif sorted(n.id for n in marked) != sorted(n.id for n in expected):
        wrong.append(
            f"{span} is marked on nodes {sorted(n.id for n in marked)}, its span is nodes "
            f"{sorted(n.id for n in expected)}"
        )
    if move.target is Residency.HOST:
        used = covered(state, limit)
        wrong.extend(f"{band(node)} is leaving while in use" for node in marked if node.id in used)
    return wrong


def covered(state: State, limit: int) -> set[NodeId]:
    """The nodes on the path of a live receipt."""
    return {
        node.id for lease in state.leases.values() for node in path_to(state, lease.node, limit)
    }


def path_to(state: State, end: NodeId, limit: int) -> list[Node]:
    """The node and its ancestors, deepest first, the root excluded, in at most `limit` steps."""
    way: list[Node] = []
    node = state.nodes.get(end)
    while node is not None and node.parent is not None and len(way) < limit:
        way.append(node)
        node = state.nodes.get(node.parent)
    return way


def one_copy(state: State) -> list[str]:
    """A page belongs to one node, and a span in flight is where it came from until that ends."""
    return pages_once(state) + [
        f"{band(node)} is being moved to the {move.target.value} and its KV is "
        f"{node.residency.value}"
        for node in state.nodes.values()
        if node.move is not None
        and (move := state.moves.get(node.move)) is not None
        and _SOURCE.get(move.target) is not node.residency
    ]


def bounded_swap(state: State) -> list[str]:
    """What stands on the host beyond what the host keeps fits the swap buffer."""
    counted = recount(state)
    staged = counted.host + counted.outbound - state.config.host_resident
    buffer = state.config.swap_buffer
    return [f"{staged} units are staged in a swap buffer of {buffer}"] if staged > buffer else []


def answers_accepted(state: State) -> list[str]:
    """`begin_move` takes what `next_transfer` and `next_demotion` answer, for any number of units.

    The core itself is asked, so the state must be sound in every other respect.
    """
    if not state.config.host_capacity:
        return []
    page, block = state.config.page_size, state.config.block_size
    asked = {1, page, page + 1, block, state.config.device_capacity}
    answers = [(f"{units} units", next_demotion(state, units)) for units in sorted(asked)]
    answers += [
        (f"receipt {number}", next_transfer(state, Receipt(number)))
        for number in sorted(state.leases)
    ]
    wrong: list[str] = []
    for whom, transfer in answers:
        try:
            if transfer is not None:
                begin_move(state, transfer)
        except Refused as refusal:
            wrong.append(f"the next transfer for {whom} is refused: {refusal}")
    return wrong
