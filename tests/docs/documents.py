"""The documents as data: tables, code blocks, links."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
DECISIONS = DOCS / "decisions"
RESULTS = DOCS / "results"
HOW_IT_WORKS = DOCS / "how-it-works.md"
CONFORMANCE = DOCS / "conformance.md"


def documents() -> list[Path]:
    """Every document of the project that git would commit."""
    kept = [
        p
        for p in ROOT.rglob("*.md")
        if not any(part[0] == "." for part in p.relative_to(ROOT).parts)
        and p.relative_to(ROOT).parts[0] not in {"build", "dist", "out"}
    ]
    assert README in kept
    return sorted(kept)


def table(path: Path, header: str) -> list[list[str]]:
    """The rows of the table whose first line begins with `| header |`, cells without back-ticks."""
    text = path.read_text()
    at = text.index(f"\n| {header} |")
    rows = []
    for line in text[at + 1 :].splitlines()[2:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`*") for cell in line.strip("|").split(" | ")])
    return rows


def blocks(path: Path, language: str) -> list[str]:
    """The fenced code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def results_script(name: str = "make") -> ModuleType:
    """A script of `docs/results`, which may import those beside it."""
    sys.path.insert(0, str(RESULTS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(RESULTS))
