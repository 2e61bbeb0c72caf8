"""A fleet behind each router, on recorded sessions: make the results, or only write them again.

    python docs/results/fleet.py sweep weka-500.jsonl.gz OUT  # see fleet.md; then as below
    python docs/results/fleet.py tables                       # the tables

Three sweeps over fleet.toml, one for each size of a fleet: OUT keeps them, so that an interrupted
one goes on.  The results go to fleet.json, and from there to the tables of fleet.md.  A test
compares the page with the file, and runs a part again.
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
from typing import Any, NamedTuple

import make  # make.py, beside this file

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "fleet.json"
PAGE = HERE / "fleet.md"


class Size(NamedTuple):
    replicas: int
    sessions: int
    groups: int
    concurrency: int


SIZES = (Size(2, 40, 9, 16), Size(8, 120, 3, 64), Size(32, 360, 1, 256))
"""The same 360 sessions, eight at a time for each replica."""

Run = dict[str, Any]

NAMED = ("replicas", "router", "kv_events", "event_lag")
KEPT = ("ttft_mean_s", "ttft_p50_s", "hit_rate", "recomputed_units", "busy_max")
STOCK, OURS = "sglang-lru", "penelope"


def command(size: Size, trace: str, out: str) -> list[str]:
    """The arguments of `penelope` for one of the sweeps."""
    sizes = {
        "sessions": size.sessions,
        "groups": size.groups,
        "replicas": size.replicas,
        "concurrency": size.concurrency,
    }
    told = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    return [
        *("sweep", "--grid", "fleet.toml", "--trace", trace),
        *told,
        *("--out", f"{out}-{size.replicas}"),
    ]


def sweep(trace: Path, out: Path) -> None:
    """Run them, or finish them, and keep what the page uses."""
    for size in SIZES:
        arguments = command(size, str(trace.resolve()), str(out.resolve()))
        subprocess.run(
            [sys.executable, "-m", "penelope", *arguments],
            cwd=HERE,
            env={**os.environ, "PYTHONPATH": str(HERE.parent.parent)},
            check=True,
        )
    keep(out, trace.name)


def keep(out: Path, trace: str) -> None:
    """Write down what the page uses of the sweeps in these folders."""
    made = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commands": [" ".join(["penelope", *command(size, trace, "OUT")]) for size in SIZES],
    }
    found: list[Run] = []
    for size in SIZES:
        document = (out.parent / f"{out.name}-{size.replicas}" / "sweep.json").read_text()
        found += cells(json.loads(document))
    lines = ",\n".join(json.dumps(cell, separators=(",", ":")) for cell in found)
    RESULTS.write_text(f'{{\n"made": {json.dumps(made)},\n"cells": [\n{lines}\n]\n}}\n')


def cells(document: dict[str, Any]) -> list[Run]:
    """The settings of a sweep: by policy and figure, a value for each group."""
    found: dict[int, Run] = {}
    for row in document["rows"]:
        cell = found.setdefault(row["cell"], {**{n: row[n] for n in NAMED}, "groups": {}})
        groups = cell["groups"].setdefault(row["policy"], {name: [] for name in KEPT})
        for name in KEPT:
            groups[name].append(make.short(row[name]))
    return list(found.values())


# Tables


def mean(run: Run, policy: str, figure: str) -> float:
    """Over the groups: geometric of times, arithmetic of shares."""
    values = run["groups"][policy][figure]
    return geometric_mean(values) if figure.endswith("_s") else sum(values) / len(values)


def ratio(run: Run, base: Run, policy: str, figure: str = "ttft_mean_s") -> float:
    """How many times lower than in another setting, group by group: the geometric mean."""
    own, other = run["groups"][policy][figure], base["groups"][policy][figure]
    return geometric_mean([b / a for a, b in zip(own, other, strict=True)])


def gain(run: Run) -> float:
    """How many times lower mean TTFT is with Penelope than with stock, on the same fleet."""
    stock, ours = (run["groups"][policy]["ttft_mean_s"] for policy in (STOCK, OURS))
    return geometric_mean([b / a for a, b in zip(ours, stock, strict=True)])


def better(run: Run) -> str:
    stock, ours = (run["groups"][policy]["ttft_mean_s"] for policy in (STOCK, OURS))
    return f"{sum(a < b for a, b in zip(ours, stock, strict=True))}/{len(ours)}"


def plain(kept: dict[str, Any], replicas: int) -> Iterator[Run]:
    """One setting for each router: told of everything by `sticky`, at once."""
    for run in kept["cells"]:
        if run["replicas"] == replicas and run["kv_events"] == "sticky" and not run["event_lag"]:
            yield run


def routers(kept: dict[str, Any]) -> str:
    header = "replicas, router | mean TTFT, s: stock → `penelope` | times lower | "
    header += "hits: stock → `penelope` | busiest replica"
    rows = (
        [
            f"{run['replicas']}, `{run['router']}`",
            " → ".join(f"{mean(run, p, 'ttft_mean_s'):.2f}" for p in (STOCK, OURS)),
            f"{gain(run):.2f} ({better(run)})",
            " → ".join(f"{100 * mean(run, p, 'hit_rate'):.1f} %" for p in (STOCK, OURS)),
            " → ".join(f"{mean(run, p, 'busy_max'):.2f}" for p in (STOCK, OURS)),
        ]
        for size in SIZES
        for run in plain(kept, size.replicas)
    )
    return str(make.table(header, rows))


def modes(kept: dict[str, Any]) -> str:
    """What a router loses by what it is told: against `sticky` at once, under `penelope`."""
    header = "replicas, router | `prefix` | `exact` | `sticky`, a second late"
    rows = []
    for size in SIZES:
        for base in plain(kept, size.replicas):
            others = {
                (run["kv_events"], run["event_lag"]): run
                for run in kept["cells"]
                if (run["replicas"], run["router"]) == (size.replicas, base["router"])
            }
            if len(others) > 1:
                told = (("prefix", 0.0), ("exact", 0.0), ("sticky", 1.0))
                cell = [f"{ratio(others[one], base, OURS):.2f}" for one in told]
                rows.append([f"{size.replicas}, `{base['router']}`", *cell])
    return str(make.table(header, iter(rows)))


def commands(kept: dict[str, Any]) -> str:
    return "\n".join(["```sh", *kept["made"]["commands"], "```"])


TABLES = {"routers": routers, "modes": modes, "commands": commands}


def rendered(text: str, kept: dict[str, Any]) -> str:
    """The page with its tables as the results have them."""
    return str(make.filled(text, {name: made(kept) for name, made in TABLES.items()}))


def main(arguments: list[str] | None = None) -> int:
    """Sweep, or write the tables; without a word which, say what there is and change nothing."""
    given = make.chosen(__doc__, {"sweep": ("trace", "out"), "tables": ()}, arguments)
    if given is None:
        return 2
    if given.way == "sweep":
        sweep(given.trace, given.out)
    kept = json.loads(RESULTS.read_text())
    PAGE.write_text(rendered(PAGE.read_text(), kept))
    return 0


if __name__ == "__main__":
    sys.exit(main())
