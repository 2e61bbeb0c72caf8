"""A request of high priority takes the place of one that runs, and refills its own history."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.sglang import workload
from tests.sglang.conftest import DEFAULTS, Engines
from tests.sglang.harness import Engine

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

HISTORY = 1200
PLACES = 2
ROWS = PLACES + 16  # and those added for phantoms
BASE = {**DEFAULTS, "rows": ROWS}


@pytest.fixture(scope="module")
def preempting(engines: Engines) -> Engine:
    return engines.get(enable_priority_scheduling=True, max_running_requests=PLACES)


async def play(engine: Engine) -> dict[str, dict[str, Any]]:
    history = workload.text("mine", HISTORY)
    first = await engine.generate(history, "first", 2, priority=100)
    history = history + list(first["output_ids"])
    await engine.generate(workload.text("press", 700), "press", 1, priority=100)
    # Requests of low priority take its head, and all places.
    talking = [
        asyncio.ensure_future(
            engine.generate(workload.text(("low", i), 560), f"low{i}", 150, priority=0)
        )
        for i in range(PLACES)
    ]
    await asyncio.sleep(0.3)
    urgent = await engine.generate([*history, 1, 2, 3], "urgent", 4, priority=100)
    low = await asyncio.gather(*talking)
    return {"urgent": urgent, **{f"low{i}": answer for i, answer in enumerate(low)}}


@pytest.mark.parametrize(
    "tiers", [{"pool": 2560}, {"pool": 2304, "host": 320, "swap": 64}], ids=["one", "two"]
)
@pytest.mark.parametrize("chunk", [2048, 256], ids=["whole", "chunked"])
def test_preempting_for_a_hole(preempting: Engine, chunk: int, tiers: dict[str, int]) -> None:
    preempting.call("penelope_configure", **BASE)
    expected = preempting.run(play(preempting))
    preempting.call("penelope_configure", **{**BASE, **tiers, "chunk": chunk})
    answers = preempting.run(play(preempting))
    preempting.check_alive()
    found = preempting.dump()
    for name, answer in expected.items():
        assert answers[name]["output_ids"] == answer["output_ids"], name
    last = {name: answer["meta_info"]["e2e_latency"] for name, answer in answers.items()}
    assert last["urgent"] < min(last[f"low{i}"] for i in range(PLACES)), "it did not have to wait"
    counted = found["statistics"]
    assert counted["phantoms"] + counted["promotions"] >= 1
    assert answers["urgent"]["meta_info"]["cached_tokens"] > 0
    assert sum(a["meta_info"].get("num_retractions", 0) for a in answers.values()) >= 1, (
        "nobody was preempted"
    )
    assert found["live_receipts"] == 0
    assert found["free_rows"] == ROWS
