"""Whose turn it is: the choice of a victim, which never decides what may be evicted.

Every order is total and a function of the state.  A history that is *retired* goes before all
others.  Then `Order.LRU` takes the least recently used history, `Order.EXPECTED_COST` the one with
the lowest score, the older of two that are equal:

    score = class(linear cost + position of the next unit to go) * weight
    weight = tau / (age + tau)**2                 idle; the age is in ticks
    weight = 1 / tau + 1 / (2 * (k + 1))          the k-th request that waits (from 0) will use it

A weight says how soon the history will be wanted.  One that waits weighs more than any idle one,
so it never goes before an idle one that costs no more; under LRU it never goes before any idle one.
Costs are rounded down to classes, two an octave.  Within a class the weight alone decides, so the
first of a class is the first of an index by stamp, or the last of one by ticket, and the victim is
the best of a few dozen candidates however many histories there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from immutables import Map, MapMutation

from penelope.policy.config import Config, Order
from penelope.policy.state import Filed, Node, NodeId, Ranking, State, Ticket, Waiting
from penelope.policy.ticks import TickMap
from penelope.policy.waiting import rank, soonest
from penelope.policy.walk import device_span, is_victim, parts, private_span

TAU: Final = 64
"""Ticks: the age at which a history has a quarter of the weight that it had when it was used."""

Score = tuple[int, int]
"""Numerator and denominator of a score: compared exactly, the same on every machine."""


class Books(Protocol):
    """What a choice reads: a state under construction."""

    @property
    def config(self) -> Config: ...
    @property
    def nodes(self) -> MapMutation[NodeId, Node]: ...
    @property
    def victims(self) -> TickMap[NodeId]: ...
    @property
    def retired(self) -> TickMap[NodeId]: ...
    @property
    def waiting(self) -> Waiting: ...
    @property
    def ranking(self) -> Ranking: ...
    @property
    def tick(self) -> int: ...
    def rank(self) -> None: ...


def first_victim(books: Books) -> NodeId:
    """The history that loses KV next.  There must be a victim.

    Cost: a few dozen comparisons under `EXPECTED_COST`; under LRU one look, and one walk for each
    history in view of the queue that is passed over.
    """
    retired = books.retired.first()
    if retired is not None:
        return retired
    if books.config.order is Order.EXPECTED_COST:
        books.rank()
        return _cheapest(books)
    if not books.waiting.at:
        victim = books.victims.first()
        assert victim is not None, "evictable KV without a victim leaf"
        return victim
    last, found = -1, None
    for _, leaf in books.victims.in_order():
        ticket = soonest(books.waiting, private_span(books.config, books.nodes, leaf)[0])
        if ticket is None:
            return leaf
        if ticket > last:
            last, found = ticket, leaf
    assert found is not None, "evictable KV without a victim leaf"
    return found


def _cheapest(books: Books) -> NodeId:
    best: tuple[Score, int, NodeId] | None = None
    least: int | None = None
    for cost, order in books.ranking.idle.items():
        stamp, leaf = order.first_entry()
        candidate = idle_score(cost, books.tick - stamp), stamp, leaf
        if best is None or _before(candidate, best):
            best, least = candidate, cost
    for cost, order in books.ranking.waiting.items():
        if least is not None and cost >= least:
            continue  # it weighs more than any idle one, and costs no less
        ticket, leaf = order.last_entry()
        stamp = books.nodes[leaf].stamp
        candidate = waiting_score(cost, rank(books.waiting, ticket)), stamp, leaf
        if best is None or _before(candidate, best):
            best = candidate
    assert best is not None, "evictable KV without a victim leaf"
    return best[2]


def _before(one: tuple[Score, int, NodeId], other: tuple[Score, int, NodeId]) -> bool:
    """Whether a candidate goes before another: the lower score, then the older."""
    ours, theirs = one[0][0] * other[0][1], other[0][0] * one[0][1]
    return ours < theirs or (ours == theirs and one[1] < other[1])


def cost_class(cost: int) -> int:
    """Rounded down to a class, two an octave: 1, 2, 3, 4, 6, 8, 12, 16, 24, …

    The least is 1, so that a weight tells histories apart that cost nothing.
    """
    if cost < 2:
        return 1
    half = 1 << (cost.bit_length() - 2)
    return cost // half * half


def next_class(cost: int) -> int:
    """The least cost of the class above."""
    if cost < 2:
        return 2
    half = 1 << (cost.bit_length() - 2)
    return (cost // half + 1) * half


def idle_score(cost: int, age: int) -> Score:
    """Of an idle history: its cost times tau / (age + tau)**2."""
    return cost * TAU, (age + TAU) ** 2


def waiting_score(cost: int, place: int) -> Score:
    """Of one that waits at a place of the queue: its cost times 1 / tau + 1 / (2 * (place + 1))."""
    return cost * (TAU + 2 * (place + 1)), 2 * TAU * (place + 1)


def share(books: Books, leaf: NodeId, need: int) -> int:
    """How much of a need one history gives before another may have become cheaper.

    While a head goes, what is left grows dearer, but its score only at the next class, and where
    what the first waiting request wants has gone.  So this is as if all histories were compared
    after every block.
    """
    config = books.config
    if config.order is Order.LRU:
        return need
    filed = books.ranking.filed[leaf]
    until = next_class(config.linear_cost + filed.at) - config.linear_cost
    if filed.waits:
        until = min(until, books.waiting.places[Ticket(filed.tick)].end)
    return min(need, -(-until // config.block_size) * config.block_size - filed.at)


def first_to_demote(state: State) -> NodeId | None:
    """The history that leaves the device next; None when none can.

    The least recently used, those in view of the queue after all others.
    """
    if not state.waiting.at:
        return state.demotable.first()
    last, found = -1, None
    for _, leaf in state.demotable.in_order():
        span = device_span(state.nodes, leaf)
        ticket = soonest(state.waiting, (node.id for node in span))
        if ticket is None:
            return leaf
        if ticket > last:
            last, found = ticket, leaf
    return found


def ranked(books: Books, changed: Iterable[NodeId]) -> Ranking:
    """The ranking after these nodes have changed: what is filed follows from the nodes."""
    ranking = books.ranking
    leaves = _concerned(books, changed)
    if not leaves:
        return ranking
    filed = ranking.filed.mutate()
    idle, waiting = ranking.idle, ranking.waiting
    entered: list[tuple[NodeId, Filed]] = []
    # All that leave before any enters: a tick may pass from one to another.
    for leaf in sorted(leaves):
        old, new = filed.get(leaf), _file(books, leaf)
        if old == new:
            continue
        if old is not None:
            del filed[leaf]
            if old.waits:
                waiting = _without(waiting, old)
            else:
                idle = _without(idle, old)
        if new is not None:
            entered.append((leaf, new))
    for leaf, new in entered:
        filed[leaf] = new
        if new.waits:
            waiting = _with(waiting, new, leaf)
        else:
            idle = _with(idle, new, leaf)
    return Ranking(filed.finish(), idle, waiting)


def _concerned(books: Books, changed: Iterable[NodeId]) -> set[NodeId]:
    """The histories that a change of these nodes matters to.

    That of one node to one at most, the one that it leads to alone.
    """
    nodes, filed = books.nodes, books.ranking.filed
    leaves: set[NodeId] = set()
    for node_id in changed:
        if node_id in filed:
            leaves.add(node_id)
        node = nodes.get(node_id)
        while node is not None and len(node.children) == 1:
            (only,) = node.children.values()
            node = nodes[only]
            if parts(node):
                node = None  # no walk from below comes as far as the node that has changed
        if node is not None and is_victim(node):
            leaves.add(node.id)
    return leaves


def _file(books: Books, leaf: NodeId) -> Filed | None:
    """Where a history stands now; None if it may not be evicted."""
    node = books.nodes.get(leaf)
    if node is None or not is_victim(node):
        return None
    span, _ = private_span(books.config, books.nodes, leaf)
    at = books.nodes[span[0]].start
    ticket = soonest(books.waiting, span) if books.waiting.at else None
    cost = cost_class(books.config.linear_cost + at)
    return Filed(cost, at, node.stamp if ticket is None else ticket, ticket is not None)


def _with(
    index: Map[int, TickMap[NodeId]], filed: Filed, leaf: NodeId
) -> Map[int, TickMap[NodeId]]:
    order: TickMap[NodeId] = index.get(filed.cost, TickMap())
    return index.set(filed.cost, order.insert(filed.tick, leaf))


def _without(index: Map[int, TickMap[NodeId]], filed: Filed) -> Map[int, TickMap[NodeId]]:
    order = index[filed.cost].remove(filed.tick)
    return index.set(filed.cost, order) if order.size else index.delete(filed.cost)
