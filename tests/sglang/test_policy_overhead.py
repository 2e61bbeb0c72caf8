"""The benchmark beside SGLang's own trees, at toy sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import policy_overhead
from benchmarks.measuring import Bar
from benchmarks.policy_overhead_stream import Stream, record, sessions


@pytest.fixture(scope="module")
def stream() -> Stream:
    return record(sessions(None, quick=True), 40)


@pytest.mark.parametrize("page_size", [64, 1])
def test_trees_of_one_policy_find_the_same(stream: Stream, page_size: int) -> None:
    from benchmarks.policy_overhead_arms import LRU, PENELOPE, PYTHON, QUEUED, RUST

    # So few leaves that the sessions' own histories are evicted too.
    leaves = 130
    arms = {to.arm.name: to for to in policy_overhead.measure(stream, page_size, leaves)}
    stock, needed = arms[PYTHON], sum(step.grown for step in stream.steps())
    for name in (LRU, RUST):
        assert arms[name].hits == stock.hits, name
    assert arms[RUST].evicted == stock.evicted
    assert len(arms[PENELOPE].hits) == stream.requests
    for to in arms.values():
        # Whole leaves, or only the blocks that are needed.
        assert to.evicted >= needed
        assert (to.evicted == needed) is (to.arm.name in (PENELOPE, QUEUED))
        assert to.arm.idle() in {None, *range(leaves, leaves + 10)}
        assert to.running == {}


def test_results_are_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    arguments = ["--quick", "--requests", "12", "--leaves", "20", "40", "--json", str(out)]
    assert policy_overhead.main(arguments) == 0
    document = json.loads(out.read_text())
    from benchmarks.policy_overhead_arms import ARMS

    cells = {(c["arm"], c["page_size"], c["leaves"], c["operation"]) for c in document["costs"]}
    assert cells == {
        (arm, page, leaves, operation)
        for arm in ARMS
        for page in (64, 1)
        for leaves in (20, 40)
        for operation in policy_overhead.OPERATIONS
    }
    for cost in document["costs"]:
        assert 0 < cost["median_us"] <= cost["p99_us"]
        # An output may have no whole block of its own, and then nothing is evicted for it.
        assert cost["samples"] == 12 or (cost["operation"] == "evict" and cost["samples"] <= 24)
    assert len(document["growth"]) == len(ARMS) * 2 * len(policy_overhead.OPERATIONS)
    assert document["stream"] == {
        "source": "generated sessions (generated (seed 0))",
        "recorded": False,
        "requests": 12,
        "steps": 36,
    }
    assert {"enabled", "thresholds"} == set(document["garbage_collector"])
    assert document["bars"][0]["met"]
    assert "generated sessions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--page-sizes", "48"], "page sizes that divide a block of 64 tokens"),
        (["--leaves", "0"], "give sizes of at least 1"),
        (["--trace", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert policy_overhead.main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_missed_goals_fail_only_where_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    missed = Bar("a goal", "less", "more", met=False)
    monkeypatch.setattr(policy_overhead, "run", lambda given: ([missed], {}))
    assert policy_overhead.main([]) == 0
    assert policy_overhead.main(["--strict"]) == 1
