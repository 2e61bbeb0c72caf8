"""The CPU reference platform under SGLang's own cache: results do not depend on batching."""

from __future__ import annotations

import pytest

from tests.sglang import workload
from tests.sglang.comparing import CROWD, Digests
from tests.sglang.conftest import Engines
from tests.sglang.harness import Engine

pytestmark = [pytest.mark.sglang, pytest.mark.smoke]


@pytest.fixture(scope="module")
def stock(engines: Engines) -> Engine:
    return engines.get(radix_cache_backend=None)


def recorded(engine: Engine, histories: dict[str, list[int]]) -> Digests:
    return workload.by_history(engine.dump()["records"], histories)


def test_incremental_chunked_and_full_prefill_are_bit_identical(stock: Engine) -> None:
    stock.call("penelope_configure", chunk=2048)
    stock.call("penelope_record", on=True)
    spoken = stock.run(workload.converse(stock, CROWD))
    histories = workload.histories(spoken)
    incremental = recorded(stock, histories)
    assert all(len(digests) == 1 for digests in incremental.values())
    assert any(a["meta_info"]["cached_tokens"] for c in spoken for _, _, a in c.spoken)

    for chunk in (2048, 112):
        for conversation in spoken[:4]:
            history = conversation.spoken[-1][1]
            stock.call("penelope_configure", chunk=chunk)
            stock.call("penelope_record", on=True)
            answer = stock.run(stock.generate(history[: -CROWD.output], "again", CROWD.output))
            assert answer["meta_info"]["cached_tokens"] == 0
            fresh = recorded(stock, {"again": history})
            assert len(fresh) == len(history) - 1
            assert history[-CROWD.output :] == list(answer["output_ids"])
            same = [h for h, digests in fresh.items() if incremental.get(h) == digests]
            assert len(same) == len(fresh), f"{len(fresh) - len(same)} positions differ"
    stock.check_alive()


def test_stock_and_penelope_compute_the_same(engines: Engines, stock: Engine) -> None:
    stock.call("penelope_configure", chunk=2048)
    expected = workload.outputs(stock.run(workload.converse(stock, CROWD)))
    ours = engines.get()
    ours.call("penelope_configure", chunk=2048)
    assert workload.outputs(ours.run(workload.converse(ours, CROWD))) == expected
