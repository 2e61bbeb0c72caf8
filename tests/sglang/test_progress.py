"""Nothing waits for ever: long refills, streams of newcomers, the smallest row pool."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.sglang import workload
from tests.sglang.conftest import DEFAULTS, Engines
from tests.sglang.harness import Engine

pytestmark = pytest.mark.sglang


async def press(engine: Engine, tokens: int) -> None:
    """Other histories, of so many tokens in all."""
    for index, start in enumerate(range(0, tokens, 500)):
        size = min(500, tokens - start)
        await engine.generate(workload.text(("pressure", index), size), f"pressure{index}", 1)


@pytest.mark.smoke
@pytest.mark.parametrize("schedule", ["lpm", "fcfs"])
def test_a_refill_of_many_steps_among_newcomers(engine: Engine, schedule: str) -> None:
    """`lpm` would put every newcomer with a short cached prefix of its own first."""
    pool = 3072
    engine.call(
        "penelope_configure", **{**DEFAULTS, "pool": pool, "chunk": 64, "schedule": schedule}
    )
    popular = workload.text("popular", 900)

    async def play() -> int:
        history = workload.text("history", 1400)
        await engine.generate(history, "long", 1)
        # The history loses its first 900 tokens, and newcomers find more of theirs in the cache.
        await press(engine, pool - len(history))
        await engine.generate(popular, "popular", 1)
        finished_before = 0
        arrived = asyncio.Event()

        async def newcomers() -> None:
            nonlocal finished_before
            for index in range(40):
                tokens = popular + workload.text(("new", index), 30)
                await engine.generate(tokens, f"new{index}", 2)
                if not arrived.is_set():
                    finished_before += 1

        crowd = [asyncio.ensure_future(newcomers()) for _ in range(1)]
        await asyncio.sleep(0.02)
        answer = await engine.generate(history + workload.text("turn", 20), "back", 4)
        arrived.set()
        assert answer["meta_info"]["finish_reason"]["type"] == "length"
        assert answer["meta_info"]["cached_tokens"] > 0
        await asyncio.gather(*crowd)
        return finished_before

    finished_before = engine.run(play())
    counted = engine.dump()["statistics"]
    assert counted["partial_refills"] >= 5, "the hole was refilled over many steps"
    assert finished_before < 20, "newcomers overtook the request that was being refilled"


def test_the_smallest_row_pool(engines: Engines) -> None:
    """One running request and one phantom row: several holes are refilled one by one."""
    engine = engines.get(
        variables={"PENELOPE_PHANTOM_ROWS": "1"}, max_running_requests=1, schedule_policy="lpm"
    )
    engine.call("penelope_configure", pool=2560, chunk=2048, block=16)
    source = random.Random(3)

    async def play() -> None:
        base = workload.text("base", 300)
        # Forks at many places: a deep history with several branching points loses several spans.
        histories = [base + workload.text(i, 500) for i in range(4)]
        for step in range(60):
            index = source.randrange(len(histories))
            tokens = histories[index] + workload.text((index, step), 20)
            answer = await engine.generate(tokens, f"r{step}", 4)
            assert answer["meta_info"]["finish_reason"]["type"] == "length"
            histories[index] = tokens + list(answer["output_ids"])
            if len(histories[index]) > 1100:
                histories[index] = histories[index][:700]

    engine.run(play())
    assert engine.dump()["statistics"]["phantoms"] >= 1
    engine.check_alive()


def test_the_largest_request_is_admitted_when_nothing_else_runs(engine: Engine) -> None:
    """Case 73: a history of nearly the whole pool, with a hole, refilled in one batch and many."""
    pool = 2048
    for chunk in (2048, 128):
        engine.call("penelope_configure", **{**DEFAULTS, "pool": pool, "chunk": chunk})

        async def play() -> dict[str, object]:
            history = workload.text("large", pool - 200)
            answer = await engine.generate(history, "large", 4)
            history = history + list(answer["output_ids"])
            await engine.generate(workload.text("other", 700), "other", 4)
            longest = pool - len(history) - 16 - 4 - 2
            return await engine.generate(history + workload.text("more", longest), "again", 4)

        answer = engine.run(play())
        assert answer["meta_info"]["finish_reason"]["type"] == "length"
        assert engine.dump()["statistics"]["phantoms"] >= 1
        engine.check_alive()
