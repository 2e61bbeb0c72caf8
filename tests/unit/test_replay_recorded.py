"""The recorded traces that developers may have beside the checkout; skipped without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penelope.cost import preset
from penelope.policy import POLICIES
from penelope.runtime.replay.compare import Setting, compare
from penelope.runtime.replay.server import Timing
from penelope.runtime.traces import Selection, SharedPrefix, load

TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
MODEL = preset("qwen3-8b")
TIMING = Timing(MODEL.flops_per_unit / 400e12)


@pytest.mark.parametrize(
    ("name", "selection", "device_tokens"),
    [
        ("weka-500.jsonl.gz", Selection(24, 131_072, SharedPrefix("all", 15_616)), 262_144),
        ("agentic-synthetic.jsonl.gz", Selection(100), 300_032),
        ("mooncake-conversation.jsonl.gz", Selection(500), 300_032),
    ],
    ids=["weka", "agentic", "mooncake"],
)
def test_policies_do_the_same_work_on_recorded_traffic(
    name: str, selection: Selection, device_tokens: int
) -> None:
    path = TRACES / name
    if not path.exists():
        pytest.skip(
            f"needs the recorded trace ../shared/traces/{name}, which is not published here"
        )
    trace = load(path, selection=selection)
    cell = Setting(MODEL, TIMING, device_tokens, concurrency=4)
    result = compare([trace], cell, list(POLICIES))
    first = {round(s.computed_units - s.recomputed_units) for s in result.policies.values()}
    assert len(first) == 1
    assert {s.requests for s in result.policies.values()} == {trace.requests}
    assert result.refused_sessions == 0
    assert all(s.evicted_tokens > 0 for s in result.policies.values())
