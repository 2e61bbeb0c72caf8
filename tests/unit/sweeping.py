"""Sweeps small enough for a unit test."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

GRID = (
    "--sessions 4 --replicates 2 --max-context 34000 --capacity 40000,60000 --concurrency 2,4 "
    "--policy sglang-lru,tail-block,penelope"
).split()
"""Four settings, three policies, two groups."""

REPLAYS = 24


def command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "penelope", "sweep", "--out", str(folder), *options]


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Begin a sweep in a session of its own, so that its processes can be told from others."""
    return subprocess.Popen(
        command(folder, *options),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(folder: Path) -> list[str]:
    """The lines of the finished replays, whole ones only."""
    path = folder / "finished.jsonl"
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()[1:]


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


RESULTS = ("rows.csv", "summary.csv", "sweep.json")


def results(folder: Path) -> dict[str, object]:
    """The tables of a sweep, and their copy in `sweep.json`."""
    document = json.loads((folder / "sweep.json").read_text())
    # Which code made them is not what is compared.
    document["settings"].pop("code")
    tables = {name: (folder / name).read_bytes() for name in ("rows.csv", "summary.csv")}
    return {**tables, **document}
