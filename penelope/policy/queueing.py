"""What the core is told of the future: which requests wait, and which histories have ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penelope.policy.draft import Draft
from penelope.policy.effects import Effect
from penelope.policy.errors import UnknownTicket
from penelope.policy.locking import Step
from penelope.policy.matching import Match, require_match
from penelope.policy.state import Place, State, Ticket
from penelope.policy.waiting import IN_VIEW, replaced


class LinedUp(NamedTuple):
    state: State
    effects: tuple[Effect, ...]
    tickets: tuple[Ticket, ...]
    """Of the requests in view, in order of service: what stands for them from now on."""


def line_up(state: State, queue: Sequence[Ticket | Match]) -> LinedUp:
    """The requests that wait, in the order in which they will be served.

    A new one is given by its match, whose whole path it will use; one that waited before by its
    ticket, so that nothing is matched twice.  Who is not named does not wait any more.  Only the
    first `IN_VIEW` count, the others get no ticket yet.  No use is recorded and nothing is locked.
    Raises `StalePlan` for a match that was made on another state, `UnknownTicket` for a ticket
    that is not in the queue or is named twice.  Cost: linear in the queue in view.
    """
    before = state.waiting
    view = tuple(queue[:IN_VIEW])
    if view == before.order:
        return LinedUp(state, (), before.order)
    # Mostly the first ones are served and others join: what stays is a run of both queues.
    first = before.order.index(view[0]) if view and view[0] in before.order else 0
    run = before.order[first : first + len(view)]
    order = list(run) if view[: len(run)] == run else []
    stay, named = set(order), set(order)
    come: list[tuple[Ticket, Place]] = []
    next_ticket, last = before.next_ticket, order[-1] if order else -1
    for entry in view[len(order) :]:
        if isinstance(entry, Match):
            entry.require(state)
            place, ticket = Place(entry.node, entry.end), None
        else:
            if entry not in before.places or entry in named:
                raise UnknownTicket(
                    f"ticket {entry} is not in the queue, or named twice: give the match"
                )
            named.add(entry)
            place, ticket = before.places[entry], entry
        # Tickets stand in the order of their numbers: who has been overtaken gets a new one.
        if ticket is None or ticket < last:
            ticket = Ticket(next_ticket)
            next_ticket += 1
            come.append((ticket, place))
        else:
            stay.add(ticket)
        order.append(ticket)
        last = ticket
    gone = [ticket for ticket in before.order if ticket not in stay]
    draft = Draft(state)
    draft.waiting = replaced(before, tuple(order), gone, come, next_ticket)
    if draft.ranks:
        # Where the tickets are those of before, their histories stand where they stood.
        places = [*(before.places[ticket] for ticket in gone), *(place for _, place in come)]
        draft.dirty.update(place.node for place in places if place.node is not None)
    return LinedUp(*draft.close(), draft.waiting.order)


def retire(state: State, matched: Match) -> Step:
    """The history that ends where the match ends will not come back: its KV goes first.

    For a session that is over, or has rewritten its history: match what it has left as a whole
    (`at_most` its length).  Where others go on from there, nothing happens; the next use of the
    history undoes it.  Being wrong costs a recomputation.
    Raises `StalePlan` if the match was made on another state.
    """
    require_match(matched, state)
    node = None if matched.node is None else state.nodes[matched.node]
    if node is None or node.children or matched.end < node.end or node.retired:
        return Step(state, ())
    draft = Draft(state)
    draft.change(node, node._replace(retired=True))
    return Step(*draft.close())
