"""What the streams of a trace begin with in common."""

from __future__ import annotations

from collections import Counter

from penelope.policy import UNIT_BYTES, Key
from penelope.runtime.traces import Trace


def shared_units(trace: Trace) -> list[tuple[int, ...]]:
    """Session by session, stream by stream: how many units it begins with that others have too.

    Units at the head of a stream's first prompt that are in another stream's first prompt as well:
    tools and system prompt.  What comes after them is the stream's private history.
    """
    firsts = [
        [_units(s.turns[0].append) if s.turns else () for s in session.streams]
        for session in trace.sessions
    ]
    seen = Counter(unit for session in firsts for units in session for unit in set(units))
    return [tuple(_leading(units, seen) for units in session) for session in firsts]


def _units(key: Key) -> tuple[bytes, ...]:
    return tuple(key[at : at + UNIT_BYTES] for at in range(0, len(key), UNIT_BYTES))


def _leading(units: tuple[bytes, ...], seen: Counter[bytes]) -> int:
    return next((i for i, unit in enumerate(units) if seen[unit] < 2), len(units))
