"""The page on the order of victims is that of the recorded results, and can be made again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from penelope import cli
from penelope.commands.sweep import sweep
from penelope.commands.sweep_options import chosen
from penelope.policy import ORDERS
from penelope.runtime.replay.arms import OTHERS
from penelope.runtime.sweep.grid import cells
from tests.docs.documents import README, RESULTS, ROOT, results_script

make = results_script()
order = results_script("order")
KEPT = json.loads((RESULTS / "order.json").read_text())

Run = dict[str, Any]


def test_tables_are_those_of_the_results() -> None:
    text = order.PAGE.read_text()
    assert text == order.rendered(text, KEPT)
    assert all(f"<!-- table {name} -->" in text for name in order.TABLES)
    assert (order.PICTURE).stat().st_size < 150_000


def test_results_are_of_the_sweeps_as_they_are() -> None:
    found = iter(KEPT["cells"])
    for (name, think), line in zip(order.GRIDS.items(), KEPT["made"]["commands"], strict=True):
        program, *arguments = line.split()
        assert [program, *arguments] == [
            "penelope",
            *order.command(name, "weka-500.jsonl.gz", "OUT"),
        ]
        assert isinstance(sweep, click.Command)
        sweep.make_context("sweep", arguments[1:])
        asked = chosen({}, RESULTS / f"order-{name}.toml")
        assert asked.workload.max_think == (30.0 if think == "30 s" else None)
        assert (
            f"--format {asked.workload.format_name} --sessions {asked.workload.sessions} "
            f"--replicates {asked.workload.groups} --max-context {asked.workload.max_context} "
            f"--shared-prefix {asked.workload.shared_prefix} --model qwen3-8b"
        ) == make.COMMON
        for cell in cells(asked.grids, asked.baseline):
            kept = next(found)
            assert kept["think"] == think
            assert {n: kept[n] for n in order.NAMED} == {
                n: getattr(cell.options, n) for n in order.NAMED
            }
            assert tuple(kept["policies"]) == tuple(kept["groups"]) == cell.policies
            for groups in kept["groups"].values():
                assert {len(groups[metric]) for metric in order.PER_GROUP} == {15}
    assert next(found, None) is None


def test_every_order_and_every_arm_is_there() -> None:
    assert tuple(ORDERS) == order.ORDERS
    for kept in KEPT["cells"]:
        assert {"sglang-lru", "penelope", *ORDERS} <= set(kept["policies"])
    with_others = [kept for kept in KEPT["cells"] if set(OTHERS) <= set(kept["policies"])]
    assert {(kept["scheduler"], kept["concurrency"]) for kept in with_others} == {
        ("fcfs", 16),
        ("fcfs", 8),
    }


def test_a_gain_is_how_many_times_lower() -> None:
    """By hand: 2 / 1 and 8 / 4 are twice as low in both groups, 2 / 4 and 8 / 4 are even."""
    groups = {
        "penelope": {"ttft_mean_s": [2.0, 8.0]},
        "a": {"ttft_mean_s": [1.0, 4.0]},
        "b": {"ttft_mean_s": [4.0, 4.0]},
    }
    run = {"groups": groups}
    assert [order.gain(run, name) for name in groups] == pytest.approx([1.0, 2.0, 1.0])
    assert (order.better(run, "a"), order.better(run, "b")) == ("2/2", "1/2")
    assert order.gain(run, "b", groups=slice(1)) == pytest.approx(0.5)


def found(scheduler: str, concurrency: int, think: str) -> Run:
    (run,) = (
        kept
        for kept in KEPT["cells"]
        if (kept["scheduler"], kept["concurrency"], kept["think"])
        == (scheduler, concurrency, think)
    )
    return dict(run)


@pytest.mark.parametrize("page", [README, RESULTS / "paper.md"], ids=lambda p: p.name)
def test_words_on_what_the_order_gains_and_loses(page: Path) -> None:
    text = " ".join(page.read_text().split())
    many, fewer = found("fcfs", 16, "30 s"), found("fcfs", 8, "30 s")
    lpm = [order.gain(r, "expected-cost") for r in KEPT["cells"] if r["scheduler"] == "lpm"]
    medians = [order.gain(run, "expected-cost", "ttft_p50_s") for run in KEPT["cells"]]
    worse = [median for median in medians if median < 0.995]
    figures = [
        1 / order.gain(many, "sglang-lru"),
        order.gain(many, "expected-cost"),
        order.gain(fewer, "expected-cost"),
        min(lpm),
        max(lpm),
        min(worse),
    ]
    for figure in figures:
        assert f"{figure:.2f}" in text, page
    assert f"{len(worse)} of {len(medians)} settings" in text


@pytest.mark.slow
def test_the_first_group_can_be_made_again(tmp_path: Path) -> None:
    trace = ROOT.parent / "shared/traces/weka-500.jsonl.gz"
    if not trace.exists():
        pytest.skip(f"needs the recorded trace ../shared/traces/{trace.name}")
    (expected,) = (
        kept
        for kept in KEPT["cells"]
        if (kept["scheduler"], kept["concurrency"], kept["think"]) == ("fcfs", 8, "30 s")
    )
    out = tmp_path / "out"
    names = ("penelope", "expected-cost", "t-lru", "ttl")
    arguments = ["sweep", "--grid", str(order.HERE / "order-capped.toml"), "--trace", str(trace)]
    options = "--groups 1 --scheduler fcfs --capacity 262144 --concurrency 8 --policy".split()
    done = cli.main([*arguments, "--out", str(out), *options, ",".join(names)])
    assert done == 0
    (made,) = order.cells(json.loads((out / "sweep.json").read_text()))
    for name in names:
        for metric in order.PER_GROUP:
            (value,) = made["groups"][name][metric]
            assert value == pytest.approx(expected["groups"][name][metric][0], rel=1e-5), name
