"""The paper's tables by replay: make them, or only write them down again.

    python docs/results/paper.py sweep weka-500.jsonl.gz OUT  # see paper.md; then as below
    python docs/results/paper.py tables                       # the tables, from the files

What weka-500.json and weka-500-tiers.json answer already is taken from them.  The rest is one
`penelope sweep` over the grids of paper.toml: OUT keeps it, so that an interrupted one goes on.
The results go to paper.json, and from there to the tables of paper.md.  Tests compare the two, and
run a part again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import make  # make.py and paper_tables.py, beside this file
from paper_tables import rendered

from penelope.cost import predicted_speedup, preset
from penelope.policy import pack
from penelope.runtime.replay.arms import cache
from penelope.runtime.replay.closed_loop import replay
from penelope.runtime.replay.options import Options
from penelope.runtime.replay.server import Server
from penelope.runtime.traces import Session, Stream, Trace, Turn

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "paper.json"
GRID = HERE / "paper.toml"
PAGE = HERE / "paper.md"

Run = dict[str, Any]

KEPT = (
    "requests",
    "ttft_mean_s",
    "hit_rate",
    "recomputed_units",
    "mostly_lost_requests",
    "mostly_lost_units",
)
"""Of a policy in a setting, all groups together; and `computed_units`."""
PER_GROUP = ("ttft_mean_s", "recomputed_units", "mostly_lost_units")
NAMED = ("model", "device_tokens", "host_tokens", "effective_tflops", "scheduler", "concurrency")
"""The options that tell the settings apart."""


def command(trace: str, out: str) -> list[str]:
    """The arguments of `penelope` for the sweep."""
    return ["sweep", "--grid", GRID.name, "--trace", trace, "--out", out]


def sweep(trace: Path, out: Path) -> None:
    """Run it, or finish it, and keep what the page uses."""
    arguments = command(str(trace.resolve()), str(out.resolve()))
    subprocess.run(
        [sys.executable, "-m", "penelope", *arguments],
        cwd=HERE,
        env={**os.environ, "PYTHONPATH": str(HERE.parent.parent)},
        check=True,
    )
    document = json.loads((out / "sweep.json").read_text())
    made = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": " ".join(["penelope", *command(trace.name, "OUT")]),
    }
    kept = {"made": made, "single": [single(*one) for one in SINGLES], "cells": cells(document)}
    RESULTS.write_text(_lines(kept))


def _lines(kept: dict[str, Any]) -> str:
    """One line an entry: small, and readable in a difference."""
    entries = {
        name: ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in kept[name])
        for name in ("single", "cells")
    }
    parts = [f'"{name}": [\n{lines}\n]' for name, lines in entries.items()]
    return "{\n" + ",\n".join([f'"made": {json.dumps(kept["made"])}', *parts]) + "\n}\n"


def cells(document: dict[str, Any]) -> list[Run]:
    """The settings of a sweep, in the form of the runs of weka-500.json."""
    found: dict[int, Run] = {}
    for row in document["summary"]:
        cell = found.setdefault(
            row["cell"], {**{n: row[n] for n in NAMED}, "policies": {}, "groups": {}}
        )
        rows = [
            other
            for other in document["rows"]
            if (other["cell"], other["policy"]) == (row["cell"], row["policy"])
        ]
        cell["policies"][row["policy"]] = {
            "computed_units": make.short(sum(one["computed_units"] for one in rows)),
            **{name: make.short(row[name]) for name in KEPT},
        }
        cell["groups"][row["policy"]] = {
            name: [make.short(one[name]) for one in rows] for name in PER_GROUP
        }
    return list(found.values())


# One request


SINGLES = (
    *(("qwen3-8b", 8_192 << doubled) for doubled in range(5)),
    ("qwen3-32b", 131_072),
    ("qwen3-235b-a22b", 131_072),
)
FRACTION, START, APPEND, BLOCK = 0.3, 2_048, 512, 64


def single(model: str, context: int) -> dict[str, Any]:
    """The request after 30 % of its context went, from the tail or from 2,048 on."""
    evicted = -(-int(FRACTION * context) // BLOCK) * BLOCK
    tail, head = (returning(model, context, evicted, name) for name in ("tail-block", "penelope"))
    return {
        "model": model,
        "context": context,
        "predicted": make.short(predicted_speedup(preset(model), context, FRACTION, START, APPEND)),
        "evicted": evicted,
        "units": [tail[0], head[0]],
        "ttft_s": [make.short(tail[1]), make.short(head[1])],
    }


def returning(model: str, context: int, evicted: int, policy: str) -> tuple[int, float]:
    """Cost units and TTFT in seconds of a request whose history has lost `evicted` tokens.

    first   |== START ==|------ context ------|                  then another session, which
    other   |== START ==|--- evicted + APPEND ---|               takes `evicted` of them, then
    again   |== START ==|------ context ------|+ APPEND +|       the first session again
    """
    shared, own, other = range(START // BLOCK), range(10_000, 20_000), range(20_000, 30_000)
    first = [*shared, *own][: (context + APPEND) // BLOCK]
    second = [*shared, *other][: (START + evicted + APPEND) // BLOCK]
    asks = turn(first[: context // BLOCK], 0), turn(first, context // BLOCK, think_s=2e6)
    sessions = (
        Session("returning", (Stream(asks),)),
        Session("other", (Stream((turn(second, 0, think_s=1e6),)),)),
    )
    trace = Trace("one request", "weka", BLOCK, sessions, 30_000)
    options = Options(model=model, device_tokens=context + APPEND, concurrency=2)
    setting = options.setting()
    kept = cache(policy, setting.config(policy, BLOCK))
    server = Server(kept, setting.cost, setting.timing, setting.scheduler, BLOCK)
    done = replay(trace, server, setting.concurrency)
    assert done.counters.evicted_tokens == 2 * evicted + APPEND
    appended = setting.cost.scaled_span(context, context + APPEND)
    return done.counters.recomputed + appended, done.ttft[-1]


def turn(units: list[int], keep: int, think_s: float = 0.0) -> Turn:
    """A prompt of whole blocks, without an answer."""
    return Turn(keep, pack(units[keep:]), pack([]), False, len(units) * BLOCK, 0, think_s)


def main(arguments: list[str] | None = None) -> int:
    """Sweep, or write the tables; without a word which, say what there is and change nothing."""
    given = make.chosen(__doc__, {"sweep": ("trace", "out"), "tables": ()}, arguments)
    if given is None:
        return 2
    if given.way == "sweep":
        sweep(given.trace, given.out)
    PAGE.write_text(rendered(PAGE.read_text(), json.loads(RESULTS.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
