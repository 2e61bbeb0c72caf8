"""What the policy costs beside SGLang's own trees: keep measurements, or only write the page again.

    python -m benchmarks.policy_overhead --trace weka-500.jsonl.gz --json OVERHEAD
    python -m benchmarks.replay_throughput --json REPLAY
    python docs/results/policy_overhead.py keep OVERHEAD REPLAY  # then as below
    python docs/results/policy_overhead.py tables                # the tables, from the file

What is kept goes to policy-overhead.json, and from there to the tables of policy-overhead.md.  A
test compares the two.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import make  # make.py, beside this file

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "policy-overhead.json"
PAGE = HERE / "policy-overhead.md"

Kept = dict[str, Any]

STATISTICS = ("median_us", "p99_us", "mean_us")
OPERATIONS = ("match", "lock", "evict", "checkpoint", "insert", "unlock", "total")


def kept(overhead: dict[str, Any], replay: dict[str, Any]) -> Kept:
    """What the page uses of the two benchmarks' files."""
    costs: dict[str, Any] = {}
    for cost in overhead["costs"]:
        page, leaves = str(cost["page_size"]), str(cost["leaves"])
        arm = costs.setdefault(page, {}).setdefault(leaves, {}).setdefault(cost["arm"], {})
        arm[cost["operation"]] = [make.short(cost[name]) for name in STATISTICS]
    return {
        "made": {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "machine": overhead["machine"],
            "sglang": overhead["sglang"],
            "torch": overhead["torch"],
            "stream": overhead["stream"],
            "garbage_collector": overhead["garbage_collector"],
        },
        "costs": costs,
        "bars": overhead["bars"],
        "replay": {
            "load": replay["machine"]["load"],
            "runs": [
                {name: make.short(value) for name, value in run.items()} for run in replay["replay"]
            ],
            "held": [
                {name: make.short(value) for name, value in held.items()} for held in replay["held"]
            ],
            "bars": replay["bars"],
        },
    }


def arms(found: Kept) -> list[str]:
    by_leaves = next(iter(found["costs"].values()))
    return list(next(iter(by_leaves.values())))


def us(cost: list[float]) -> str:
    return f"{cost[0]:,.0f} ({cost[1]:,.0f})"


def requests(found: Kept) -> str:
    def rows() -> Iterator[list[str]]:
        for page, sizes in found["costs"].items():
            for leaves, by_arm in sizes.items():
                cells = (us(operations["total"]) for operations in by_arm.values())
                yield [f"{int(leaves):,}, {page}", *cells]

    return make.table("leaves, page size | " + " | ".join(arms(found)), rows())


def operations(found: Kept) -> str:
    """Each operation at the largest size, with pages of 64."""
    sizes = found["costs"]["64"]
    largest = sizes[max(sizes, key=int)]
    rows = (
        [f"`{name}`", *(us(largest[arm][name]) for arm in largest)]
        for name in OPERATIONS
        if name != "total"
    )
    return make.table("operation | " + " | ".join(largest), rows)


def evictions(found: Kept) -> str:
    sizes = found["costs"]["64"]
    rows = (
        [f"{int(leaves):,}", *(us(by_arm[arm]["evict"]) for arm in by_arm)]
        for leaves, by_arm in sizes.items()
    )
    return make.table("leaves | " + " | ".join(arms(found)), rows)


def goals(found: Kept) -> str:
    rows = (
        [bar["name"], bar["goal"], bar["figure"], "met" if bar["met"] else "**missed**"]
        for bar in [*found["bars"], *found["replay"]["bars"]]
    )
    lines = ["| | goal | measured | |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def speed(found: Kept) -> str:
    rows = (
        [
            f"`{run['policy']}`, {run['sessions']:,}",
            f"{run['requests']:,}",
            f"{run['requests'] / run['seconds']:,.0f}",
            f"{run['policy_seconds'] / run['seconds']:.0%}".replace("%", " %"),
            f"{run['nodes_max']:,}",
        ]
        for run in found["replay"]["runs"]
    )
    return make.table(
        "policy, sessions | requests | requests/s | of which in the core | nodes at most", rows
    )


TABLES = {
    "requests": requests,
    "operations": operations,
    "evictions": evictions,
    "speed": speed,
    "goals": goals,
}


def rendered(text: str, found: Kept) -> str:
    """The page with its tables as `found` has them."""
    filled: str = make.filled(text, {name: made(found) for name, made in TABLES.items()})
    return filled


def main(arguments: list[str] | None = None) -> int:
    """Keep, or write the tables; without a word which, say what there is and change nothing."""
    given = make.chosen(__doc__, {"keep": ("overhead", "replay"), "tables": ()}, arguments)
    if given is None:
        return 2
    if given.way == "keep":
        overhead, replay = (json.loads(f.read_text()) for f in (given.overhead, given.replay))
        RESULTS.write_text(json.dumps(kept(overhead, replay), indent=1) + "\n")
    PAGE.write_text(rendered(PAGE.read_text(), json.loads(RESULTS.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
