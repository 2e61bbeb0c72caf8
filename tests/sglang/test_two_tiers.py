"""Device and host memory as one cache, on the real engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.sglang import workload
from tests.sglang.comparing import Run, differences, play
from tests.sglang.conftest import DEFAULTS
from tests.sglang.harness import Engine
from tests.sglang.workload import Shape

pytestmark = pytest.mark.sglang

LONG = Shape(conversations=8, opening=560, tool=16, turns=22, concurrency=3, forks=2)
ALONE = Shape(conversations=8, opening=640, tool=32, turns=5, concurrency=1, forks=2)


@pytest.mark.smoke
@pytest.mark.timeout(400)
def test_hundreds_of_promotions_and_swaps_change_nothing(engine: Engine) -> None:
    reference = play(engine, LONG)
    assert reference.statistics["evictions"] == 0
    counted = Counter[str]()
    for chunk in (2048, 512, 128):
        run = play(engine, LONG, pool=3584, host=4096, swap=64, chunk=chunk)
        counted.update(run.statistics)
        assert differences(run, reference) == []
        assert len(run.kv) > 1500
        assert len(run.host_kv) > 1500
    assert counted["promotions"] >= 500
    assert counted["swaps"] >= 300
    assert counted["phantoms"] >= 5


@pytest.mark.parametrize("host", [512, 2560, 8192], ids=["smaller", "equal", "larger"])
def test_any_size_of_the_host(engine: Engine, host: int) -> None:
    """Case 53: one that is too small for what is to be moved loses the rest, and nothing else."""
    reference = play(engine)
    run = play(engine, pool=2560, host=host, swap=128)
    assert run.statistics["promotions"] >= 3
    assert (run.statistics["evicted_tokens"] == 0) == (host == 8192), "all of it fits or not"
    assert differences(run, reference) == []


def test_a_host_of_its_swap_buffer_alone_is_one_tier(engine: Engine) -> None:
    one = play(engine, ALONE, pool=4608)
    two = play(engine, ALONE, pool=4608, host=256, swap=256)
    assert one.statistics["phantoms"] >= 5
    assert two.statistics == one.statistics
    assert two.kv == one.kv


def test_copies_that_fail_are_undone_and_nothing_is_lost(engine: Engine) -> None:
    """Cases 37 and 52: a failed demotion drops instead; a failed promotion is tried again."""
    reference = play(engine)
    engine.call("penelope_fault", name="copy-fails")
    try:
        run = play(engine, pool=3072, host=3072, swap=64)
        failed = engine.log.read_text().count("the copy was made to fail")
    finally:
        engine.call("penelope_fault", name="")
    assert run.statistics["failed_moves"] >= 5
    assert failed == run.statistics["failed_moves"], "each is in the log"
    assert run.statistics["promotions"] >= 1
    assert differences(run, reference) == []


def test_every_prompt_token_is_counted_once_in_its_tier(engine: Engine) -> None:
    """Case 74: however many chunks it comes in."""
    for chunk in (2048, 128):
        run = play(engine, ALONE, pool=2560, host=2560, swap=64, chunk=chunk)
        counted = run.statistics
        assert counted["phantoms"] >= 3
        decoded = len(run.outputs) * (ALONE.output - 1)
        assert run.prompt_tokens == run.cached_tokens + run.computed_rows - decoded
        assert run.cached_by_tier["host"] == counted["promoted_tokens"]
        assert run.cached_by_tier["device"] + run.cached_by_tier["host"] == run.cached_tokens


def test_decoding_alone_makes_room_by_demotion(engine: Engine) -> None:
    """Case 13: no prefill step has to come along before what was moved out can be used again."""
    engine.call("penelope_configure", **{**DEFAULTS, "pool": 1024, "host": 1024, "swap": 64})

    async def play() -> dict[str, Any]:
        await engine.generate(workload.text("idle", 640), "idle", 1)
        return await engine.generate(workload.text("talks", 200), "talks", 600)

    answer = engine.run(play())
    assert len(answer["output_ids"]) == 600
    counted = engine.dump()["statistics"]
    assert counted["demoted_tokens"] >= 400
    assert counted["evicted_tokens"] == 0, "there was room on the host for all of it"
    again = engine.run(engine.generate([*workload.text("idle", 640), 1], "idle again", 1))
    assert again["meta_info"]["cached_tokens"] == 640
    assert engine.dump()["statistics"]["promoted_tokens"] >= 400


def test_aborting_while_kv_comes_back(engine: Engine) -> None:
    """Case 16: whenever the client leaves, no lock, row or slot of either tier stays behind."""
    for chunk in (48, 2048):
        for wait in (0.0, 0.002, 0.004, 0.007, 0.01, 0.015, 0.02, 0.03):
            engine.call(
                "penelope_configure",
                **{**DEFAULTS, "pool": 2048, "host": 1536, "swap": 64, "chunk": chunk},
            )

            async def play(wait: float = wait) -> None:
                history = workload.text("abandoned", 1300)
                answer = await engine.generate(history, "first", 2)
                history = history + list(answer["output_ids"])
                for index in range(4):
                    await engine.generate(workload.text(("p", index), 640), f"p{index}", 2)
                task = asyncio.ensure_future(engine.generate([*history, 1, 2, 3], "leaves", 30))
                await asyncio.sleep(wait)
                await engine.ask("abort", rid="leaves")
                await task
                await engine.generate([*history, 4, 5, 6], "stays", 2)

            engine.run(play())
            engine.check_alive()
            found = engine.dump()
            assert found["refilling"] is None
            assert found["live_receipts"] == 0
            assert found["free_rows"] == DEFAULTS["rows"]
            assert found["statistics"]["promotions"] >= 1
            assert found["statistics"]["phantoms"] >= 1


def test_the_same_histories_whatever_the_tiers_are(engine: Engine) -> None:
    """The sum of the two capacities decides what is lost, not how it is divided."""
    runs: list[Run] = [
        play(engine, ALONE, pool=pool, host=4864 - pool + 128, swap=128)
        for pool in (2048, 2816, 3584)
    ]
    kept = [run.kv.keys() | run.host_kv.keys() for run in runs]
    assert all(run.statistics["evicted_tokens"] > 1000 for run in runs)
    assert kept[0] == kept[1] == kept[2]
