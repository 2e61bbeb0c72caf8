"""Faults from the field on the engine: too little memory, pauses, and requests that are cut off."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.sglang import workload
from tests.sglang.conftest import DEFAULTS
from tests.sglang.harness import Engine

pytestmark = [pytest.mark.sglang, pytest.mark.smoke]

EAGER: dict[str, Any] = {"ignore_eos": False}
"""SGLang admits such a request without setting aside all that it might say."""


def retractions(answer: dict[str, Any]) -> int:
    return int(answer["meta_info"].get("num_retractions") or 0)


async def together(engine: Engine, prompts: dict[str, list[int]], new: int) -> list[dict[str, Any]]:
    """Requests that wait in the queue together before the first is looked at."""
    await engine.hold()
    tasks = []
    for rid, tokens in prompts.items():
        tasks.append(asyncio.ensure_future(engine.generate(tokens, rid, new, sampling=EAGER)))
        await engine.until(lambda found: len(found["queued"]) == len(tasks))
    await engine.go()
    return list(await asyncio.gather(*tasks))


@pytest.mark.parametrize("tiers", [{}, {"host": 512, "swap": 64}], ids=["one-tier", "two-tiers"])
def test_case_71_two_requests_that_outgrow_the_pool_both_end_and_hardly_disturb_each_other(
    engine: Engine, tiers: dict[str, int]
) -> None:
    prompts = {name: workload.text(("grows", name), 192) for name in "ab"}
    ample = engine.run(together(engine, prompts, 200))
    engine.call("penelope_configure", **{**DEFAULTS, "pool": 768, **tiers})
    engine.call("penelope_record", on=True)
    answers = engine.run(together(engine, prompts, 200))
    found = engine.dump()
    engine.call("penelope_record", on=False)
    assert [a["output_ids"] for a in answers] == [a["output_ids"] for a in ample]
    assert all(len(a["output_ids"]) == 200 for a in answers)
    gone = sum(map(retractions, answers))
    assert 1 <= gone <= 2
    # What was computed twice is at most what those who went had computed.
    once = sum(192 + 200 - 1 for _ in answers)
    assert sum(found["origins"].values()) - once <= gone * (192 + 200)


def test_case_70_pausing_gives_back_what_a_request_computed_and_a_flush_gives_the_rest(
    engine: Engine,
) -> None:
    """Case 74 too: what a request finds again of its own after a retraction is no cache hit."""
    engine.call("penelope_configure", **{**DEFAULTS, "pool": 2048})
    tokens = workload.text("paused", 200)
    shared = [*tokens[:100], *workload.text("other", 60)]
    alone = engine.run(engine.generate(tokens, "alone", 120))
    assert engine.run(engine.ask("flush"))

    async def play(*, flush: bool) -> list[dict[str, Any]]:
        tasks = [
            asyncio.ensure_future(engine.generate(tokens, "one", 120)),
            asyncio.ensure_future(engine.generate(shared, "two", 120)),
        ]
        await engine.until(lambda found: sorted(found["running"]) == ["one", "two"])
        await engine.ask("pause", mode="retract")
        held = await engine.look()
        assert (held["running"], sorted(held["queued"])) == ([], ["one", "two"])
        assert held["live_receipts"] == 0
        # Of each only the whole pages of its prompt are left, and those can be had.
        assert 0 < held["evictable"] <= 192 + 160
        assert held["evictable"] == held["statistics"]["device_tokens"]
        assert held["free_tokens"] == 2048 - held["evictable"]
        if flush:
            assert await engine.ask("flush")
            held = await engine.look()
            assert (held["free_tokens"], held["resident"]) == (2048, {})
        await engine.ask("continue")
        return list(await asyncio.gather(*tasks))

    for flush in (False, True):
        one, two = engine.run(play(flush=flush))
        assert one["output_ids"] == alone["output_ids"]
        assert [retractions(a) for a in (one, two)] == [1, 1]
        assert one["meta_info"]["cached_tokens"] == 0
        assert two["meta_info"]["cached_tokens"] in (0, 96)
        assert engine.run(engine.ask("flush"))


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_case_22_aborted_between_chunks_what_is_complete_is_found_and_nothing_else(
    engine: Engine, steps: int
) -> None:
    engine.call("penelope_configure", **{**DEFAULTS, "pool": 2048, "chunk": 64})
    tokens = workload.text("chunks", 500)
    first = engine.run(engine.generate(tokens, "first", 4))
    assert engine.run(engine.ask("flush"))

    async def play() -> dict[str, Any]:
        await engine.hold(steps)
        task = asyncio.ensure_future(engine.generate(tokens, "leaves", 4))
        # Between two chunks: the last one has been launched, its result is not in yet.
        await engine.until(lambda found: found["steps_left"] == 0)
        held = await engine.look()
        assert len(held["resident"]) == 64 * (steps - 1), "a chunk is published when it is done"
        await engine.ask("abort", rid="leaves")
        # It comes by another way than `go`, which may overtake it.
        await engine.until(lambda found: found["leaving"] == "leaves")
        await engine.go()
        await task
        return await engine.until(lambda found: found["live_receipts"] == 0)

    left = engine.run(play())
    assert len(left["resident"]) == 64 * (steps - 1), "the chunk under way was dropped with it"
    assert left["free_tokens"] == 2048 - len(left["resident"])
    again = engine.run(engine.generate(tokens, "again", 4))
    assert again["meta_info"]["cached_tokens"] == len(left["resident"])
    assert again["output_ids"] == first["output_ids"]


def test_case_11_two_equal_prompts_in_one_batch_leave_one_copy(engine: Engine) -> None:
    tokens = workload.text("twice", 200)
    prompts = {"a": tokens, "b": [*tokens]}
    a, b = engine.run(together(engine, prompts, 40))
    assert a["output_ids"] == b["output_ids"]
    found = engine.dump()
    assert len(found["resident"]) == (200 + 40 - 1) // 16 * 16
    assert found["free_tokens"] == DEFAULTS["pool"] - len(found["resident"])


@pytest.mark.parametrize("new", [1, 2, 9, 16, 17])
def test_case_19_a_request_that_stops_early_gives_back_what_was_allocated_ahead(
    engine: Engine, new: int
) -> None:
    """Under overlap SGLang has a slot for a token more than the request will have."""
    tokens = workload.text("stops", 56)
    whole = engine.run(engine.generate(tokens, "whole", 24))["output_ids"]
    assert engine.run(engine.ask("flush"))
    stop = {"stop_token_ids": [whole[new - 1]], "ignore_eos": False}
    answer = engine.run(engine.generate(tokens, "stops", 24, sampling=stop))
    said = len(answer["output_ids"])
    assert said <= new
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"
    found = engine.dump()
    assert len(found["resident"]) == (56 + max(said - 1, 0)) // 16 * 16
    assert found["free_tokens"] == DEFAULTS["pool"] - len(found["resident"])
