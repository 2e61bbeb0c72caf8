"""Every sequence of operations, breadth first: the first violation is one of the shortest."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from penelope.policy import Config, Refused, State, empty
from penelope_spec import Trace, Violation, check_refused, check_state, check_step
from tests.exhaustive.answers import (
    Picture,
    drawn,
    wrong_answers,
    wrong_refills,
    wrong_reservations,
)
from tests.exhaustive.canonical import Canonical, canonical
from tests.exhaustive.operations import Limits, Operation, histories_of, operations, prefixes
from tests.exhaustive.victims import wrong_victims


class World(NamedTuple):
    """A cache so small that everything can be tried."""

    config: Config
    limits: Limits
    depth: int | None = None
    """Of the sequences; None for as long as there are states that have not been met."""


class Explored(NamedTuple):
    """What was gone through; nothing was wrong."""

    states: int
    """Distinct up to renaming, the empty one included."""
    transitions: int
    """Accepted."""
    refused: int
    depth: int
    """Of the longest sequence; no longer one leads to anything new where all was gone through."""
    seconds: float
    """Of CPU time."""
    by_name: Counter[str]
    """How often each transition was accepted, and `NAME refused`."""
    met: Counter[str]
    """In how many states there was what must be met, or the world shows nothing."""


class Found(Exception):
    """A violation, and the shortest sequence of operations that leads to it."""

    def __init__(self, violation: Violation, program: list[str]) -> None:
        self.violation = violation
        self.program = program
        super().__init__(f"{violation}, after {'; '.join(program)}")


class _Seen(NamedTuple):
    """A state, whether `one-hole` is promised in it, and how it was reached first."""

    state: State
    picture: Picture
    promised: bool
    came_from: _Seen | None
    by: str

    def program(self) -> list[str]:
        steps: list[str] = []
        at: _Seen | None = self
        while at is not None and at.by:
            steps.append(at.by)
            at = at.came_from
        return steps[::-1]


def explore(world: World) -> Explored:
    """Raises `Found` at the first violation of a state, step, refusal or trace invariant."""
    started = time.process_time()
    first = _Seen(empty(world.config), {}, True, None, "")
    seen: set[tuple[Canonical, bool]] = {((), True)}
    by_name: Counter[str] = Counter()
    met: Counter[str] = Counter()
    frontier, depth = [first], 0
    while frontier and depth != world.depth:
        following: list[_Seen] = []
        for at in frontier:
            for operation in operations(at.state, world.limits):
                after = _carry_out(at, operation)
                by_name[operation.name + (" refused" if after is None else "")] += 1
                if after is None:
                    continue
                mark = canonical(after.state), after.promised
                if mark not in seen:
                    seen.add(mark)
                    _check(check_state(after.state), after)
                    histories = histories_of(prefixes(after.state), world.limits.longest)
                    _check(wrong_answers(after.state, after.picture, histories), after)
                    met.update(_met(after.state))
                    following.append(after)
        frontier = following
        depth += bool(following)
    refused = sum(count for name, count in by_name.items() if name.endswith(" refused"))
    return Explored(
        len(seen),
        by_name.total() - refused,
        refused,
        depth,
        time.process_time() - started,
        by_name,
        met,
    )


def _met(state: State) -> Iterator[str]:
    nodes = [node for node in state.nodes.values() if not node.is_root]
    there = {
        "hole": state.totals.hole > 0,
        "shared prefix": any(len(node.children) > 1 for node in nodes),
        "refill in flight": any(node.filler is not None for node in nodes),
        "several requests": len(state.leases) > 1,
        "both tiers": state.totals.device > 0 and state.totals.host > 0,
        "promise": state.totals.due + state.totals.promote > 0,
        "swap buffer in use": state.staged > 0,
        "move in flight": bool(state.moves),
        "waiting beside idle": bool(state.waiting.at) and len(state.waiting.at) < len(nodes),
        "retired history": state.retired.size > 0,
        "moves of a request that has ended": any(
            move.receipt is not None and move.receipt not in state.leases
            for move in state.moves.values()
        ),
    }
    return (name for name, is_there in there.items() if is_there)


def _carry_out(at: _Seen, operation: Operation) -> _Seen | None:
    """One operation and all that can be said about it; None where it is rightly refused."""
    name, text, act, facts, sure = operation
    here = at._replace(came_from=at, by=text)
    try:
        answer = act(at.state)
    except Refused as error:
        _check(check_refused(at.state, name, error, **facts), here)
        if sure:
            _check([Violation("progress", f"{name} was refused: {error}")], here)
        return None
    except (AssertionError, KeyError, ValueError) as error:
        broken = Violation("well-formed", f"{name} broke down: {error!r}")
        raise Found(broken, here.program()) from error
    facts = {**facts, "effects": answer[1]}
    if name in ("evict", "admit"):
        facts["freed"] = answer.freed  # type: ignore[attr-defined]
    after = answer[0]
    _check(check_step(at.state, after, name, **facts), here)
    trace = Trace()
    trace.promised = at.promised
    _check(trace.step(at.state, after, name, **facts), here)
    if name == "evict":
        _check(wrong_victims(at.state, answer[1], facts["need"]), here)
    picture = drawn(after)
    who = facts["receipt"].id if "receipt" in facts else None
    _check(wrong_refills(at.picture, picture, name, who), here)
    if name in ("checkpoint", "refill"):
        offered = answer.adopted + answer.resident  # type: ignore[attr-defined]
        _check(wrong_reservations(at.state, after, facts["receipt"].id, offered), here)
    return _Seen(after, picture, trace.promised, at, text)


def _check(wrong: list[Violation], here: _Seen) -> None:
    if wrong:
        raise Found(wrong[0], here.program())
