"""Why a transition may say no: for each named refusal, what must then be true of the state.

A refusal for a reason that does not hold withholds what was promised; an acceptance where one
holds breaks it.  Reasons are read on the relations that the theorems are about; those about room
and about what is offered, on labels and on a recount (`penelope_spec.room`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from penelope.policy import (
    InFlight,
    InsufficientSpace,
    InUse,
    InvalidAmount,
    InvalidKey,
    Match,
    NotAPrefix,
    NotBeingRefilled,
    NothingToMove,
    OverCapacity,
    Receipt,
    Refused,
    RequestTooLarge,
    Residency,
    StalePlan,
    State,
    UnknownMove,
    UnknownReceipt,
    UnknownTicket,
)
from penelope.policy.waiting import IN_VIEW
from penelope_spec.abstraction import finite, move_name, picture
from penelope_spec.balance import recount
from penelope_spec.facts import Facts, shortfall
from penelope_spec.logic import NODE
from penelope_spec.relations import Claim, Setting
from penelope_spec.room import (
    Meeting,
    Room,
    available,
    evictable,
    meetings,
    path_to,
    room,
    unlocked,
    whole_pages,
    with_locked,
    with_offer,
)
from penelope_spec.tier_moves import DEPART, RESET
from penelope_spec.use_moves import LOCK


class Asked(NamedTuple):
    """What a transition was asked, on which state."""

    state: State
    facts: Facts


Reason = Callable[[Asked], bool | None]
"""Whether it holds; None where the state alone leaves it open."""


def _fails(asked: Asked, guards: Mapping[str, Claim], **constants: object) -> bool:
    """Whether one of the guards of an elementary move does not hold."""
    world = finite({"before": picture(asked.state)})
    w = Setting(world, constants)
    return not all(guard(w) for guard in guards.values())


def _something_is_held(asked: Asked) -> bool:
    return _fails(asked, RESET.guards)


def _receipt_is_not_live(asked: Asked) -> bool:
    receipt: Receipt = asked.facts["receipt"]
    guard: dict[str, Claim] = {
        "r is live": lambda w: w.logic.exists((NODE,), lambda n: w.before.lease(w["r"], n))
    }
    return _fails(asked, guard, r=receipt.id)


def _move_is_not_in_flight(asked: Asked) -> bool:
    guard: dict[str, Claim] = {
        "m takes something": lambda w: w.logic.exists(
            (NODE,), lambda n: w.logic.both(w.before.lease(w["m"], n), w.before.carries(w["m"], n))
        )
    }
    return _fails(asked, guard, m=move_name(asked.facts["move"]))


def _matched_span_leaves(asked: Asked) -> bool:
    facts = asked.facts
    matched: Match = facts["plan"].match if "plan" in facts else facts["match"]
    guard = {"nothing on the path is leaving": LOCK.guards["nothing on the path is leaving"]}
    return matched.node is not None and _fails(asked, guard, n=matched.node)


def _nothing_to_move(asked: Asked) -> bool:
    """The guards of `depart`, from where KV is, and whether there is room for it there."""
    state, transfer = asked.state, asked.facts["transfer"]
    node = state.nodes.get(transfer.node)
    page = state.config.page_size
    demotes = transfer.target is Residency.HOST
    room = state.config.host_capacity - state.host_used if demotes else state.free
    if (
        node is None
        or node.residency is transfer.target
        or not node.start <= transfer.start < transfer.end <= node.end
        or (transfer.start % page or transfer.end % page)
        or transfer.length > room
    ):
        return True
    return _fails(asked, DEPART.guards, n=transfer.node, m="a move to come")


def _made_on_another_state(asked: Asked) -> bool:
    facts = asked.facts
    matched: Match = facts["plan"].match if "plan" in facts else facts["match"]
    return matched.made_on is not asked.state


def _queue_is_stale(asked: Asked) -> bool:
    matches = [entry for entry in asked.facts["queue"][:IN_VIEW] if isinstance(entry, Match)]
    return any(matched.made_on is not asked.state for matched in matches)


def _ticket_is_not_waiting(asked: Asked) -> bool:
    tickets = [entry for entry in asked.facts["queue"][:IN_VIEW] if not isinstance(entry, Match)]
    return len(set(tickets)) < len(tickets) or not set(tickets) <= set(asked.state.waiting.order)


# Room and places, in numbers


def _key_is_no_units(asked: Asked) -> bool:
    return len(asked.facts["key"]) % asked.state.config.unit_bytes != 0


def _amount_is_negative(asked: Asked) -> bool:
    given = asked.facts
    amounts = [given.get("need"), given.get("units"), given.get("extra"), given.get("at_most")]
    if "plan" in given:
        amounts += (given["plan"].compute, given["plan"].held)
    return any(amount is not None and amount < 0 for amount in amounts)


def _device_is_too_small(asked: Asked) -> bool:
    config, facts = asked.state.config, asked.facts
    units = len(facts["key"]) // config.unit_bytes + facts["extra"]
    return -(-units // config.page_size) * config.page_size > config.device_capacity


def _evictable_is_less(asked: Asked) -> bool:
    return asked.facts["need"] > evictable(asked.state)


def _request_never_fits(asked: Asked) -> bool:
    """What the request holds on the device, or was promised there, leaves no room even alone."""
    state, lease = asked.state, asked.state.leases[asked.facts["receipt"].id]
    own = sum(
        node.end - node.start
        for node in path_to(state, lease.node)
        if node.residency is Residency.DEVICE
        or (node.residency is Residency.HOST and node.move is not None)
    )
    own += lease.reserved + lease.due + lease.promote
    return own + asked.facts["units"] > state.config.device_capacity


def _reservation_does_not_fit(asked: Asked) -> bool | None:
    state, units = asked.state, asked.facts["units"]
    over = state.logical_used + units - state.config.logical_capacity
    if units > available(state) or over > evictable(state):
        return True
    return _host_is_stuck(state, room(state), promote=0)


def _plan_does_not_fit(asked: Asked) -> bool | None:
    state, plan = asked.state, asked.facts["plan"]
    own = {tier: unlocked(state, plan.match, tier) for tier in Residency}
    if (
        plan.held + plan.allocate > available(state) - own[Residency.DEVICE]
        or plan.held > room(state).free
        or shortfall(state, "admit", asked.facts)
        > evictable(state) - own[Residency.DEVICE] - own[Residency.HOST]
    ):
        return True
    return _host_is_stuck(state, with_locked(state, plan.match), promote=plan.match.host)


def _host_is_stuck(state: State, now: Room, promote: int) -> bool | None:
    """Whether more is locked on the host than may be while anything is promised.

    None: then the refusal is right if the units must be promised, which depends on where what is
    dropped for them lies.
    """
    inbound = recount(state).inbound
    allowed = state.config.host_resident + recount(state).promote + promote + inbound
    return None if now.locked_host > allowed else False


def _lock_breaks_promises(asked: Asked) -> bool:
    return with_locked(asked.state, asked.facts["match"]).breaks_promises(asked.state)


def _moves_are_left(asked: Asked) -> bool:
    state = asked.state
    lease = state.leases[asked.facts["receipt"].id]
    left = any(node.residency is Residency.HOST for node in path_to(state, lease.node))
    return lease.due > room(state).free or (lease.promote > 0 and left)


def _offered(asked: Asked) -> tuple[list[Meeting], int]:
    """What an offer meets in the tree from its start on, and how many units it has beyond."""
    state, facts = asked.state, asked.facts
    if "receipt" in facts:
        held = state.nodes[state.leases[facts["receipt"].id].node]
        start, namespace = held.end, held.namespace
    else:
        start, namespace = facts["start"], facts["namespace"]
    met = meetings(state, facts["key"], namespace)
    reach = met[-1].end if met else 0
    cut = [Meeting(m.node, max(start, m.start), m.end) for m in met if m.end > start]
    return cut, max(0, whole_pages(state, facts["key"]) - reach)


def _offer_has_no_place(asked: Asked) -> bool:
    state, facts = asked.state, asked.facts
    met = meetings(state, facts["key"], facts["namespace"])
    start = facts["start"]
    return start < 0 or start % state.config.page_size != 0 or start > (met[-1].end if met else 0)


def _key_leaves_the_lock(asked: Asked) -> bool:
    state, facts = asked.state, asked.facts
    held = state.nodes[state.leases[facts["receipt"].id].node]
    path = held.key[: held.end * state.config.unit_bytes]
    return facts["key"][: len(path)] != path


def _offer_is_in_motion(asked: Asked) -> bool:
    return any(met.node.move is not None for met in _offered(asked)[0])


def _offer_has_no_room(asked: Asked) -> bool:
    state, facts = asked.state, asked.facts
    met, beyond = _offered(asked)
    running = "receipt" in facts
    consumed = 0
    if running:
        reserved = state.leases[facts["receipt"].id].reserved
        consumed = min(reserved, sum(m.length for m in met) + beyond)
    _, after = with_offer(state, met, beyond, consumed, locks=running)
    return after.free < 0 or after.breaks_promises(state)


def _refilled(asked: Asked) -> list[Meeting]:
    """The part of a refill on the path that the receipt holds."""
    state, facts = asked.state, asked.facts
    start, end = facts["start"], facts["end"]
    path = path_to(state, state.leases[facts["receipt"].id].node)
    return [
        Meeting(n, max(start, n.start), min(end, n.end))
        for n in path
        if n.start < end and n.end > start
    ]


def _nothing_to_refill(asked: Asked) -> bool:
    facts, page = asked.facts, asked.state.config.page_size
    start, end = facts["start"], facts["end"]
    if not 0 <= start < end or start % page or end % page:
        return True
    met = _refilled(asked)
    if sum(m.length for m in met) < end - start:
        return True
    receipt = facts["receipt"].id
    return any(m.node.residency is not Residency.DEVICE and m.node.filler != receipt for m in met)


def _refill_has_no_room(asked: Asked) -> bool:
    state, facts = asked.state, asked.facts
    reserved = state.leases[facts["receipt"].id].reserved
    consumed = min(reserved, facts["end"] - facts["start"])
    _, after = with_offer(state, _refilled(asked), 0, consumed, locks=False)
    return after.free < 0 or after.breaks_promises(state)


REASONS: Final[dict[str, dict[type[Refused], Reason]]] = {
    "match": {InvalidKey: _key_is_no_units, InvalidAmount: _amount_is_negative},
    "plan": {
        InvalidKey: _key_is_no_units,
        InvalidAmount: _amount_is_negative,
        RequestTooLarge: _device_is_too_small,
    },
    "touch": {StalePlan: _made_on_another_state},
    "acquire": {
        StalePlan: _made_on_another_state,
        InFlight: _matched_span_leaves,
        InsufficientSpace: _lock_breaks_promises,
    },
    "admit": {
        StalePlan: _made_on_another_state,
        InFlight: _matched_span_leaves,
        InvalidAmount: _amount_is_negative,
        InsufficientSpace: _plan_does_not_fit,
    },
    "release": {UnknownReceipt: _receipt_is_not_live},
    "reserve": {
        UnknownReceipt: _receipt_is_not_live,
        InvalidAmount: _amount_is_negative,
        RequestTooLarge: _request_never_fits,
        InsufficientSpace: _reservation_does_not_fit,
    },
    "insert": {
        InvalidKey: _key_is_no_units,
        NotAPrefix: _offer_has_no_place,
        InFlight: _offer_is_in_motion,
        OverCapacity: _offer_has_no_room,
    },
    "checkpoint": {
        UnknownReceipt: _receipt_is_not_live,
        InvalidKey: _key_is_no_units,
        NotAPrefix: _key_leaves_the_lock,
        InFlight: _offer_is_in_motion,
        OverCapacity: _offer_has_no_room,
    },
    "refill": {
        UnknownReceipt: _receipt_is_not_live,
        NotBeingRefilled: _nothing_to_refill,
        OverCapacity: _refill_has_no_room,
    },
    "evict": {InvalidAmount: _amount_is_negative, InsufficientSpace: _evictable_is_less},
    "settle_promise": {UnknownReceipt: _receipt_is_not_live, InsufficientSpace: _moves_are_left},
    "forgo_promise": {UnknownReceipt: _receipt_is_not_live},
    "begin_move": {NothingToMove: _nothing_to_move},
    "end_move": {UnknownMove: _move_is_not_in_flight},
    "fail_move": {UnknownMove: _move_is_not_in_flight},
    "reset": {InUse: _something_is_held},
    "line_up": {StalePlan: _queue_is_stale, UnknownTicket: _ticket_is_not_waiting},
    "retire": {StalePlan: _made_on_another_state},
}
"""By transition and error: all refusals that there are, in the order in which they are judged."""


def unfounded(transition: str, asked: Asked, error: Refused | None) -> list[str]:
    """What is wrong with a refusal, or (no error) with an acceptance."""
    reasons = REASONS[transition]
    if error is None:
        for kind, reason in reasons.items():
            if reason(asked):
                return [f"{transition} was accepted in spite of {kind.__name__}"]
        return []
    claimed = reasons.get(type(error))
    if claimed is None or claimed(asked) is False:
        return [f"{transition} was refused, but its reason does not hold: {error}"]
    return []
