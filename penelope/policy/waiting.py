"""The queue as the core sees it: which histories the requests that wait are going to use."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from immutables import Map

from penelope.policy.state import Node, NodeId, Place, Ticket, Waiting

IN_VIEW: Final = 128
"""Places of the queue that the core looks at.  A history that waits further behind counts as idle
until its request has moved up: by then most of what is cached now will have gone anyway.
"""

NOWHERE: Final = Place(None, 0)
"""Where a request waits of which nothing is cached."""


def soonest(waiting: Waiting, nodes: Iterable[NodeId]) -> Ticket | None:
    """The first request to be served of those whose match ends in one of the nodes."""
    return min((waiting.at[node][0] for node in nodes if node in waiting.at), default=None)


def rank(waiting: Waiting, ticket: int) -> int:
    """How many requests are served before this one."""
    return bisect_left(waiting.order, ticket)


def moved(waiting: Waiting, old: NodeId, new: NodeId, end: int | None = None) -> Waiting:
    """With the places in node `old` moved to `new`: those up to `end`, by default all."""
    tickets = waiting.at[old]
    go = tuple(t for t in tickets if end is None or waiting.places[t].end <= end)
    if not go:
        return waiting
    places = waiting.places.mutate()
    for ticket in go:
        places[ticket] = Place(new, places[ticket].end)
    stay = tuple(ticket for ticket in tickets if ticket not in go)
    at = waiting.at.set(old, stay) if stay else waiting.at.delete(old)
    at = at.set(new, tuple(sorted((*at.get(new, ()), *go))))
    return waiting._replace(places=places.finish(), at=at)


def fallen_back(waiting: Waiting, gone: NodeId, parent: Node) -> Waiting:
    """With the places in a node that has gone at the end of its parent; nowhere if it is a root."""
    places = waiting.places.mutate()
    for ticket in waiting.at[gone]:
        places[ticket] = NOWHERE if parent.is_root else Place(parent.id, parent.end)
    at = waiting.at.delete(gone)
    if not parent.is_root:
        at = at.set(parent.id, tuple(sorted((*at.get(parent.id, ()), *waiting.at[gone]))))
    return waiting._replace(places=places.finish(), at=at)


def replaced(
    waiting: Waiting,
    order: tuple[Ticket, ...],
    gone: Iterable[Ticket],
    come: Iterable[tuple[Ticket, Place]],
    next_ticket: int,
) -> Waiting:
    """The queue in this order: some tickets gone, others come, whose numbers are the highest."""
    places, at = waiting.places.mutate(), waiting.at.mutate()
    for ticket in gone:
        node = places.pop(ticket).node
        if node is not None:
            left = tuple(other for other in at[node] if other != ticket)
            if left:
                at[node] = left
            else:
                del at[node]
    for ticket, place in come:
        places[ticket] = place
        if place.node is not None:
            at[place.node] = (*at.get(place.node, ()), ticket)
    return Waiting(order, places.finish(), at.finish(), next_ticket)


def forgotten(waiting: Waiting) -> Waiting:
    """The same queue when the cache holds nothing any more."""
    places = Map(dict.fromkeys(waiting.order, NOWHERE))
    return waiting._replace(places=places, at=Map())
