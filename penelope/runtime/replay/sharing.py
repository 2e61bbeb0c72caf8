"""What the streams of a trace begin with in common."""

from __future__ import annotations

from penelope.policy import Key
from penelope.runtime.traces import Trace


def shared_units(trace: Trace) -> list[tuple[int, ...]]:
    """Session by session, stream by stream: how many units it begins with that others have too.

    Units at the head of a stream's first prompt that are in another stream's first prompt as well:
    tools and system prompt.  What comes after them is the stream's private history.
    """
    firsts = [
        [_units(s.turns[0].append) if s.turns else [] for s in session.streams]
        for session in trace.sessions
    ]
    once: set[int] = set()
    shared: set[int] = set()
    for session in firsts:
        for units in session:
            own = set(units)
            shared |= once & own
            once |= own
    return [tuple(_leading(units, shared) for units in session) for session in firsts]


def _units(key: Key) -> list[int]:
    return memoryview(key).cast("I").tolist()


def _leading(units: list[int], shared: set[int]) -> int:
    return next((i for i, unit in enumerate(units) if unit not in shared), len(units))
