"""Traces and a server small enough to work their replay out by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

from penelope.cost import CostModel
from penelope.policy import POLICIES, UNIT_BYTES, Key, pack
from penelope.runtime.replay.caches import CoreCache
from penelope.runtime.replay.compare import Setting
from penelope.runtime.replay.server import Job, Scheduler, Server, Timing
from penelope.runtime.traces import Request, Session, Stream, Trace, Turn

UNIT = 10
"""Tokens of a hashed block in these traces."""

TOY = CostModel("toy", Fraction(100), layers=1, heads=1, head_dim=1)
"""A token at position p costs 100 + p."""

TIMING = Timing(1 / 1024, 1.0, 0.5, chunk_tokens=1000)
"""Powers of two, so that times worked out by hand are exact."""

NAMES = list(POLICIES)

_unused = count(1 << 20)
"""Units of outputs that nothing repeats."""


@dataclass(frozen=True)
class Ask:
    """A request by its whole prompt: `units`, then `rest` tokens that fill no block."""

    units: Sequence[int]
    out_tokens: int = UNIT
    think_s: float = 0.0
    rest: int = 0
    output: Sequence[int] | None = None
    """The blocks that prompt and output fill beyond `units`; None: units of their own."""

    @property
    def in_tokens(self) -> int:
        return len(self.units) * UNIT + self.rest

    @property
    def output_units(self) -> list[int]:
        length = (self.in_tokens + self.out_tokens) // UNIT - len(self.units)
        if self.output is None:
            return [next(_unused) for _ in range(length)]
        assert len(self.output) == length
        return list(self.output)


def stream(asks: Sequence[Ask], starts_after: int = 0, delay_s: float = 0.0) -> Stream:
    turns: list[Turn] = []
    before: Sequence[int] = ()
    for ask in asks:
        keep = 0
        while keep < min(len(before), len(ask.units)) and before[keep] == ask.units[keep]:
            keep += 1
        turns.append(
            Turn(
                keep,
                pack(ask.units[keep:]),
                pack(ask.output_units),
                ask.output is not None,
                ask.in_tokens,
                ask.out_tokens,
                ask.think_s,
            )
        )
        before = ask.units
    return Stream(tuple(turns), starts_after, delay_s)


def trace(*sessions: Sequence[Stream]) -> Trace:
    made = tuple(Session(f"s{i}", tuple(streams)) for i, streams in enumerate(sessions))
    return Trace("toy.jsonl", "weka", UNIT, made, 1 << 24)


def setting(
    device_units: int = 1 << 20,
    *,
    concurrency: int = 1,
    timing: Timing = TIMING,
    scheduler: Scheduler = Scheduler.LPM,
    page_tokens: int | None = None,
    block_tokens: int | None = UNIT,
) -> Setting:
    return Setting(
        TOY, timing, device_units * UNIT, concurrency, scheduler, block_tokens, page_tokens
    )


def server(
    device_units: int = 1 << 20,
    policy: str = "penelope",
    *,
    timing: Timing = TIMING,
    scheduler: Scheduler = Scheduler.LPM,
) -> Server:
    config = setting(device_units).config(policy, UNIT)
    return Server(CoreCache(config), TOY, timing, scheduler, UNIT)


def job(ask: Ask, arrival: float = 0.0) -> Job:
    request = Request(
        pack(ask.units), pack(ask.output_units), ask.in_tokens, ask.out_tokens, ask.think_s
    )
    return Job(request, arrival, lambda now: None)


def span(start: int, end: int) -> int:
    """The toy cost of tokens [start, end), token by token."""
    return sum(100 + position for position in range(start, end))


def seconds(units: int) -> float:
    """How long a step takes that computes this much."""
    return 1.0 + units / 1024


def units_of(key: Key) -> tuple[int, ...]:
    return tuple(
        int.from_bytes(key[at : at + UNIT_BYTES], "little") for at in range(0, len(key), UNIT_BYTES)
    )


def requests(replayed: Trace) -> Iterator[Request]:
    for session in replayed.sessions:
        for part in session.streams:
            yield from part.requests()


# --- files ----------------------------------------------------------------------------------------


def weka(name: str, inputs: Sequence[int], out: int = 5) -> dict[str, Any]:
    requests, before = [], 0
    for tokens in inputs:
        blocks = tokens // 64
        appended = [[before + 1, blocks - before]] if blocks > before else []
        requests.append({"t": 0, "type": "n", "in": tokens, "out": out, "h": [before, appended]})
        before = blocks
    return {"id": name, "block_size": 64, "requests": requests}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
