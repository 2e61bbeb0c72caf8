"""The same tree in other nodes: every node cut into pieces, nothing else changed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from immutables import Map

from penelope.policy import NodeId, State
from penelope.policy.state import Node, Place
from penelope.policy.waiting import replaced


def shatter(state: State, grain: int) -> State:
    """Cut every node at the absolute multiples of `grain`.

    As in a split, the last piece keeps the node's id, so that receipts and victims stay right.
    """
    nodes = dict(state.nodes.items())
    fresh = state.next_node
    for node in state.nodes.values():
        cuts = range(node.start // grain * grain + grain, node.end, grain)
        if node.parent is None or not cuts:
            continue
        bounds = [node.start, *cuts, node.end]
        pieces: list[Node] = []
        for start, end in pairwise(bounds):
            last = end == node.end
            piece = node._replace(
                id=node.id if last else NodeId(fresh),
                parent=pieces[-1].id if pieces else node.parent,
                start=start,
                end=end,
                branched=node.branched and last,
                retired=node.retired and last,
            )
            pieces.append(piece)
            fresh += not last
        for upper, lower in pairwise(pieces):
            nodes[upper.id] = upper._replace(children=Map({_edge(state, lower): lower.id}))
        # Somebody else may have cut the parent or the children by now: keep what they changed.
        nodes[node.id] = nodes[node.id]._replace(start=pieces[-1].start, parent=pieces[-1].parent)
        above = nodes[node.parent]
        nodes[above.id] = above._replace(
            children=above.children.set(_edge(state, pieces[0]), pieces[0].id)
        )
    places = []
    for ticket in state.waiting.order:
        place = state.waiting.places[ticket]
        at = place.node
        while at is not None and place.end <= nodes[at].start:
            at = nodes[at].parent
        places.append((ticket, Place(at, place.end)))
    queue = state.waiting
    waiting = replaced(queue, queue.order, queue.order, places, queue.next_ticket)
    return replace(state, nodes=Map(nodes), next_node=fresh, waiting=waiting)


def _edge(state: State, node: Node) -> bytes:
    width = state.config.unit_bytes
    return node.key[node.start * width : (node.start + state.config.page_size) * width]
