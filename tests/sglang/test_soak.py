"""Two thousand requests with aborts, forks, pauses and flushes: nothing leaks, nothing hangs.

The engine checks its own memory accounting after every scheduler step and stops at the
first fault; so does `engine_rpc.audit`, which looks at every slot.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.sglang import workload
from tests.sglang.conftest import DEFAULTS
from tests.sglang.harness import Engine

pytestmark = pytest.mark.sglang

REQUESTS = 1050
ROUNDS = 7
POOL = 3072


class Storm:
    """Sessions that grow, fork, are cut off in mid-request and start over."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.source = random.Random(seed)
        self.shared = workload.text("storm", 128)
        self.histories = [self.opening(i) for i in range(6)]
        self.sent = self.aborted = self.finished = 0

    def opening(self, salt: int) -> list[int]:
        length = self.source.randrange(40, 500)
        return self.shared + workload.text((salt, self.source.random()), length)

    async def request(self) -> None:
        source = self.source
        index = source.randrange(len(self.histories))
        history = self.histories[index]
        if len(history) > 900 or source.random() < 0.03:
            history = self.opening(index)
        elif source.random() < 0.1:
            # A rewritten tail: the old one becomes a dead branch.
            history = history[: -source.randrange(1, 60)]
        history = history + workload.text(source.random(), source.randrange(1, 60))
        self.sent += 1
        rid = f"s{self.sent}"
        task = asyncio.ensure_future(
            self.engine.generate(
                history, rid, source.randrange(1, 20), return_logprob=source.random() < 0.3
            )
        )
        if source.random() < 0.2:
            await asyncio.sleep(source.random() * 0.06)
            await self.engine.ask("abort", rid=rid)
            self.aborted += 1
        answer = await task
        kind = answer["meta_info"]["finish_reason"]["type"]
        assert kind in ("length", "abort"), answer
        if kind == "length":
            self.finished += 1
            history = history + list(answer["output_ids"])
        self.histories[index] = history

    async def round(self, requests: int, workers: int) -> None:
        left = iter(range(requests))

        async def worker() -> None:
            for _ in left:
                await self.request()

        await asyncio.gather(*(worker() for _ in range(workers)))


ONE_TIER = {"pool": POOL}
TWO_TIERS = {"pool": 1536, "host": 1152, "swap": 64}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("tiers", [ONE_TIER, TWO_TIERS], ids=["one-tier", "two-tiers"])
@pytest.mark.parametrize("chunk", [2048, 96], ids=["whole", "chunked"])
def test_soak(engine: Engine, chunk: int, tiers: dict[str, int]) -> None:
    storm = Storm(engine, seed=chunk)
    counted = dict.fromkeys(("phantoms", "partial_refills", "evictions", "promotions", "swaps"), 0)
    for number in range(ROUNDS):
        schedule = ("lpm", "fcfs")[number % 2]
        engine.call(
            "penelope_configure", **{**DEFAULTS, **tiers, "chunk": chunk, "schedule": schedule}
        )
        engine.run(storm.round(REQUESTS // 2 // ROUNDS, workers=2 + number % 5))
        engine.check_alive()  # no slot and no lock is left
        found = engine.dump()
        assert found["refilling"] is None
        assert found["free_rows"] == DEFAULTS["rows"]
        for name in counted:
            counted[name] += found["statistics"][name]
    assert storm.sent >= REQUESTS // 2 // ROUNDS * ROUNDS
    assert storm.aborted >= 40
    assert storm.finished >= storm.sent / 2
    assert counted["evictions"] >= 30
    assert counted["phantoms"] >= 8
    assert (counted["partial_refills"] >= 1) == (chunk == 96)
    if "host" in tiers:
        assert counted["promotions"] >= 50
        assert counted["swaps"] >= 10


@pytest.mark.parametrize("tiers", [{"pool": 1792}, TWO_TIERS], ids=["one-tier", "two-tiers"])
def test_soak_by_expected_cost(engine: Engine, tiers: dict[str, int]) -> None:
    """Most requests wait, in view of the cache, and some are aborted there."""
    storm = Storm(engine, seed=3)
    spared = phantoms = 0
    for schedule in ("fcfs", "lpm"):
        settings = {**DEFAULTS, **tiers, "rows": 3, "chunk": 256, "schedule": schedule}
        engine.call("penelope_configure", **settings, order="expected-cost", queue=True)
        engine.run(storm.round(70, workers=7))
        engine.check_alive()
        found = engine.dump()
        assert found["free_rows"] == 3
        spared += found["statistics"]["spared_requests"]
        phantoms += found["statistics"]["phantoms"]
    assert storm.aborted >= 10
    assert spared >= 8
    assert phantoms >= 5


@pytest.mark.smoke
def test_pausing_with_retraction_leaves_nothing_behind(engine: Engine) -> None:
    """Cases 1 and 70: `pause_generation(retract)` while holes are refilled, then going on."""
    engine.call("penelope_configure", **{**DEFAULTS, "pool": POOL, "chunk": 128})
    storm = Storm(engine, seed=5)

    async def play() -> None:
        requests = asyncio.ensure_future(storm.round(150, workers=4))
        while not requests.done():
            await asyncio.sleep(0.15)
            await engine.ask("pause", mode="retract")
            await asyncio.sleep(0.02)
            await engine.ask("continue")
        await requests

    engine.run(play())
    assert storm.finished >= 60
    assert engine.dump()["statistics"]["phantoms"] >= 1
