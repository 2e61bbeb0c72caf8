"""The page on fleets is that of the recorded results, and can be made again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penelope import cli
from penelope.commands.sweep import sweep
from penelope.commands.sweep_options import chosen
from penelope.runtime.sweep.grid import cells
from tests.docs.documents import RESULTS, ROOT, results_script

fleet = results_script("fleet")
KEPT = json.loads((RESULTS / "fleet.json").read_text())


def test_tables_are_those_of_the_results() -> None:
    text = fleet.PAGE.read_text()
    assert text == fleet.rendered(text, KEPT)
    assert all(f"<!-- table {name} -->" in text for name in fleet.TABLES)


def test_results_are_of_the_sweeps_as_they_are() -> None:
    found = iter(KEPT["cells"])
    for size, line in zip(fleet.SIZES, KEPT["made"]["commands"], strict=True):
        arguments = fleet.command(size, "weka-500.jsonl.gz", "OUT")
        assert line == " ".join(["penelope", *arguments])
        context = sweep.make_context("sweep", [*arguments[1:]])
        given = {name: v for name, v in context.params.items() if name not in ("folder", "file")}
        given = {n: v for n, v in given.items() if n not in ("processes", "on_ray")}
        asked = chosen(given, RESULTS / "fleet.toml")
        assert (asked.workload.sessions, asked.workload.groups) == (size.sessions, size.groups)
        assert size.sessions * size.groups == 360
        assert size.concurrency == 8 * size.replicas
        for cell in cells(asked.grids, asked.baseline):
            kept = next(found)
            options = cell.options
            assert [kept[n] for n in fleet.NAMED] == [getattr(options, n) for n in fleet.NAMED]
            assert options.concurrency == size.concurrency
            assert tuple(kept["groups"]) == cell.policies == (fleet.STOCK, fleet.OURS)
            for figures in kept["groups"].values():
                assert {len(values) for values in figures.values()} == {size.groups}
    assert next(found, None) is None


def test_figures_of_a_made_up_cell() -> None:
    def run(stock: list[float], ours: list[float]) -> dict[str, object]:
        return {
            "groups": {p: {"ttft_mean_s": v} for p, v in zip(POLICIES, (stock, ours), strict=True)}
        }

    one, other = run([4.0, 1.0], [1.0, 1.0]), run([4.0, 4.0], [4.0, 4.0])
    assert fleet.gain(one) == pytest.approx(2.0)
    assert fleet.better(one) == "1/2"
    assert fleet.ratio(one, other, fleet.OURS) == pytest.approx(4.0)
    assert fleet.mean(one, fleet.STOCK, "ttft_mean_s") == pytest.approx(2.0)


POLICIES = (fleet.STOCK, fleet.OURS)


def test_words_on_what_routing_is_worth() -> None:
    text = " ".join(fleet.PAGE.read_text().split())
    by = {
        size.replicas: {r["router"]: r for r in fleet.plain(KEPT, size.replicas)}
        for size in fleet.SIZES
    }

    def listed(values: list[float]) -> str:
        return ", ".join(f"{value:.2f}" for value in values)

    for policy in (fleet.STOCK, fleet.OURS):
        worth = [fleet.ratio(r["prefix"], r["round-robin"], policy) for r in by.values()]
        assert f"{listed(worth)} times under" in text
    assert f"brings {listed([fleet.gain(r['round-robin']) for r in by.values()])} times" in text
    affine = [fleet.gain(r[name]) for r in by.values() for name in ("session", "prefix")]
    assert f"it brings {min(affine):.2f} to {max(affine):.2f}" in text
    slower = [fleet.ratio(r["prefix"], r["session"], fleet.OURS) for r in by.values()]
    assert max(slower[:2]) < 1.05
    assert f"{slower[2]:.2f} times slower on 32" in text
    cost = [fleet.ratio(r["prefix"], r["cost"], fleet.OURS) for r in by.values()]
    assert f"It is {listed(cost)} times slower than `prefix`" in text


def test_words_on_what_a_router_is_told() -> None:
    text = " ".join(fleet.PAGE.read_text().split())
    lost: dict[str, list[float]] = {}
    for size in fleet.SIZES:
        for base in fleet.plain(KEPT, size.replicas):
            for run in KEPT["cells"]:
                if [run[n] for n in fleet.NAMED[:2]] != [base[n] for n in fleet.NAMED[:2]]:
                    continue
                if run["event_lag"]:
                    assert fleet.ratio(run, base, fleet.OURS) == pytest.approx(1, abs=0.015)
                elif run["kv_events"] != "sticky":
                    lost.setdefault(run["router"], []).append(
                        1 - fleet.ratio(run, base, fleet.OURS)
                    )
                    stock, plain = (one["groups"][fleet.STOCK] for one in (run, base))
                    assert stock == plain, "no holes, nothing to tell"
    for router, said in (("prefix", "lose {} to {} % behind"), ("cost", "loses {} to {} %")):
        low, high = (round(100 * one(lost[router])) for one in (min, max))
        assert said.format(low, high) in text


@pytest.mark.slow
def test_a_part_can_be_made_again(tmp_path: Path) -> None:
    trace = ROOT.parent / "shared" / "traces" / "weka-500.jsonl.gz"
    if not trace.exists():
        pytest.skip(f"needs the recorded trace ../shared/traces/{trace.name}")
    size = fleet.SIZES[0]
    out = tmp_path / "out"
    arguments = fleet.command(size._replace(groups=1), str(trace), str(out))
    arguments[arguments.index("fleet.toml")] = str(RESULTS / "fleet.toml")
    only = ["--router", "cost", "--kv-events", "sticky", "--event-lag", "0", "--policy", fleet.OURS]
    assert cli.main([*arguments, *only, "--baseline", fleet.OURS]) == 0
    (made,) = fleet.cells(json.loads((Path(f"{out}-{size.replicas}") / "sweep.json").read_text()))
    (expected,) = (c for c in fleet.plain(KEPT, size.replicas) if c["router"] == "cost")
    for figure, (value,) in made["groups"][fleet.OURS].items():
        assert value == pytest.approx(expected["groups"][fleet.OURS][figure][0], rel=1e-5), figure
