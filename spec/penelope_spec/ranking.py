"""Predicates about whose turn it is: the queue, the indexes of the orders, and the choice itself.

The order is written down here once more, over all victims and in fractions, without an index.
"""

from __future__ import annotations

from fractions import Fraction

from penelope.policy import NodeId, Order, Residency, State, private_span
from penelope.policy.order import TAU
from penelope.policy.state import Filed, Node
from penelope_spec.facts import Happened
from penelope_spec.structure import band


def queue_kept(state: State) -> list[str]:
    """Tickets stand in the order of their numbers, and each place is in a node of a tree."""
    waiting = state.waiting
    wrong: list[str] = []
    if list(waiting.order) != sorted(set(waiting.order)):
        wrong.append(f"the tickets {waiting.order} are not in the order of their numbers")
    if set(waiting.order) != set(waiting.places.keys()):
        wrong.append("the queue and its places have different tickets")
    due: dict[NodeId, tuple[int, ...]] = {}
    for ticket in waiting.order:
        place = waiting.places.get(ticket)
        if not 0 <= ticket < waiting.next_ticket:
            wrong.append(f"ticket {ticket} was never given (next is {waiting.next_ticket})")
        if place is None or place.node is None:
            continue
        node = state.nodes.get(place.node)
        if node is None or not node.start < place.end <= node.end:
            wrong.append(f"ticket {ticket} stands at {place.end}, outside node {place.node}")
        due[place.node] = (*due.get(place.node, ()), ticket)
    if dict(waiting.at.items()) != due:
        wrong.append(f"tickets are listed by node as {dict(waiting.at.items())}, {due} are due")
    return wrong


def ranking_kept(state: State) -> list[str]:
    """The indexes of the orders are what a search would find."""
    victims = _victims(state)
    ended = {node.stamp: node.id for node in victims if node.retired}
    wrong = [
        f"{band(node)} is retired and has children"
        for node in state.nodes.values()
        if node.retired and node.children
    ]
    if dict(state.retired.in_order()) != ended:
        wrong.append("the index of retired histories is not what the trees say")
    filed: dict[NodeId, Filed] = {}
    if state.config.order is Order.EXPECTED_COST:
        for node in victims:
            at, cost, place = _standing(state, node)
            tick = node.stamp if place is None else state.waiting.order[place]
            filed[node.id] = Filed(cost, at, tick, place is not None)
    if dict(state.ranking.filed.items()) != filed:
        wrong.append(f"victims are filed as {dict(state.ranking.filed.items())}, {filed} are due")
    for waits, index in ((False, state.ranking.idle), (True, state.ranking.waiting)):
        listed = {
            (leaf, cost, tick) for cost, order in index.items() for tick, leaf in order.in_order()
        }
        due = {(leaf, f.cost, f.tick) for leaf, f in filed.items() if f.waits is waits}
        if listed != due or any(not order.size for order in index.values()):
            wrong.append(f"classes of cost hold {sorted(listed)}, {sorted(due)} are due")
    return wrong


def order_followed(happened: Happened) -> list[str]:
    """What goes first is of the history that is first in the order."""
    before = happened.before
    if happened.transition not in ("evict", "reserve") or not happened.shadow.freed:
        return []
    gone = happened.shadow.freed[0].origin
    chosen = next((n for n in _victims(before) if gone in _history(before, n)), None)
    if chosen is None:
        return [f"node {gone} went first, which is of no history that may be evicted"]
    turn = _turn(before, chosen)
    return [
        f"{happened.transition} took from {band(chosen)} before {band(other)}, whose turn it was"
        for other in _victims(before)
        if _turn(before, other) < turn
    ]


def _victims(state: State) -> list[Node]:
    return [
        node
        for node in state.nodes.values()
        if not (node.is_root or node.children or node.locks)
        and node.residency is not Residency.HOLE
    ]


def _history(state: State, leaf: Node) -> list[NodeId]:
    return private_span(state.config, state.nodes, leaf.id)[0]


def _standing(state: State, leaf: Node) -> tuple[int, int, int | None]:
    """The position of the next block to go, the class of its cost, and its place in the queue."""
    span = _history(state, leaf)
    at = state.nodes[span[0]].start
    cost = state.config.linear_cost + at
    classes = [odd << n for odd in (1, 3) for n in range(cost.bit_length() + 1)]
    places = [
        k
        for k, ticket in enumerate(state.waiting.order)
        if state.waiting.places[ticket].node in span
    ]
    return at, max(c for c in classes if c <= max(1, cost)), min(places, default=None)


def _turn(state: State, leaf: Node) -> tuple[bool, Fraction, int]:
    """The less, the sooner it goes."""
    _, cost, place = _standing(state, leaf)
    if leaf.retired:
        return False, Fraction(0), leaf.stamp
    if state.config.order is Order.LRU:
        return (
            True,
            Fraction(-1 if place is None else 1, 1 if place is None else place + 1),
            (leaf.stamp if place is None else 0),
        )
    if place is None:
        weight = Fraction(TAU, (state.tick - leaf.stamp + TAU) ** 2)
    else:
        weight = Fraction(1, TAU) + Fraction(1, 2 * (place + 1))
    return True, cost * weight, leaf.stamp
