"""Time to first token on a slice of agent traffic: SGLang's own tree against Penelope.

Both engines are on the GPU at once, with equal pools; one works while the other idles.  Groups of
sessions are disjoint, each is played on both, and the order alternates.  Think times are cut short,
but not left out: without any, sessions do not interleave and there is nothing to win.  A request
asks for one token, so that its latency is its time to first token, and the output that the trace
has it generate is part of the next prompt.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import cache
from itertools import islice
from statistics import fmean, geometric_mean, median
from typing import Any

import pytest

from penelope.policy.keys import UNIT_BYTES
from penelope.runtime.traces import GeneratorOptions, Session, Trace, generate, load
from tests.sglang import workload
from tests.sglang.harness import Engine

pytestmark = [pytest.mark.gpu, pytest.mark.sglang, pytest.mark.timeout(1500)]

GROUPS = 4
SESSIONS = 4
TURNS = 12
THINK_SECONDS = 5.0


def sessions_of(stage: Any, path: str | None, pool: int) -> tuple[Trace, list[list[Session]]]:
    """Groups of sessions that together need more than the pool, though none does alone."""
    if path is not None:
        trace = load(path)
    else:
        trace = generate(
            GeneratorOptions(
                sessions=stage.size(60, 30),
                max_context=pool // 2,
                prefix_tokens=stage.size(6_144, 256),
            )
        )
    fitting = [s for s in trace.sessions if len(s.streams[0].turns) >= TURNS]
    fitting = [s for s in fitting if longest(s) * trace.unit_tokens <= pool // 2]
    # Longest first: short sessions never meet an eviction.
    fitting.sort(key=longest, reverse=True)
    if len(fitting) < GROUPS * SESSIONS:
        pytest.skip(f"{trace.name} has {len(fitting)} sessions that fit the pool of {pool:,}")
    return trace, [fitting[i : GROUPS * SESSIONS : GROUPS] for i in range(GROUPS)]


def longest(session: Session) -> int:
    """Units of the longest of the prompts that are played."""
    return max(len(r.prompt) for r in islice(session.streams[0].requests(), TURNS)) // UNIT_BYTES


@cache
def tokens_of(unit: bytes, length: int) -> tuple[int, ...]:
    return tuple(workload.text(("unit", unit.hex()), length))


async def serve(engine: Engine, trace: Trace, group: list[Session], think_s: float) -> list[float]:
    """All sessions of the group at once, each request after the answer to the one before."""
    seconds: list[float] = []

    async def one(number: int, session: Session) -> None:
        for turn, request in enumerate(islice(session.streams[0].requests(), TURNS)):
            if turn:
                await asyncio.sleep(min(request.think_s, think_s))
            key = request.prompt
            units = [bytes(key[i : i + UNIT_BYTES]) for i in range(0, len(key), UNIT_BYTES)]
            prompt = [t for unit in units for t in tokens_of(unit, trace.unit_tokens)]
            answer = await engine.generate(prompt, f"s{number}.{turn}", 1)
            seconds.append(float(answer["meta_info"]["e2e_latency"]))

    await asyncio.gather(*(one(number, session) for number, session in enumerate(group)))
    return seconds


def test_mean_ttft_is_lower(
    stage: Any, engines: Any, request: pytest.FixtureRequest, record: Callable[..., None]
) -> None:
    pool = stage.size(min(98_304, stage.pool(2)), 4_096)
    if pool < 32_768 and not stage.rehearsal:
        pytest.skip(f"two engines have room for {pool:,} tokens each: too few on this GPU")
    path = request.config.getoption("--agent-trace", default=None)
    trace, groups = sessions_of(stage, path, pool)
    shared = {"exact": False, "max_total_tokens": pool}
    pair = engines.get(stock={**shared, "cache": None}, penelope=shared)
    for engine in pair.values():
        # Kernels are compiled at their first use: of a long prompt, its continuation, a short one.
        long = workload.text("warm-up", pool // 2)
        for length in (len(long) // 2, len(long), 200):
            engine.run(engine.generate(long[:length], f"warm-up-{length}", 1))
    think_s = THINK_SECONDS if not stage.rehearsal else 0.02
    ratios, counted = [], {"evictions": 0, "phantoms": 0, "phantom_tokens": 0}
    for number, group in enumerate(groups):
        found: dict[str, list[float]] = {}
        for name in ("stock", "penelope")[:: -1 if number % 2 else 1]:
            engine = pair[name]
            engine.call("penelope_switch")
            engine.call("penelope_configure")  # empties the cache and the counts
            began = time.perf_counter()
            found[name] = engine.run(serve(engine, trace, group, think_s))
            record(
                "ttft", group=number, policy=name, requests=len(found[name]),
                mean_s=round(fmean(found[name]), 4), median_s=round(median(found[name]), 4),
                p95_s=round(sorted(found[name])[int(0.95 * len(found[name]))], 4),
                total_s=round(time.perf_counter() - began, 1),
            )  # fmt: skip
        for what, count in pair["penelope"].dump()["statistics"].items():
            if what in counted:
                counted[what] += count
        ratios.append(fmean(found["penelope"]) / fmean(found["stock"]))
    overall = geometric_mean(ratios)
    record(
        "ttft ratio", trace=trace.name, pool=pool, per_group=[round(r, 3) for r in ratios],
        geometric_mean=round(overall, 3), **counted,
    )  # fmt: skip
    assert counted["phantoms"] >= GROUPS, "nothing was evicted from a head: the slice is too small"
    if not stage.rehearsal:
        assert overall < 1
