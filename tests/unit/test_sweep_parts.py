"""Which cells a sweep has, what they come from, and how they are drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from penelope import cli
from penelope.commands.replay import TIERED
from penelope.commands.sweep_options import chosen
from penelope.commands.sweep_outcome import show
from penelope.policy import ORDERS, POLICIES
from penelope.runtime.replay.arms import ARMS, OTHERS
from penelope.runtime.replay.colours import LOOKS, OTHER, look
from penelope.runtime.replay.compare import Ratio
from penelope.runtime.replay.options import Options
from penelope.runtime.sweep.grid import Cell, Sweep, SweepError, cells
from penelope.runtime.sweep.plot import PANELS, arranged, draw
from penelope.runtime.sweep.running import run
from penelope.runtime.sweep.tables import Compared, compared, varying
from penelope.runtime.traces import GeneratorOptions, generate
from tests.unit.replaying import weka, write
from tests.unit.sweeping import table

TWO = ("sglang-lru", "penelope")


def test_every_combination_in_order() -> None:
    found = cells([{"policy": TWO, "concurrency": (2, 4), "scheduler": ("lpm", "fcfs")}], None)
    assert [(c.options.concurrency, c.options.scheduler) for c in found] == [
        (2, "lpm"),
        (2, "fcfs"),
        (4, "lpm"),
        (4, "fcfs"),
    ]
    assert {(c.policies, c.baseline) for c in found} == {(TWO, "sglang-lru")}
    assert [c.setting.concurrency for c in found] == [2, 2, 4, 4]
    assert varying(found) == ["concurrency", "scheduler"]


def test_a_setting_in_two_grids_is_one_cell_with_the_policies_of_both() -> None:
    grids = [
        {"policy": TWO, "concurrency": (2, 4)},
        {"policy": ("tail-block", "penelope"), "concurrency": (4, 8)},
    ]
    found = cells(grids, None)
    assert [(c.options.concurrency, c.policies, c.baseline) for c in found] == [
        (2, TWO, "sglang-lru"),
        (4, (*TWO, "tail-block"), "sglang-lru"),
        (8, ("tail-block", "penelope"), "tail-block"),
    ]
    with pytest.raises(SweepError, match="the baseline 'sglang-lru' is none of"):
        cells(grids, "sglang-lru")


def grid_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return path


def test_a_file_says_what_the_command_line_does_not(tmp_path: Path) -> None:
    path = grid_file(
        tmp_path,
        """
        trace = "t.jsonl"
        groups = 3
        baseline = "penelope"
        concurrency = [2, 4]
        effective-tflops = 800
        [[grid]]
        capacity = 9000
        [[grid]]
        device_tokens = [1000, 2000]
        concurrency = 8
        host-tokens = 2000
        policy = "penelope"
        """,
    )
    asked = chosen({"scheduler": ("fcfs",), "sessions": (5,)}, path)
    assert (asked.workload.path, asked.workload.groups) == (tmp_path / "t.jsonl", 3)
    assert (asked.workload.sessions, asked.baseline) == (5, "penelope")
    common = {"scheduler": ("fcfs",), "effective_tflops": (800.0,)}
    one = {**common, "concurrency": (2, 4), "device_tokens": (9000,), "policy": tuple(POLICIES)}
    other = {
        **common,
        "concurrency": (8,),
        "device_tokens": (1000, 2000),
        "host_tokens": (2000,),
        "policy": ("penelope",),
    }
    assert asked.grids == [one, other]
    # What is said on the command line holds for all of them.
    asked = chosen({"concurrency": (16,), "path": ("u.jsonl",)}, path)
    assert [grid["concurrency"] for grid in asked.grids] == [(16,), (16,)]
    assert asked.workload.path == Path("u.jsonl")


def test_with_a_host_everywhere_baselines_of_two_tiers_are_compared() -> None:
    def policies(*hosts: int) -> Any:
        return chosen({"host_tokens": hosts}, None).grids[0]["policy"]

    assert policies(1000, 2000) == TIERED
    assert policies(0, 2000) == policies(0) == tuple(POLICIES)


def test_defaults_are_those_of_replay() -> None:
    assert cells(chosen({}, None).grids, None)[0].options == Options()


def test_sessions_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", weka("a", [640, 1915]), weka("b", [640, 2555]))
    options = "--capacity 2000,3000 --policy penelope --processes 1".split()
    out = tmp_path / "out"
    assert cli.main(["sweep", "--out", str(out), "--trace", str(trace), *options]) == 0
    rows = table(out / "rows.csv")
    assert [(row["device_tokens"], row["refused_sessions"]) for row in rows] == [
        ("2000", "1"),
        ("3000", "0"),
    ]
    settings = json.loads((out / "sweep.json").read_text())["settings"]
    assert settings["trace"] == "t.jsonl"


def test_a_sweep_over_two_tiers(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = (
        "--sessions 4 --max-context 34000 --capacity 40000 --host-tokens 20000,80000 "
        "--policy sglang-hicache,penelope --processes 1"
    ).split()
    assert cli.main(["sweep", "--out", str(out), *options]) == 0
    rows = table(out / "summary.csv")
    assert [(row["host_tokens"], row["policy"], row["baseline"]) for row in rows] == [
        (host, policy, "sglang-hicache")
        for host in ("20000", "80000")
        for policy in ("sglang-hicache", "penelope")
    ]
    smaller, larger = (row["recomputed_units_ratio"] for row in rows if row["policy"] == TWO[1])
    assert float(smaller) < 0.5
    assert larger == "", "there is no ratio to nothing"
    assert rows[3]["recomputed_units"] == "0.0"


# --- the picture ----------------------------------------------------------------------------------


def made(**axes: tuple[Any, ...]) -> tuple[Cell, ...]:
    return cells([{"policy": TWO, **axes}], None)


def test_panels_hold_what_differs_by_one_axis() -> None:
    along, panels = arranged(made(concurrency=(2, 4), scheduler=("lpm", "fcfs")))
    assert (along, panels) == (
        "concurrency",
        {"scheduler lpm": [0, 2], "scheduler fcfs": [1, 3]},
    )
    along, panels = arranged(made(device_tokens=(1000, 2000), host_tokens=(0, 4000)))
    assert (along, panels) == ("device_tokens", {"host 0": [0, 2], "host 4,000": [1, 3]})
    assert arranged(made(block_tokens=(64, 128))) == ("block_tokens", {"": [0, 1]})
    assert arranged(made()) == ("concurrency", {"": [0]})


@pytest.fixture(scope="module")
def small() -> tuple[Sweep, list[Compared]]:
    trace = generate(GeneratorOptions(sessions=2, max_context=34_000))
    axes = {"device_tokens": (40_000,), "concurrency": (2, 1), "scheduler": ("lpm", "fcfs")}
    sweep = Sweep(made(**axes), (trace.group(0, 1), trace.group(1, 1)))
    return sweep, compared(sweep, dict(run(sweep, sweep.tasks(), 1)))


def _numbers(line: Line2D) -> list[float]:
    return [float(y) for y in np.asarray(line.get_ydata())]


def test_lines_are_the_means_of_the_ratios(small: tuple[Sweep, list[Compared]]) -> None:
    sweep, found = small
    figure = draw(sweep, found, "what $it$ is of")
    assert figure.get_suptitle().startswith("what $it$ is of; lines: geometric mean")
    first, second = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["scheduler lpm", "scheduler fcfs"]
    assert [label.get_text() for label in first.get_xticklabels()] == ["1", "2"]
    by = {(one.cell, one.policy): one for one in found}
    for axes, numbers in ((first, (2, 0)), (second, (3, 1))):
        (line,) = (line for line in axes.get_lines() if line.get_label() == "penelope")
        expected = [by[n, "penelope"].ratios["ttft_mean_s"].geometric_mean for n in numbers]
        assert _numbers(line) == expected
        dots = [line for line in axes.get_lines() if len(_numbers(line)) == 2]
        groups = [
            own.ttft_mean_s / base.ttft_mean_s
            for own, base in zip(
                by[numbers[0], "penelope"].groups, by[numbers[0], "sglang-lru"].groups, strict=True
            )
        ]
        assert any(_numbers(dot) == groups for dot in dots)


def test_a_table_of_many_options_is_wide_and_loses_none(
    small: tuple[Sweep, list[Compared]], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, found = small
    axes = {
        "model": ("qwen3-8b", "qwen3-235b-a22b"),
        "device_tokens": (262_144, 393_216),
        "host_tokens": (131_072, 65_536),
        "scheduler": ("lpm", "fcfs"),
        "transfers": ("overlapped", "serial"),
        "effective_tflops": (400.0, 3200.0),
    }
    cell = made(**axes)[-1]
    copies = [Compared(0, policy, found[0].groups, found[0].ratios) for policy in TWO]
    show(Sweep((cell, *made(**axes)), sweep.groups), copies, "t")
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if "sglang-lru" in line)
    assert row.split()[:6] == ["qwen3-235b-a22b", "393,216", "65,536", "fcfs", "3200.0", "serial"]


def test_long_settings_are_broken_above_their_panels(small: tuple[Sweep, list[Compared]]) -> None:
    sweep, found = small
    transfers = ("overlapped", "serial")
    two = made(concurrency=(1, 2), host_tokens=(65_536, 131_072), transfers=transfers)
    one = made(model=("qwen3-235b-a22b",), scheduler=("fcfs",), device_tokens=(393_216,))
    cell = (*two, *one)
    copies = [Compared(n, p, found[0].groups, found[0].ratios) for n in range(9) for p in TWO]
    titles = [axes.get_title() for axes in draw(Sweep(cell, sweep.groups), copies, "t").axes]
    assert max(len(title) for title in titles) > 60
    assert max(len(line) for title in titles for line in title.splitlines()) <= 44


def test_a_picture_says_what_it_leaves_out(small: tuple[Sweep, list[Compared]]) -> None:
    sweep, found = small
    many = made(concurrency=(1, 2), block_tokens=tuple(64 * n for n in range(1, PANELS + 3)))
    copies = [
        Compared(number, policy, found[0].groups, {"ttft_mean_s": Ratio(0.5, 2, 2)})
        for number, cell in enumerate(many)
        for policy in cell.policies
    ]
    figure = draw(Sweep(many, sweep.groups), copies, "t")
    assert figure.get_suptitle().endswith(f"; the first {PANELS} of {PANELS + 2} settings")
    assert len(figure.axes) == PANELS


# --- what can be told apart in a picture ----------------------------------------------------------


def drawn(sweep: Sweep, policies: Sequence[str], found: list[Compared]) -> Figure:
    """A picture of one panel in which all policies coincide."""
    (cell,) = made(policy=tuple(policies))
    copies = [Compared(0, name, found[0].groups, found[0].ratios) for name in policies]
    return draw(Sweep((cell,), sweep.groups), copies, "t")


def test_every_policy_has_a_look_of_its_own() -> None:
    assert set(LOOKS) == {*POLICIES, *ORDERS, *OTHERS, *ARMS}
    assert len({one.colour for one in LOOKS.values()}) == len(LOOKS)
    assert len({one.marker for one in LOOKS.values()}) == len(LOOKS)
    assert OTHER not in LOOKS.values()


def test_a_policy_looks_the_same_in_every_picture(small: tuple[Sweep, list[Compared]]) -> None:
    sweep, found = small
    for policies in (tuple(POLICIES), ("penelope", "tail-block"), ("tail-block", "penelope")):
        (axes,) = drawn(sweep, policies, found).axes
        for line in axes.get_lines():
            name = str(line.get_label())
            if name in policies:
                assert (line.get_color(), line.get_marker()) == look(name)


@pytest.mark.parametrize("policies", [TIERED, (*POLICIES, *ARMS), ("penelope", "sglang-lru")])
def test_the_legend_of_a_single_panel_is_whole(
    policies: tuple[str, ...], small: tuple[Sweep, list[Compared]]
) -> None:
    sweep, found = small
    (options,) = made(policy=tuple(policies), host_tokens=(65_536,))
    copies = [Compared(0, name, found[0].groups, found[0].ratios) for name in policies]
    figure = draw(Sweep((options,), sweep.groups), copies, "t")
    figure.canvas.draw()
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == [f"{policies[0]} (baseline)", *policies[1:]]
    box, page = legend.get_window_extent(), figure.bbox
    assert page.x0 <= box.x0 < box.x1 <= page.x1
    assert page.y0 <= box.y0 < box.y1 <= page.y1
    (axes,) = figure.axes
    assert axes.get_ylabel() == f"mean TTFT / {policies[0]}"
    assert axes.get_window_extent().height > 100, "the legend leaves room for the panel"


def test_lines_that_coincide_are_all_seen(small: tuple[Sweep, list[Compared]]) -> None:
    """Thinner ones lie on thicker ones, and marks lie side by side."""
    sweep, found = small
    (axes,) = drawn(sweep, tuple(POLICIES), found).axes
    lines = [line for line in axes.get_lines() if line.get_label() in POLICIES]
    widths = [line.get_linewidth() for line in lines]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == len(POLICIES)
    orders = [line.get_zorder() for line in lines]
    assert orders == sorted(orders)
    places = [float(np.asarray(line.get_xdata())[0]) for line in lines]
    assert len(set(places)) == len(POLICIES)
    dots = [line for line in axes.get_lines() if line.get_label() not in POLICIES]
    assert dots
    assert all(line.get_markersize() >= 3 and (line.get_alpha() or 1) > 0.5 for line in dots)
