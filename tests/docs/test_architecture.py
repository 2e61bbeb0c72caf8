"""The page for first readers: its example is what the core does, and its places exist."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.docs.documents import DOCS, ROOT, blocks, table

ARCHITECTURE = DOCS / "architecture.md"


def test_the_example_is_what_the_core_does() -> None:
    told = subprocess.run(
        [sys.executable, str(DOCS / "one_eviction.py")],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"},
    ).stdout
    picture, example = blocks(ARCHITECTURE, "text")
    assert example.strip() == told.strip()
    for package in re.findall(r"(?:penelope|spec)/\w+", picture):
        assert (ROOT / package).is_dir()


def test_every_place_exists() -> None:
    for _, place, beside in table(ARCHITECTURE, "you want to"):
        for path in re.findall(r"`([\w/*.]+(?:/|\.py))`", f"{place} {beside}"):
            found = [
                *ROOT.glob(path.rstrip("/")),
                *(ROOT / "penelope").glob(path.rstrip("/")),
                *(ROOT / "penelope" / "policy").glob(path),
            ]
            assert found, path
