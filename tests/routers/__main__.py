"""Measure the routers, and write the tables of docs/routers.md."""

from __future__ import annotations

from pathlib import Path

from tests.routers.measured import TIERS, measure, rendered

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "routers.md"

if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(), measure(), measure(sizes=TIERS)))
