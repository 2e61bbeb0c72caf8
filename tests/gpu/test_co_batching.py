"""A hole's refill and its request in one batch cost what two strangers of their sizes cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from tests.gpu.scenes import BLOCK, Scene, ask, set_up
from tests.sglang import workload
from tests.sglang.harness import Engine

pytestmark = [pytest.mark.gpu, pytest.mark.sglang, pytest.mark.timeout(1200)]

REPEATS = 7
GOAL = 0.01


async def strangers(engine: Engine, scene: Scene) -> None:
    """The same two pieces of work for two histories: one of each is all that they share.

    history   |============ cached ===========|+ append +|
    stranger  |= cached =|+++ hole +++|
    """
    await engine.ask(
        "call", method="penelope_configure", chunk=scene.chunk,
        pool=2 * (scene.context + scene.append + scene.evict) // BLOCK * BLOCK,
    )  # fmt: skip
    other = workload.text((scene.seed, "stranger"), scene.start + scene.evict)
    await engine.generate(scene.history(), "history", 1)
    await engine.generate(other[: scene.start], "stranger", 1)
    await engine.ask("call", method="penelope_switch", timing=True, waiting=2)
    await asyncio.gather(
        engine.generate(other, "stranger-again", 1),
        engine.generate(scene.question(), "question", 1),
    )


def last_batch(engine: Engine) -> tuple[list[tuple[bool, int, int]], float]:
    batches = engine.dump()["batches"]
    engine.call("penelope_switch")
    assert len(batches) == 1, f"one batch was expected: {batches}"
    return batches[0]["pieces"], float(batches[0]["seconds"])


Measured = tuple[list[tuple[int, int]], float]
"""(position, rows) of each piece of the batch, in order of position; seconds."""


def one_request(engine: Engine, scene: Scene) -> Measured:
    engine.run(set_up(engine, scene, position="private-head"))
    engine.call("penelope_switch", timing=True)
    engine.run(ask(engine, scene))
    pieces, seconds = last_batch(engine)
    assert [phantom for phantom, _, _ in pieces] == [True, False]
    return sorted((at, rows) for _, at, rows in pieces), seconds


def two_strangers(engine: Engine, scene: Scene) -> Measured:
    engine.run(strangers(engine, scene))
    pieces, seconds = last_batch(engine)
    assert not any(phantom for phantom, _, _ in pieces)
    return sorted((at, rows) for _, at, rows in pieces), seconds


def test_co_batching_overhead(stage: Any, engines: Any, record: Callable[..., None]) -> None:
    context = stage.size(32_768, 1_024)
    start, append = stage.size(2_048, 128), stage.size(512, 64)
    hole = stage.size(4_096, 256)
    engine = engines.get(penelope={"exact": False})["penelope"]
    engine.call("penelope_switch")
    together: list[float] = []
    apart: list[float] = []
    for repeat in range(-1, REPEATS if not stage.rehearsal else 2):
        scene = Scene(context, start, hole, append, 8192, seed=repeat)
        measures = {"together": one_request, "apart": two_strangers}
        order = list(measures) if repeat % 2 else list(measures)[::-1]
        found = {name: measures[name](engine, scene) for name in order}
        work = {name: sizes for name, (sizes, _) in found.items()}
        assert work["together"] == work["apart"], "not the same work"
        if repeat >= 0:
            together.append(found["together"][1])
            apart.append(found["apart"][1])
    ratios = [a / b for a, b in zip(together, apart, strict=True)]
    overhead = median(ratios) - 1
    record(
        "co-batching", context=context, hole=hole, append=append, overhead=f"{overhead:.2%}",
        goal=f"{GOAL:.0%}", together_s=together, strangers_s=apart,
    )  # fmt: skip
    if not stage.rehearsal:
        assert overhead <= GOAL
