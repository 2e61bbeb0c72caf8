"""In SGLang's deterministic mode, evicting heads and refilling holes changes nothing.

One workload, served with room for everything, under pressure, and by SGLang's own tree: greedy
outputs, log-probabilities and resident K and V are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from tests.gpu.judging import Run, differences, judge, play
from tests.sglang.harness import Engine
from tests.sglang.workload import Shape

pytestmark = [pytest.mark.gpu, pytest.mark.sglang, pytest.mark.timeout(1200)]

# Requests of one token: whatever is in the cache was written by a prefill.  Decoding uses other
# kernels, and a refill of what was decoded is a prefill: that is the second workload.
REAL = Shape(conversations=8, shared=768, opening=5120, tool=256, output=1, turns=7, concurrency=3)
REAL_POOL = 37_888
TOY = Shape(conversations=8, opening=640, tool=40, output=1, turns=7, concurrency=3)
TOY_POOL = 5_248
DECODED = 24
# Between a decoded and a prefilled position's log-probabilities, in bfloat16.
TOLERANCE = 0.1

BACKENDS = [
    pytest.param({"attention_backend": "fa3", "page_size": 1}, id="fa3-page1"),
    pytest.param({"attention_backend": "triton", "page_size": 16}, id="triton-page16"),
]


class Reference(NamedTuple):
    engine: Engine
    shape: Shape
    pool: int
    run: Run


@pytest.fixture(scope="module", params=BACKENDS)
def ample(request: pytest.FixtureRequest, stage: Any, engines: Any) -> Reference:
    """Penelope with room for everything."""
    engine = engines.get(penelope={"exact": True, **request.param})["penelope"]
    engine.call("penelope_switch")
    engine.call("penelope_fault", name="")
    shape = TOY if stage.rehearsal else REAL
    run = play(engine, shape, pool=stage.pool(1))
    assert run.statistics["evictions"] == 0
    assert len(run.answers) >= shape.conversations * shape.turns
    return Reference(engine, shape, TOY_POOL if stage.rehearsal else REAL_POOL, run)


@pytest.mark.parametrize("audited", [False, True], ids=["", "audited"])
@pytest.mark.parametrize("chunk", [8192, 0], ids=["whole", "chunked"])
def test_under_pressure_equals_never_evicting(
    ample: Reference, stage: Any, chunk: int, audited: bool, record: Callable[..., None]
) -> None:
    """Audited: after every step each slot has one owner.  Not audited: nothing waits for the device
    between steps, as in service."""
    if chunk == 0 and audited:
        pytest.skip("the audit is played once")
    chunk = chunk or stage.size(4096, 128)
    ample.engine.call("penelope_switch", audit=audited)
    run = play(ample.engine, ample.shape, pool=ample.pool, chunk=chunk)
    ample.engine.call("penelope_switch")
    counted = run.statistics
    record("under pressure", chunk=chunk, **{n: counted[n] for n in COUNTED})
    assert_pressed(counted, stage)
    assert len(run.kv) > ample.pool / 2
    assert run.kv.keys() <= ample.run.kv.keys()
    assert differences(run, ample.run) == []


def test_two_tiers_equal_never_evicting(
    ample: Reference, stage: Any, record: Callable[..., None]
) -> None:
    """Device and host together hold what the device holds above, and both are full: KV goes to host
    memory and comes back, by the hundred, through kernels and streams."""
    host = ample.pool // 2
    swap = stage.size(1024, 64)
    pool = ample.pool - host + swap
    pool -= pool % 64
    run = play(ample.engine, ample.shape, pool=pool, host=host, swap=swap)
    counted = run.statistics
    record("two tiers", pool=pool, host=host, **{n: counted[n] for n in (*COUNTED, *MOVED)})
    assert counted["promoted_tokens"] >= stage.size(20_000, 2_000)
    assert counted["swaps"] >= 20
    assert counted["evictions"] >= 10
    assert counted["failed_moves"] == 0
    assert len(run.kv) > pool / 2
    assert len(run.host_kv) > host / 2
    assert differences(run, ample.run) == []


MOVED = ("demoted_tokens", "promotions", "promoted_tokens", "swaps", "swapped_tokens")
COUNTED = ("evictions", "phantoms", "phantom_tokens", "reused_behind_hole_tokens")


def assert_pressed(counted: dict[str, int], stage: Any) -> None:
    """Holes happened many times, or equality says nothing."""
    assert counted["evictions"] >= 10
    assert counted["phantoms"] >= 5
    assert counted["phantom_tokens"] >= stage.size(10_000, 1_500)
    assert counted["reused_behind_hole_tokens"] >= stage.size(4_000, 500)


@pytest.mark.parametrize("fault", ["hole-left-unfilled", "wrong-positions"])
def test_a_wrong_refill_is_caught(ample: Reference, fault: str) -> None:
    """The comparison is worth something only if it fails when a refill is wrong."""
    ample.engine.call("penelope_fault", name=fault)
    try:
        run = play(ample.engine, ample.shape, pool=ample.pool)
    finally:
        ample.engine.call("penelope_fault", name="")
    assert run.statistics["phantoms"] >= 3
    found = differences(run, ample.run)
    assert any("logprobs" in text for text in found), found
    assert any("K and V" in text for text in found), found


def test_decoded_tokens(ample: Reference, stage: Any, record: Callable[..., None]) -> None:
    """Histories with decoded outputs: a refill prefills what was decoded.

    Where both kernels round alike all is equal.  Where they do not, log-probabilities stay within
    the tolerance, and an output goes another way only where two tokens were that close.
    """
    shape = replace(ample.shape, output=DECODED)
    reference = play(ample.engine, shape, pool=stage.pool(1))
    run = play(ample.engine, shape, pool=ample.pool)
    assert_pressed(run.statistics, stage)
    found = judge(run, reference, TOLERANCE)
    record(
        "decoded tokens", compared=found.compared, requests=found.requests,
        largest_gap=f"{found.gap:.2e}", ties=found.ties,
    )  # fmt: skip
    assert found.wrong == ()
    assert found.gap <= TOLERANCE
    assert found.compared >= found.requests / 2, "too few requests had the same history to compare"
    if stage.rehearsal:
        assert differences(run, reference) == []


# Last in its module: it replaces the engine, once for each backend.
def test_sglangs_own_tree_says_the_same(ample: Reference, stage: Any, engines: Any) -> None:
    backend = engines.arguments("penelope")
    engine = engines.get(stock={**backend, "cache": None})["stock"]
    engine.call("penelope_switch")
    run = play(engine, ample.shape, pool=stage.pool(1))
    assert run.statistics == {}, "this is Penelope's cache"
    assert differences(run, ample.run) == []
