"""What a checker must be told about a transition besides the two states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, TypedDict

from penelope.policy import (
    Effect,
    Key,
    Match,
    MoveId,
    Namespace,
    Plan,
    Receipt,
    Refused,
    State,
    Ticket,
    Transfer,
)
from penelope_spec.balance import recount
from penelope_spec.shadow import Shadow

TRANSITIONS: Final = (
    "match",
    "plan",
    "touch",
    "insert",
    "checkpoint",
    "acquire",
    "release",
    "admit",
    "reserve",
    "refill",
    "evict",
    "reset",
    "begin_move",
    "end_move",
    "fail_move",
    "settle_promise",
    "forgo_promise",
    "line_up",
    "retire",
)
"""Every name that a step may have: the functions of `penelope.policy`."""

EVICTING: Final = ("evict", "admit", "reserve")
"""The transitions that may drop KV, and then exactly a shortfall."""
MOVES: Final = ("begin_move", "end_move", "fail_move", "settle_promise", "forgo_promise")
"""The transitions that carry out what eviction has decided: they drop nothing, and give nothing."""
FORESIGHT: Final = ("line_up", "retire")
"""The transitions that say what will be used, and change nothing but whose turn it is."""
USES: Final = ("touch", "insert", "checkpoint", "admit")
"""The transitions that count as a use of a history, now."""


class Facts(TypedDict, total=False):
    """Arguments and results that the states do not show."""

    effects: tuple[Effect, ...]
    """Of the transition; leave it out only where there are none."""
    need: int
    """Argument of `evict`."""
    plan: Plan
    """Argument of `admit`."""
    units: int
    """Argument of `reserve`."""
    match: Match
    """Argument of `touch` and `acquire`: `one-hole` is promised only with it."""
    receipt: Receipt
    """Argument of `refill`, for `one-hole`; of `settle_promise` and `forgo_promise`; also of
    `checkpoint` and `release`."""
    start: int
    """Argument of `refill`, for `one-hole`; of `insert`."""
    freed: int
    """What `evict` or `admit` answered."""
    transfer: Transfer
    """Argument of `begin_move`."""
    move: MoveId
    """Argument of `end_move` and `fail_move`."""
    key: Key
    """Argument of `match`, `plan`, `insert` and `checkpoint`: this and what follows is read only
    where a refusal is judged."""
    namespace: Namespace
    """Argument of `match`, `plan` and `insert`."""
    end: int
    """Argument of `refill`."""
    extra: int
    """Argument of `plan`."""
    at_most: int
    """Argument of `match` and `plan`."""
    queue: Sequence[Ticket | Match]
    """Argument of `line_up`, where a refusal is judged."""


_REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "evict": ("need",),
    "admit": ("plan",),
    "reserve": ("units",),
    "begin_move": ("transfer",),
    "end_move": ("move",),
    "fail_move": ("move",),
    "settle_promise": ("receipt",),
    "forgo_promise": ("receipt",),
}


@dataclass(frozen=True)
class Happened:
    """A transition that was accepted."""

    before: State
    after: State
    transition: str
    facts: Facts

    @property
    def effects(self) -> tuple[Effect, ...]:
        return self.facts.get("effects", ())

    @cached_property
    def shadow(self) -> Shadow:
        """The state before, with the effects replayed on it."""
        shadow = Shadow(self.before)
        shadow.replay(self.effects)
        return shadow

    @property
    def need(self) -> int:
        """Units that had to be evicted: the shortfall, never the whole request."""
        return shortfall(self.before, self.transition, self.facts)

    @property
    def freed(self) -> int:
        """Units that were evicted, by the effects; a host copy that was replaced is not lost."""
        return sum(freed.end - freed.start for freed in self.shadow.freed)


class Turned(NamedTuple):
    """A transition that was refused."""

    before: State
    transition: str
    error: Refused
    facts: Facts


def shortfall(before: State, transition: str, facts: Facts) -> int:
    """What the tiers together must lose for this transition, in units."""
    if transition == "evict":
        return max(0, facts["need"])
    if transition == "admit":
        fresh = facts["plan"].held + facts["plan"].compute
    elif transition == "reserve":
        fresh = facts["units"]
    else:
        return 0
    counted = recount(before)
    held = counted.device + counted.host + counted.reserved + counted.due
    return max(0, held + fresh - before.config.logical_capacity)


def require(transition: str, facts: Facts) -> None:
    """Raises `ValueError` for a name or a fact that makes the check meaningless."""
    if transition not in TRANSITIONS:
        raise ValueError(f"no transition '{transition}': choose from {', '.join(TRANSITIONS)}")
    missing = [name for name in _REQUIRED.get(transition, ()) if name not in facts]
    if missing:
        raise ValueError(f"a check of '{transition}' needs the fact {', '.join(missing)}")
