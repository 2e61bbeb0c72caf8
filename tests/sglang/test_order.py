"""Expected cost, first come, first served, on the real engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.sglang import workload
from tests.sglang.comparing import CROWD, differences, play
from tests.sglang.conftest import DEFAULTS
from tests.sglang.harness import Engine

pytestmark = [pytest.mark.sglang, pytest.mark.smoke, pytest.mark.timeout(300)]

QUEUE = replace(CROWD, concurrency=6, turns=5)
"""Agents of whom most wait: SGLang has rows for two requests and a phantom."""
ROWS = 3
EXPECTED_COST: dict[str, Any] = {"order": "expected-cost", "queue": True, "schedule": "fcfs"}
TIERS: dict[str, dict[str, int]] = {
    "one-tier": {"pool": 3584},
    "two-tiers": {"pool": 2048, "host": 1600, "swap": 64},
}


def test_expected_cost_changes_nothing_but_what_is_kept(engine: Engine) -> None:
    reference = play(engine, QUEUE, rows=ROWS)
    assert reference.statistics["evictions"] == 0
    for tiers, sizes in TIERS.items():
        run = play(engine, QUEUE, rows=ROWS, **sizes, **EXPECTED_COST)
        counted = run.statistics
        assert counted["evictions"] >= 10
        assert counted["phantoms"] >= 5
        assert counted["spared_requests"] >= 5
        assert (counted["promotions"] >= 5) == (tiers == "two-tiers")
        assert differences(run, reference) == []


async def _press(engine: Engine) -> tuple[dict[str, Any], dict[str, Any]]:
    """The oldest history is asked for behind a newcomer that needs room; then what was counted."""
    oldest = workload.text("oldest", 640)
    await engine.generate(oldest, "oldest", 1)
    for index in range(2):
        await engine.generate(workload.text(("idle", index), 640), f"idle{index}", 1)
    await engine.hold()
    first = asyncio.ensure_future(engine.generate(workload.text("newcomer", 1200), "newcomer", 1))
    await engine.until(lambda found: found["queued"] == ["newcomer"])
    second = asyncio.ensure_future(engine.generate([*oldest, 1, 2, 3], "again", 1))
    await engine.until(lambda found: found["queued"] == ["newcomer", "again"])
    await engine.go()
    await first
    answer = await second
    return answer, (await engine.look())["statistics"]


def test_who_waits_behind_a_newcomer_finds_its_history(engine: Engine) -> None:
    """Where least recent use drops it, an instant before it would have been read."""
    sizes = {"pool": 2560, "chunk": 512}
    engine.call("penelope_environment", SGLANG_ENABLE_WAITING_PREFIX_REFRESH="0")
    cached = {}
    arms: dict[str, dict[str, Any]] = {
        "lru": {},
        "lru, queue in view": {"queue": True},
        "expected cost, queue out of view": {"order": "expected-cost"},
        "expected cost": EXPECTED_COST,
    }
    for name, settings in arms.items():
        engine.call("penelope_configure", **{**DEFAULTS, **sizes, **settings})
        answer, counted = engine.run(_press(engine))
        cached[name] = answer["meta_info"]["cached_tokens"]
        assert counted["spared_requests"] == int(bool(settings.get("queue"))), name
        assert counted["queued_evicted_tokens"] == 0, name
    assert cached["lru"] < 640
    assert cached["expected cost, queue out of view"] < 640
    assert cached["lru, queue in view"] == cached["expected cost"] == 640


def test_aborting_who_waits_leaves_nothing_in_view(engine: Engine) -> None:
    engine.call("penelope_configure", **{**DEFAULTS, "pool": 1216, "rows": 1, **EXPECTED_COST})

    async def leave() -> dict[str, Any]:
        histories = [workload.text(("h", index), 320) for index in range(3)]
        for index, history in enumerate(histories):
            await engine.generate(history, f"h{index}", 1)
        # It has the only row, and presses KV out as it goes on.
        talks = asyncio.ensure_future(engine.generate(workload.text("talks", 64), "talks", 500))
        await engine.until(lambda found: found["running"] == ["talks"])
        waiting = [
            asyncio.ensure_future(engine.generate([*history, 1], f"leaves{index}", 1))
            for index, history in enumerate(histories)
        ]
        await engine.until(lambda found: found["in_view"] == 3)
        for index in range(3):
            await engine.ask("abort", rid=f"leaves{index}")
        for answer in await asyncio.gather(*waiting):
            assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        await engine.until(lambda found: found["in_view"] == 0)
        await talks
        return await engine.look()

    found = engine.run(leave())
    assert found["statistics"]["evictions"] >= 2
    assert found["queued"] == []
    assert found["live_receipts"] == 0


def test_a_session_ends_by_its_name(engine: Engine) -> None:
    engine.call("penelope_configure", **{**DEFAULTS, "pool": 2560, **EXPECTED_COST})

    async def end() -> dict[str, Any]:
        kept = workload.text("kept", 640)
        await engine.generate(kept, "kept", 1)
        await engine.generate(workload.text("over", 900), "over", 1, session_id="over")
        await engine.ask("close_session", session_id="over")
        await engine.generate(workload.text("newcomer", 1200), "newcomer", 1)
        answer = await engine.generate([*kept, 1], "again", 1)
        assert answer["meta_info"]["cached_tokens"] == 640
        return await engine.look()

    assert engine.run(end())["statistics"]["retired_histories"] == 1
    assert "does not exist" not in engine.log.read_text()
