"""The statistics of a trace by which it can be compared with others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from penelope.policy.keys import UNIT_BYTES
from penelope.runtime.traces.model import Trace

_T = TypeVar("_T", int, float)


@dataclass(frozen=True, slots=True)
class Summary:
    """Medians and shares over all streams of a trace.

    Lengths in tokens, times in seconds; shares from 0 to 1.  A *transition* is a request that
    follows another in its stream.  `block_hits` is the share of all prompt blocks that an
    infinite cache of their own session would have held.
    """

    sessions: int
    streams: int
    requests: int
    units: int
    input_p50: int
    input_max: int
    output_p50: int
    requests_per_session_p50: int
    think_p50_s: float
    pure_appends: float
    last_block_rewrites: float
    deeper_rewrites: float
    outputs_repeated: float
    block_hits: float

    def __str__(self) -> str:
        return (
            f"{self.sessions:,} sessions, {self.requests:,} requests "
            f"(p50 {self.requests_per_session_p50} a session); "
            f"input p50 {self.input_p50:,}, max {self.input_max:,}; "
            f"output p50 {self.output_p50:,}; "
            f"think p50 {self.think_p50_s:g} s; {self.pure_appends:.1%} pure appends, "
            f"{self.last_block_rewrites:.1%} rewrite the last block, "
            f"{self.deeper_rewrites:.1%} more; "
            f"{self.outputs_repeated:.1%} outputs repeated; {self.block_hits:.1%} block hits"
        )


def summarise(trace: Trace) -> Summary:
    """Walk a trace once; a trace always has a session with a request, so medians exist."""
    streams = [stream for session in trace.sessions for stream in session.streams]
    turns = [turn for stream in streams for turn in stream.turns]
    thinks = [turn.think_s for stream in streams for turn in stream.turns[1:]]
    lost = [0, 0, 0]  # transitions that keep all, all but the last block, less
    hits = blocks = 0
    for session in trace.sessions:
        cached: set[bytes] = set()
        for stream in session.streams:
            before = None
            for turn in stream.turns:
                if before is not None:
                    lost[min(before - turn.keep, 2)] += 1
                before = turn.keep + len(turn.append) // UNIT_BYTES
                fresh = {
                    turn.append[i : i + UNIT_BYTES] for i in range(0, len(turn.append), UNIT_BYTES)
                } - cached
                cached |= fresh
                hits += before - len(fresh)
                blocks += before
    transitions = max(1, sum(lost))
    return Summary(
        sessions=len(trace.sessions),
        streams=len(streams),
        requests=len(turns),
        units=trace.units,
        input_p50=_median([turn.in_tokens for turn in turns]),
        input_max=max(turn.in_tokens for turn in turns),
        output_p50=_median([turn.out_tokens for turn in turns]),
        requests_per_session_p50=_median([session.requests for session in trace.sessions]),
        think_p50_s=_median(thinks or [0.0]),
        pure_appends=lost[0] / transitions,
        last_block_rewrites=lost[1] / transitions,
        deeper_rewrites=lost[2] / transitions,
        outputs_repeated=sum(turn.repeated for turn in turns) / len(turns),
        block_hits=hits / max(1, blocks),
    )


def _median(values: list[_T]) -> _T:
    return sorted(values)[len(values) // 2]
