"""What a checker must be told about a transition besides the two states."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, TypedDict

from penelope.policy import Effect, Free, Match, Plan, Receipt, Refused, State
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
    "demote",
    "promote",
)
"""Every name that a step may have.  The last two belong to the host tier: no core has them yet."""

EVICTING: Final = ("evict", "admit", "reserve")
"""The transitions that may drop KV, and then exactly a shortfall."""
MOVES: Final = ("demote", "promote")
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
    """Argument of `refill`, for `one-hole`; also of `checkpoint` and `release`."""
    start: int
    """Argument of `refill`, for `one-hole`."""
    freed: int
    """What `evict` or `admit` answered."""


_REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "evict": ("need",),
    "admit": ("plan",),
    "reserve": ("units",),
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
        """Units that were evicted, by the effects."""
        return sum(fx.end - fx.start for fx in self.effects if isinstance(fx, Free))


class Turned(NamedTuple):
    """A transition that was refused."""

    before: State
    transition: str
    error: Refused
    facts: Facts


def shortfall(before: State, transition: str, facts: Facts) -> int:
    """What must be evicted for this transition, in units."""
    if transition == "evict":
        return max(0, facts["need"])
    if transition == "admit":
        return max(0, facts["plan"].allocate - before.free)
    if transition == "reserve":
        return max(0, facts["units"] - before.free)
    return 0


def require(transition: str, facts: Facts) -> None:
    """Raises `ValueError` for a name or a fact that makes the check meaningless."""
    if transition not in TRANSITIONS:
        raise ValueError(f"no transition '{transition}': choose from {', '.join(TRANSITIONS)}")
    missing = [name for name in _REQUIRED.get(transition, ()) if name not in facts]
    if missing:
        raise ValueError(f"a check of '{transition}' needs the fact {', '.join(missing)}")
