"""SGLang on its own cache, the policy beside it: nothing changes, and the counts are right."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Iterator
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from penelope.cost import from_hf_config
from penelope.policy import Config, Namespace, Order, pack
from penelope.runtime.shadow import Shadow
from penelope.sglang_adapter import serve, shadow
from penelope.sglang_adapter.errors import UnsupportedError
from penelope.sglang_adapter.options import Options
from penelope.sglang_adapter.shadow import Allowance, Follower, require_alone
from tests.sglang import workload
from tests.sglang.conftest import Engines
from tests.sglang.harness import Engine

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

POOL, PAGE, BLOCK = 2048, 16, 64


@pytest.fixture
def shadowed(engines: Engines) -> Iterator[Engine]:
    """A stock engine with a shadow that has just been switched on."""
    found = engines.get(
        radix_cache_backend=None,
        max_total_tokens=POOL,
        variables={"PENELOPE_SHADOW": "1", "PENELOPE_HOST_TOKENS": "0"},
    )
    assert found.run(found.ask("flush"))
    for on in (0, 1):
        assert found.run(found.ask("internal_state", penelope_shadow=on)) == [True]
    yield found
    if engines.running is found:
        found.check_alive()


def test_it_counts_what_the_policy_does_with_the_same_requests(
    shadowed: Engine, engines: Engines
) -> None:
    """One request at a time, under pressure: every count, from the requests alone."""
    cost = from_hf_config(json.loads((engines.model / "config.json").read_text()))
    beside = Shadow(Config(POOL, page_size=PAGE, block_size=BLOCK), cost)
    shared = workload.text("shared", 100)
    histories = {name: shared + workload.text(name, 150) for name in "abcdef"}
    requests = 0
    for turn in range(4):
        for name, history in histories.items():
            prompt = history + workload.text((name, turn), 70)
            rid = f"{name}{turn}"
            answer = shadowed.run(shadowed.generate(prompt, rid, 9))
            histories[name] = prompt + list(answer["output_ids"])
            cached = answer["meta_info"]["cached_tokens"]
            beside.started(rid, pack(prompt), Namespace(), cached)
            # The token that was sampled last has no KV.
            beside.ended(rid, pack(histories[name][:-1]))
            requests += 1
            assert shadowed.dump()["shadow"] == asdict(beside.tally), rid
    tally = beside.tally
    assert tally.requests == requests
    assert tally.unfollowed_requests == tally.unfollowed_outputs == 0
    assert min(tally.evicted_tokens, tally.refilled_tokens, tally.engine_reused_tokens) > 0
    assert tally.saved is not None
    assert tally.saved > 0, "round robin under pressure is what head eviction is for"


def test_nothing_changes_for_requests_that_run_together(shadowed: Engine, engines: Engines) -> None:
    shape = workload.Shape(conversations=8, turns=4, concurrency=5)

    def spoken(engine: Engine) -> dict[str, dict[str, Any]]:
        everyone = engine.run(workload.converse(engine, shape))
        return {rid: answer for c in everyone for rid, _, answer in c.spoken}

    turns = spoken(shadowed)
    found = shadowed.dump()
    tally = found["shadow"]
    assert not found["shadow_runs"]
    assert tally["requests"] + tally["unfollowed_requests"] == len(turns)
    assert tally["requests"] > len(turns) / 2
    if not tally["unfollowed_requests"]:
        cached = sum(answer["meta_info"]["cached_tokens"] for answer in turns.values())
        assert tally["engine_reused_tokens"] == cached
    shadowed.check_alive()
    without = spoken(engines.get(radix_cache_backend=None, max_total_tokens=POOL))
    assert {rid: answer["output_ids"] for rid, answer in turns.items()} == {
        rid: answer["output_ids"] for rid, answer in without.items()
    }


def test_switched_off_it_follows_nobody_and_flushed_it_has_nothing(shadowed: Engine) -> None:
    prompt = workload.text("switch", 200)
    shadowed.run(shadowed.generate(prompt, "a", 4))
    assert shadowed.dump()["shadow"]["requests"] == 1
    assert shadowed.run(shadowed.ask("flush"))
    shadowed.run(shadowed.generate(prompt, "b", 4))
    assert shadowed.dump()["shadow"]["reused_tokens"] == 0
    assert shadowed.run(shadowed.ask("internal_state", penelope_shadow=2)) == [False]
    assert shadowed.run(shadowed.ask("internal_state", penelope_shadow=0)) == [True]
    shadowed.run(shadowed.generate(prompt, "c", 4))
    assert shadowed.dump()["shadow"] is None
    assert shadowed.run(shadowed.ask("internal_state", penelope_shadow=1)) == [True]
    shadowed.run(shadowed.generate(prompt, "d", 4))
    assert shadowed.dump()["shadow"]["requests"] == 1


def test_aborted_requests_are_let_go(shadowed: Engine) -> None:
    async def play() -> None:
        for wait in (0.0, 0.01, 0.05, 0.2):
            name = f"leaves{wait}"
            task = asyncio.ensure_future(shadowed.generate(workload.text(name, 900), name, 60))
            await asyncio.sleep(wait)
            await shadowed.ask("abort", rid=name)
            await asyncio.gather(task, return_exceptions=True)

    shadowed.run(play())
    assert not shadowed.dump()["shadow_runs"]


def test_penelope_serve_leaves_sglangs_own_cache_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[list[str]] = []

    def launch(argv: list[str]) -> int:
        launched.append(argv)
        return 0

    monkeypatch.setattr(serve, "_launch", launch)
    monkeypatch.setenv("PENELOPE_SHADOW", "0")
    given = ["--model-path", "m", "--page-size", "64"]
    assert serve.main(["--penelope-shadow", "1", *given]) == 0
    assert serve.main(["--penelope-shadow=0", *given]) == 0
    assert launched == [given, [*given, "--radix-cache-backend", "penelope"]]


@pytest.mark.parametrize(("backend", "host"), [("penelope", 0), ("flexkv", 64)])
def test_it_is_refused_beside_our_own_cache_and_with_a_host_tier(
    backend: str, host: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENELOPE_SHADOW", "1")
    monkeypatch.setenv("PENELOPE_HOST_TOKENS", str(host))
    view = SimpleNamespace(radix_cache_backend=backend)
    monkeypatch.setattr("sglang.srt.arg_groups.overrides.resolving_view", lambda _: view)
    with pytest.raises(UnsupportedError, match="leave out"):
        shadow.refuse_early(None, None)
    monkeypatch.setenv("PENELOPE_SHADOW", "0")
    shadow.refuse_early(None, None)


def test_what_it_cannot_follow_is_refused_in_one_line() -> None:
    with pytest.raises(UnsupportedError, match="follows one tier"):
        require_alone(Options(shadow=True, host_tokens=64))
    with pytest.raises(UnsupportedError, match="does not see the queue"):
        require_alone(Options(shadow=True, order=Order.EXPECTED_COST, queue_in_view=True))


def test_its_own_fault_ends_the_shadow_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    follower = Follower(lambda: Shadow(Config(64, page_size=1, block_size=4)), None)
    follower.switch(on=True)
    broken = SimpleNamespace(rid="r", full_untruncated_fill_ids=array("q", [-1]))
    follower.batch(SimpleNamespace(reqs=[broken], prefix_lens=[0]))
    assert follower.shadow is None
    assert "SGLang is not touched" in caplog.text
    follower.batch(SimpleNamespace(reqs=[broken], prefix_lens=[0]))
    follower.ended(broken, 1)
    follower.flushed()


def test_it_takes_its_share_of_the_time_and_no_more() -> None:
    now = 0.0
    allowance = Allowance(share=0.01, burst=0.05, clock=lambda: now)
    done = 0.0
    for _ in range(2000):
        now += 0.02  # a step of the scheduler
        if allowance.any:
            with allowance.work():
                now += 0.001
            done += 0.001
    assert 0.01 * now - 0.001 <= done <= 0.01 * now + 0.05 + 0.001
    now += 1000.0  # idle
    at_once = 0
    while allowance.any:
        at_once += 1
        with allowance.work():
            now += 0.001
    assert at_once <= 51
