"""What a reader hands over: sessions as their file describes them, ids not yet made into units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Longest prompt or output that a trace may claim, in tokens.  No model comes near; what exceeds
# it is a damaged number, and would be paid for in memory before it is noticed.
MAX_TOKENS = 1 << 24


@dataclass(frozen=True, slots=True)
class RawTurn:
    """Block ids: the first `keep` of the turn before it, then `ids`.

    They may name one block more than the whole blocks of `in_tokens`: the part at the end.
    """

    keep: int
    ids: Sequence[int]
    in_tokens: int
    out_tokens: int
    think_s: float


@dataclass(frozen=True, slots=True)
class RawStream:
    """`tool_tokens` and `system_tokens` open its first prompt, where the file tells."""

    turns: Sequence[RawTurn]
    tool_tokens: int = 0
    system_tokens: int = 0
    starts_after: int = 0
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RawSession:
    """The main stream first."""

    id: str
    streams: Sequence[RawStream]
    arrival_s: float = 0.0
