"""What a client can get wrong gets the engine's usual answer, and the server goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.sglang import workload
from tests.sglang.conftest import DEFAULTS
from tests.sglang.harness import Engine

pytestmark = [pytest.mark.sglang, pytest.mark.smoke]


def test_prompts_at_the_boundaries(engine: Engine) -> None:
    """Cases 28 and 29: second time, all whole pages but the last token's are reused."""
    for length in (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129):
        tokens = workload.text(("edge", length), length)
        first = engine.run(engine.generate(tokens, f"a{length}", 1))
        again = engine.run(engine.generate(tokens, f"b{length}", 1))
        assert first["output_ids"] == again["output_ids"]
        assert first["meta_info"]["cached_tokens"] == 0
        assert again["meta_info"]["cached_tokens"] == (length - 1) // 16 * 16


def test_a_hole_up_to_the_last_page(engine: Engine) -> None:
    """Case 28: all of the prompt is in the tree, its head a hole: its last page is computed."""
    engine.call("penelope_configure", **{**DEFAULTS, "pool": 1024})
    tokens = workload.text("exact", 512)

    async def play() -> list[dict[str, Any]]:
        first = await engine.generate(tokens, "first", 1)
        await engine.generate(workload.text("press", 600), "press", 1)
        return [first, await engine.generate(tokens, "again", 1)]

    first, again = engine.run(play())
    assert engine.dump()["statistics"]["phantoms"] == 1
    assert first["output_ids"] == again["output_ids"]
    assert 0 < again["meta_info"]["cached_tokens"] < 496


def test_refused_requests_leave_nothing_behind(engine: Engine) -> None:
    engine.call("penelope_configure", **{**DEFAULTS, "pool": 1024})
    for tokens, arguments in (
        ([], {}),
        (workload.text("long", 1500), {}),
        (workload.text("context", 9000), {}),
        ([1, 2, 3], {"sampling": {"temperature": -1}}),
        ([1, 2, 3], {"sampling": {"max_new_tokens": -5}}),
    ):
        try:
            answer = engine.run(engine.generate(tokens, f"bad{len(tokens)}", 4, **arguments))
        except RuntimeError:
            continue  # refused before it reached the scheduler
        assert answer["meta_info"]["finish_reason"]["type"] in ("abort", "length"), answer
    good = engine.run(engine.generate(workload.text("good", 100), "good", 4))
    assert good["meta_info"]["finish_reason"]["type"] == "length"


def test_aborting_in_the_middle_of_a_refill(engine: Engine) -> None:
    """Cases 1 and 22: at whatever step the client leaves, locks, rows and slots come back."""
    pool = 2560
    for wait in (0.0, 0.003, 0.006, 0.01, 0.015, 0.02, 0.03):
        engine.call("penelope_configure", **{**DEFAULTS, "pool": pool, "chunk": 48})

        async def play(wait: float = wait) -> dict[str, Any]:
            history = workload.text("abandoned", 1300)
            answer = await engine.generate(history, "first", 2)
            history = history + list(answer["output_ids"])
            for index in range(3):
                await engine.generate(workload.text(("p", index), 600), f"p{index}", 2)
            task = asyncio.ensure_future(engine.generate([*history, 1, 2, 3], "leaves", 30))
            await asyncio.sleep(wait)
            await engine.ask("abort", rid="leaves")
            answer = await task
            await engine.generate([*history, 4, 5, 6], "stays", 2)
            return answer

        engine.run(play())
        engine.check_alive()
        found = engine.dump()
        assert found["refilling"] is None
        assert found["live_receipts"] == 0
        assert found["free_rows"] == DEFAULTS["rows"]
        assert found["statistics"]["phantoms"] >= 1


@pytest.mark.parametrize("limit", ["WAITING", "RUNNING"])
def test_timing_out_in_the_middle_of_a_refill(engine: Engine, limit: str) -> None:
    """A request that SGLang gives up leaves no lock, row or slot, wherever it was."""
    variable = f"SGLANG_REQ_{limit}_TIMEOUT"
    ended: list[str] = []
    for seconds in (0.005, 0.02, 0.05, 0.1):
        engine.call("penelope_configure", **{**DEFAULTS, "pool": 2560, "chunk": 48})

        async def play(seconds: float = seconds) -> list[str]:
            async def allow(value: float) -> None:
                variables = {variable: str(value)}
                await engine.ask("call", method="penelope_environment", **variables)

            history = workload.text("late", 1300)
            answer = await engine.generate(history, "first", 2)
            history = history + list(answer["output_ids"])
            for index in range(3):
                await engine.generate(workload.text(("p", index), 600), f"p{index}", 2)
            await allow(seconds)
            answers = await asyncio.gather(
                engine.generate([*history, 1, 2, 3], "late", 40),
                engine.generate(workload.text("other", 400), "other", 40),
                return_exceptions=True,
            )
            await allow(-1)
            await engine.generate([*history, 4, 5, 6], "stays", 2)
            return [str(answer) for answer in answers]

        ended += engine.run(play())
        engine.check_alive()
        found = engine.dump()
        assert found["refilling"] is None
        assert found["live_receipts"] == 0
        assert found["free_rows"] == DEFAULTS["rows"]
    assert any("timeout reached" in answer for answer in ended), "nothing timed out"


def test_a_pause_that_aborts_ends_a_pause_in_place(engine: Engine) -> None:
    """SGLang would wait for ever: nothing is aborted while the scheduler stands still."""

    async def play() -> tuple[list[Any], dict[str, Any]]:
        task = asyncio.ensure_future(engine.generate(workload.text("runs", 100), "runs", 500))
        await engine.until(lambda found: "runs" in (*found["running"], *found["between"]))
        await engine.ask("pause", mode="in_place")
        async with asyncio.timeout(60):
            await engine.ask("pause", mode="abort")
        late = asyncio.ensure_future(engine.generate([1, 2, 3], "late", 4))
        await asyncio.sleep(0.3)
        waits = not late.done()
        await engine.ask("continue")
        ended = await asyncio.gather(task, return_exceptions=True)
        return [waits, *ended], await late

    (waits, ended), late = engine.run(play())
    assert waits, "who arrives during the pause waits for its end"
    assert "abort" in str(ended).lower()
    assert late["meta_info"]["finish_reason"]["type"] == "length"
