"""The replay against an independent simulator: Dynamo's, which models vLLM's block pool in Rust.

One request at a time, so that time decides nothing: what is found again depends on the order of
eviction alone.  vLLM evicts blocks from the tail of the least recently used request: `tail-block`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penelope.cost import preset
from penelope.runtime.replay.compare import Setting, compare
from penelope.runtime.replay.server import Scheduler, Timing
from penelope.runtime.traces import load

pytestmark = pytest.mark.skipif(
    find_spec("dynamo") is None or find_spec("dynamo._core") is None,
    reason="ai-dynamo-runtime is not installed: run `make test-routers`",
)

BLOCK = 512
RECORDED = Path(__file__).parents[3] / "shared" / "traces" / "mooncake-conversation.jsonl.gz"


def theirs(trace: Path, blocks: int, backend: str) -> float:
    """The share of prompt tokens that Dynamo's simulator finds in its cache."""
    engine = {
        "backend": backend,
        "num_gpu_blocks": blocks,
        "block_size": BLOCK,
        "speedup_ratio": 1000.0,
    }
    simulate: Any = import_module("dynamo._core").run_mocker_trace_replay
    done = simulate(
        [str(trace)],
        extra_engine_args={"engine": engine},
        replay_concurrency=1,
        trace_block_size=BLOCK,
    )
    return float(done.summary["prefix_cache_reused_ratio"])


def ours(trace: Path, blocks: int, policy: str) -> float:
    setting = Setting(
        preset("qwen3-8b"), Timing(1e-12), blocks * BLOCK, concurrency=1, scheduler=Scheduler.FCFS
    )
    found = compare([load(trace, "mooncake")], setting, [policy])
    assert found.refused_sessions == 0
    return found.policies[policy].hit_rate


def conversations(
    seed: int, outputs: Sequence[int] = (8, 300, 700), requests: int = 400
) -> list[dict[str, Any]]:
    """Histories that grow, branch and come back, some of which begin alike."""
    chance, fresh = Random(seed), iter(range(1, 1 << 30))
    shared = [next(fresh) for _ in range(6)]
    histories = [shared[: chance.randrange(7)] for _ in range(25)]
    rows = []
    for number in range(requests):
        which = chance.randrange(len(histories))
        history = histories[which]
        if chance.random() < 0.1:
            history = history[: chance.randrange(len(history) + 1)]
        history = [*history, *(next(fresh) for _ in range(chance.randrange(1, 6)))]
        histories[which] = [] if len(history) > 60 else history
        rows.append(
            {
                "timestamp": number * 1000,
                # The last block may be part of one.
                "input_length": len(history) * BLOCK - chance.choice([0, 0, 1, 100]),
                "output_length": chance.choice(outputs),
                "hash_ids": history,
            }
        )
    return rows


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    trace = folder / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return trace


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("blocks", [100, 300, 900, 100_000])
def test_tail_block_finds_what_an_independent_simulator_of_vllm_finds(
    seed: int, blocks: int, tmp_path: Path
) -> None:
    trace = written(tmp_path, conversations(seed))
    assert ours(trace, blocks, "tail-block") == pytest.approx(theirs(trace, blocks, "vllm"))


def test_they_differ_where_the_last_token_begins_a_block(tmp_path: Path) -> None:
    """The token that is sampled last has no KV: the replay keeps room for it all the same."""
    rows = conversations(0, outputs=(1,))
    trace = written(
        tmp_path, [{**row, "input_length": len(row["hash_ids"]) * BLOCK} for row in rows]
    )
    found, expected = ours(trace, 100, "tail-block"), theirs(trace, 100, "vllm")
    assert 0.99 * expected < found < expected


@pytest.mark.parametrize("blocks", [2000, 5000, 20_000])
def test_so_it_does_on_recorded_conversations(blocks: int, tmp_path: Path) -> None:
    if not RECORDED.exists():
        pytest.skip(f"needs the recorded trace ../shared/traces/{RECORDED.name}")
    trace = tmp_path / "trace.jsonl"
    with gzip.open(RECORDED, "rt") as lines:
        trace.write_text("".join(line for line, _ in zip(lines, range(2000), strict=False)))
    found = theirs(trace, blocks, "vllm")
    assert ours(trace, blocks, "tail-block") == pytest.approx(found)
    assert found > 0.04
    # Whole nodes go further than there is need, and their model of SGLang trims them to it.
    assert ours(trace, blocks, "sglang-lru") == pytest.approx(
        theirs(trace, blocks, "sglang"), rel=0.06
    )
