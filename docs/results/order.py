"""The order of victims on recorded sessions: make the results, or only write them down again.

    python docs/results/order.py sweep weka-500.jsonl.gz OUT  # see order.md; then as below
    python docs/results/order.py tables                       # the tables and the picture

Two sweeps, over order-capped.toml and order-recorded.toml: OUT keeps them, so that an interrupted
one goes on.  The results go to order.json, and from there to the tables of order.md and to
order.png.  A test compares the page with the file, and runs a part again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import make  # make.py, beside this file

from penelope.runtime.replay.arms import OTHERS
from penelope.runtime.replay.colours import look

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "order.json"
PAGE = HERE / "order.md"
PICTURE = HERE / "order.png"
GRIDS = {"capped": "30 s", "recorded": "recorded"}
"""The sweeps by name, and the longest think time of their clients."""

Run = dict[str, Any]

KEPT = ("requests", "ttft_mean_s")
PER_GROUP = ("ttft_mean_s", "ttft_p50_s")
NAMED = ("device_tokens", "scheduler", "concurrency")
BASE = "penelope"
ORDERS = ("penelope-queue", "expected-cost-blind", "expected-cost")
HALF = 8
"""Groups that were in view when the order was made; the rest were looked at afterwards."""


def command(name: str, trace: str, out: str) -> list[str]:
    """The arguments of `penelope` for one of the sweeps."""
    return ["sweep", "--grid", f"order-{name}.toml", "--trace", trace, "--out", f"{out}-{name}"]


def sweep(trace: Path, out: Path) -> None:
    """Run them, or finish them, and keep what the page uses."""
    for name in GRIDS:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "penelope",
                *command(name, str(trace.resolve()), str(out.resolve())),
            ],
            cwd=HERE,
            env={**os.environ, "PYTHONPATH": str(HERE.parent.parent)},
            check=True,
        )
    keep(out, trace.name)


def keep(out: Path, trace: str) -> None:
    """Write down what the page uses of the sweeps in these folders."""
    kept: dict[str, Any] = {
        "made": {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "commands": [" ".join(["penelope", *command(n, trace, "OUT")]) for n in GRIDS],
        },
        "cells": [
            {"think": think, **cell}
            for name, think in GRIDS.items()
            for cell in cells(
                json.loads((out.parent / f"{out.name}-{name}/sweep.json").read_text())
            )
        ],
    }
    lines = ",\n".join(json.dumps(cell, separators=(",", ":")) for cell in kept["cells"])
    RESULTS.write_text(f'{{\n"made": {json.dumps(kept["made"])},\n"cells": [\n{lines}\n]\n}}\n')


def cells(document: dict[str, Any]) -> list[Run]:
    """The settings of a sweep, in the form of the runs of weka-500.json."""
    found: dict[int, Run] = {}
    for row in document["summary"]:
        cell = found.setdefault(
            row["cell"], {**{n: row[n] for n in NAMED}, "policies": {}, "groups": {}}
        )
        cell["policies"][row["policy"]] = {name: make.short(row[name]) for name in KEPT}
    for row in document["rows"]:
        cell = found[row["cell"]]
        groups = cell["groups"].setdefault(row["policy"], {name: [] for name in PER_GROUP})
        for name in PER_GROUP:
            groups[name].append(make.short(row[name]))
    return list(found.values())


# Tables


def gain(run: Run, policy: str, metric: str = "ttft_mean_s", groups: slice = slice(None)) -> float:
    """How many times lower than under `penelope`: the geometric mean over the groups."""
    return geometric_mean(per_group(run, policy, metric)[groups])


def per_group(run: Run, policy: str, metric: str = "ttft_mean_s") -> list[float]:
    """The ratio of `penelope` to a policy in each group."""
    own, base = (run["groups"][name][metric] for name in (policy, BASE))
    return [b / a for a, b in zip(own, base, strict=True)]


def better(run: Run, policy: str, metric: str = "ttft_mean_s") -> str:
    own, base = (run["groups"][name][metric] for name in (policy, BASE))
    return f"{sum(a < b for a, b in zip(own, base, strict=True))}/{len(own)}"


def setting(run: Run) -> str:
    sizes = f"{run['concurrency']}, {run['device_tokens']:,}"
    return f"{sizes}, {run['think']}, {run['scheduler']}"


def compared(run: Run, policy: str, metric: str = "ttft_mean_s") -> str:
    return f"{gain(run, policy, metric):.2f} ({better(run, policy, metric)})"


def seconds(run: Run, policy: str) -> str:
    return f"{run['policies'][policy]['ttft_mean_s']:.2f}"


def means(kept: dict[str, Any]) -> str:
    header = (
        "sessions, KV, think time, scheduler | mean TTFT, s: stock → `penelope` → `expected-cost`"
    )
    header += " | " + " | ".join(f"`{name}`" for name in ("sglang-lru", *ORDERS))
    rows = (
        [
            setting(run),
            " → ".join(seconds(run, name) for name in ("sglang-lru", BASE, ORDERS[-1])),
            compared(run, "sglang-lru"),
            *(compared(run, name) for name in ORDERS[:-1]),
            f"**{compared(run, ORDERS[-1])}**",
        ]
        for run in kept["cells"]
    )
    return str(make.table(header, rows))


def medians(kept: dict[str, Any]) -> str:
    """A median that gets worse says so."""
    header = "sessions, KV, think time, scheduler | " + " | ".join(f"`{name}`" for name in ORDERS)

    def one(run: Run, policy: str) -> str:
        figure = compared(run, policy, "ttft_p50_s")
        return f"{figure} worse" if gain(run, policy, "ttft_p50_s") < 0.995 else figure

    rows = ([setting(run), *(one(run, name) for name in ORDERS)] for run in kept["cells"])
    return str(make.table(header, rows))


def halves(kept: dict[str, Any]) -> str:
    header = f"sessions, KV, think time, scheduler | groups 1 to {HALF} | the others | all"
    rows = (
        [
            setting(run),
            *(
                f"{gain(run, ORDERS[-1], groups=groups):.2f}"
                for groups in (slice(HALF), slice(HALF, None), slice(None))
            ),
        ]
        for run in kept["cells"]
    )
    return str(make.table(header, rows))


def others(kept: dict[str, Any]) -> str:
    runs = [run for run in kept["cells"] if OTHERS[0] in run["policies"]]
    header = "policy"
    for run in runs:
        header += f" | mean TTFT, s | mean: {setting(run)} | median"
    rows = (
        [f"`{name}`", *(cell for run in runs for cell in _three(run, name))]
        for name in runs[0]["policies"]
        if name != BASE
    )
    return str(make.table(header, rows))


def _three(run: Run, name: str) -> Iterator[str]:
    yield seconds(run, name)
    yield compared(run, name)
    yield f"{gain(run, name, 'ttft_p50_s'):.2f}"


def commands(kept: dict[str, Any]) -> str:
    return "\n".join(["```sh", *kept["made"]["commands"], "```"])


TABLES = {
    "means": means,
    "medians": medians,
    "halves": halves,
    "others": others,
    "commands": commands,
}


def rendered(text: str, kept: dict[str, Any]) -> str:
    """The page with its tables as the results have them."""
    return str(make.filled(text, {name: made(kept) for name, made in TABLES.items()}))


def draw(kept: dict[str, Any], path: Path) -> None:
    """Per setting and policy how much lower TTFT is: a bar, a tick for the median, dots: groups."""
    from matplotlib.figure import Figure

    runs = sorted(kept["cells"], key=lambda run: -len(run["policies"]))
    wide = [run for run in runs if len(run["policies"]) > len(ORDERS) + 2]
    figure = Figure(figsize=(11, 8.2), layout="constrained")
    grid = figure.add_gridspec(3, 6, height_ratios=(9.5, 5, 5))
    places = [grid[0, 3 * n : 3 * n + 3] for n in range(len(wide))]
    places += [grid[1 + n // 3, n % 3 * 2 : n % 3 * 2 + 2] for n in range(len(runs) - len(wide))]
    ratios = [dot for run in runs for name in run["policies"] for dot in per_group(run, name)]
    for place, run in zip(places, runs, strict=True):
        axes = figure.add_subplot(place)
        names = [name for name in run["policies"] if name != BASE]
        for row, name in enumerate(names):
            axes.barh(row, gain(run, name) - 1, left=1, height=0.66, color=look(name).colour)
            axes.text(
                0.985,
                row,
                f"{gain(run, name):.2f}",
                transform=axes.get_yaxis_transform(),
                fontsize=7,
                ha="right",
                va="center",
            )
            dots = per_group(run, name)
            axes.plot(dots, [row] * len(dots), "o", ms=3.2, color="white", mec="#333333", mew=0.6)
            median = gain(run, name, "ttft_p50_s")
            axes.plot([median] * 2, [row - 0.4, row + 0.4], color="black", lw=2)
        axes.axvline(1, color="#d9622b", lw=1.3)
        axes.set_yticks(range(len(names)), names, fontsize=7.5)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xscale("log")
        axes.set_xlim(min(ratios) * 0.93, max(ratios) * 1.2)
        axes.set_xticks(
            [0.5, 0.7, 1, 1.4, 2, 2.8], ["0.5", "0.7", "1", "1.4", "2", "2.8"], fontsize=7
        )
        axes.set_xticks([], minor=True)
        axes.set_title(
            f"{run['concurrency']} sessions, {run['device_tokens']:,} tokens of KV, "
            f"{'think time ' if run in wide else ''}{run['think']}, {run['scheduler']}",
            fontsize=8 if run in wide else 7.5,
        )
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    figure.suptitle(
        "How many times lower TTFT is than under penelope (the line): to the right is better\n"
        "bar and figure: mean TTFT, geometric mean of 15 groups; dots: the groups; "
        "black tick: median TTFT",
        fontsize=9,
        color="#444444",
    )
    figure.savefig(path, dpi=110)


def main(arguments: list[str] | None = None) -> int:
    """Sweep, or write the tables; without a word which, say what there is and change nothing."""
    given = make.chosen(__doc__, {"sweep": ("trace", "out"), "tables": ()}, arguments)
    if given is None:
        return 2
    if given.way == "sweep":
        sweep(given.trace, given.out)
    kept = json.loads(RESULTS.read_text())
    draw(kept, PICTURE)
    PAGE.write_text(rendered(PAGE.read_text(), kept))
    return 0


if __name__ == "__main__":
    sys.exit(main())
