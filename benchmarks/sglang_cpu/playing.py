"""Plays scaled sessions against a server in a closed loop, as their clients would."""

from __future__ import annotations

import asyncio
import random
import statistics
from dataclasses import asdict, dataclass
from functools import lru_cache

from benchmarks.sglang_cpu.servers import Answer, Server, client_of, generate
from penelope.policy import UNIT_BYTES
from penelope.runtime.traces import Session, Trace, Turn
from penelope.sglang_adapter.random_model import VOCABULARY

LONGEST_THINK_S = 60.0
"""Users who leave for hours would make the benchmark wait, not the cache."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How a trace is made small enough for a CPU."""

    unit: int
    """Tokens that stand for one block of the trace."""
    think: float
    """Factor on think times."""
    concurrency: int
    output: int
    """Most tokens that a request generates."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One server on one group of sessions."""

    requests: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    jct_mean_s: float
    """A session from its first request to its last answer, think times included."""
    hit_rate: float
    recomputed_tokens: int
    """Prompt tokens computed although an earlier request had them already."""
    cpu_s: float
    """CPU time that the server took."""

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


@lru_cache(maxsize=200_000)
def text_of(unit: int, length: int) -> tuple[int, ...]:
    source = random.Random(unit)
    return tuple(source.randrange(VOCABULARY) for _ in range(length))


class Seen:
    """Prefixes, in units, of everything that was sent: what an endless cache would hold."""

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self.prefixes: set[int] = set()

    def known_then_add(self, tokens: list[int]) -> int:
        known = at = state = 0
        growing = True
        for at in range(self.unit, len(tokens) + 1, self.unit):
            state = hash((state, tuple(tokens[at - self.unit : at])))
            if growing and state in self.prefixes:
                known = at
            else:
                growing = False
                self.prefixes.add(state)
        return known


async def play_session(session: Session, scale: Scale, play: Play) -> None:
    """The main stream: each prompt continues the server's own answer, where the trace says so."""
    began = 0.0
    prompt: list[int] = []
    answer: Answer | None = None
    earlier: Turn | None = None
    for turn in session.streams[0].turns:
        if began:
            await asyncio.sleep(min(turn.think_s, LONGEST_THINK_S) * scale.think)
        prompt = next_prompt(prompt, answer, earlier, turn, scale)
        known = play.seen.known_then_add(prompt)
        new = max(1, min(scale.output, len(turn.output) // UNIT_BYTES * scale.unit))
        answer = await generate(play.client, prompt, new)
        began = began or answer.sent
        play.answers.append((answer, known))
        earlier = turn
    if answer is not None:
        play.durations.append(answer.last - began)


def next_prompt(
    prompt: list[int], answer: Answer | None, earlier: Turn | None, turn: Turn, scale: Scale
) -> list[int]:
    kept = prompt[: turn.keep * scale.unit]
    units = memoryview(turn.append).cast("I").tolist()
    if answer is not None and earlier is not None and earlier.repeated and kept == prompt:
        # The trace repeats the output here: what this server said takes its place.
        kept = kept + answer.output
        units = units[len(earlier.output) // UNIT_BYTES :]
    return kept + [token for unit in units for token in text_of(unit, scale.unit)]


class Play:
    def __init__(self, server: Server, unit: int) -> None:
        self.client = client_of(server)
        self.seen = Seen(unit)
        self.answers: list[tuple[Answer, int]] = []
        self.durations: list[float] = []


async def play_group(server: Server, group: Trace, scale: Scale) -> Outcome:
    """N sessions at a time; when one ends, the next starts."""
    play = Play(server, scale.unit)
    before = server.cpu_seconds
    waiting = iter(group.sessions)

    async def worker() -> None:
        for session in waiting:
            await play_session(session, scale, play)

    async with play.client:
        await asyncio.gather(*(worker() for _ in range(scale.concurrency)))
    return outcome(play, server.cpu_seconds - before)


def outcome(play: Play, cpu_s: float) -> Outcome:
    answers = [answer for answer, _ in play.answers]
    waits = sorted(answer.ttft for answer in answers)
    return Outcome(
        len(answers),
        statistics.fmean(waits),
        waits[len(waits) // 2],
        waits[min(len(waits) - 1, len(waits) * 99 // 100)],
        statistics.fmean(play.durations),
        sum(a.cached_tokens for a in answers) / sum(a.prompt_tokens for a in answers),
        sum(max(0, known - answer.cached_tokens) for answer, known in play.answers),
        cpu_s,
    )
