"""A script of the results that is only looked at changes nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.documents import RESULTS

SCRIPTS = ("fleet.py", "make.py", "order.py", "paper.py", "policy_overhead.py")


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ([], 2, "usage: "),
        (["--help"], 0, "usage: "),
        (["wiki"], 2, "invalid choice"),
        (["--tiers"], 2, "unrecognized arguments: --tiers"),
    ],
)
def test_looking_changes_nothing(
    script: str, arguments: list[str], status: int, says: str, tmp_path: Path
) -> None:
    folder = tmp_path / "docs" / "results"
    shutil.copytree(RESULTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = subprocess.run(
        [sys.executable, "-B", str(folder / script), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status
    assert says in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_trace_that_is_not_there_is_refused() -> None:
    for way in ("replay", "tiers"):
        done = subprocess.run(
            [sys.executable, "-B", str(RESULTS / "make.py"), way, "absent.gz"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2
        assert done.stderr.endswith("absent.gz is no file: give the trace\n")
