"""Why a transition may say no: for each named refusal, what must then be true of the state.

A refusal for a reason that does not hold withholds what was promised; an acceptance where one
holds breaks it.  Reasons are read on the relations that the theorems are about, except where they
are about numbers or about what was offered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from penelope.policy import (
    InFlight,
    InUse,
    Match,
    NothingToMove,
    Receipt,
    Refused,
    Residency,
    StalePlan,
    State,
    UnknownMove,
    UnknownReceipt,
)
from penelope_spec.abstraction import finite, move_name, picture
from penelope_spec.facts import Facts
from penelope_spec.logic import NODE
from penelope_spec.relations import Claim, Setting
from penelope_spec.tier_moves import DEPART, RESET
from penelope_spec.use_moves import LOCK


class Asked(NamedTuple):
    """What a transition was asked, on which state."""

    state: State
    facts: Facts


Reason = Callable[[Asked], bool]


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


REASONS: Final[dict[str, dict[type[Refused], Reason]]] = {
    "touch": {StalePlan: _made_on_another_state},
    "acquire": {StalePlan: _made_on_another_state, InFlight: _matched_span_leaves},
    "admit": {StalePlan: _made_on_another_state, InFlight: _matched_span_leaves},
    "release": {UnknownReceipt: _receipt_is_not_live},
    "settle": {UnknownReceipt: _receipt_is_not_live},
    "forgo": {UnknownReceipt: _receipt_is_not_live},
    "begin": {NothingToMove: _nothing_to_move},
    "end": {UnknownMove: _move_is_not_in_flight},
    "fail": {UnknownMove: _move_is_not_in_flight},
    "reset": {InUse: _something_is_held},
}
"""By transition and error.  Want of space is the matter of `progress`, and what is wrong with an
offer (`NotAPrefix`, `NotBeingRefilled`, `OverCapacity`, an `InFlight` span of it) of the naive
model that the property tests compare the core with."""


def unfounded(transition: str, asked: Asked, error: Refused | None) -> list[str]:
    """What is wrong with a refusal, or (no error) with an acceptance."""
    reasons = REASONS[transition]
    if error is None:
        return [
            f"{transition} was accepted in spite of {kind.__name__}"
            for kind, reason in reasons.items()
            if reason(asked)
        ]
    reason = reasons.get(type(error))
    if reason is None or reason(asked):
        return []
    return [f"{transition} was refused, but its reason does not hold: {error}"]
