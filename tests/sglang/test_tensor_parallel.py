"""Two tensor-parallel ranks take the same decisions and give the same results."""

from __future__ import annotations

import pytest

from tests.sglang.comparing import CROWD, SMALL_POOL, differences, play
from tests.sglang.conftest import Engines
from tests.sglang.harness import Engine
from tests.sglang.test_order import EXPECTED_COST, QUEUE, ROWS, TIERS

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def pair(engines: Engines) -> Engine:
    """Each rank on a core of its own, over gloo."""
    return engines.get(variables={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}, tp_size=2)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", [2048, 128], ids=["whole", "chunked"])
def test_two_ranks(pair: Engine, chunk: int) -> None:
    """Case 62: nothing but what both see decides."""
    reference = play(pair)
    assert reference.statistics["evictions"] == 0
    for tiers in ({"pool": SMALL_POOL}, {"pool": 3072, "host": 3072, "swap": 64}):
        run = play(pair, CROWD, chunk=chunk, **tiers)
        assert run.statistics["phantoms"] >= 1
        assert (run.statistics["promotions"] >= 15) == ("host" in tiers)
        assert differences(run, reference) == []
        _same_decisions(pair)


@pytest.mark.timeout(600)
def test_two_ranks_see_one_queue(pair: Engine) -> None:
    reference = play(pair, QUEUE, rows=ROWS)
    run = play(pair, QUEUE, rows=ROWS, **TIERS["two-tiers"], **EXPECTED_COST)
    assert run.statistics["spared_requests"] >= 5
    assert differences(run, reference) == []
    _same_decisions(pair)


def _same_decisions(pair: Engine) -> None:
    first, second = pair.dump(rank=0), pair.dump(rank=1)
    counts = ("statistics", "tick", "nodes", "in_view", "live_receipts", "free_tokens", "free_rows")
    for name in counts:
        assert first[name] == second[name], name
    for tier in ("resident", "host_resident"):
        assert first[tier].keys() == second[tier].keys(), "the same spans are resident"
        assert not first[tier] or first[tier] != second[tier], "each rank holds its own heads"
