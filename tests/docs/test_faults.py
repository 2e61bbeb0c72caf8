"""The project contains what its tests refer to: every case, and nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.documents import ROOT, documents, table

FAULTS = ROOT / "docs/faults.md"
TESTS = sorted((ROOT / "tests").rglob("*.py"))
ELSEWHERE = re.compile(
    r"\bDESIGN\b|§ ?\d|fault list|\bCASES\b|^# \d+(?:, \d+)*(?: and .*)?$", re.MULTILINE
)
"""Marks of documents that the project does not contain."""


def cases(text: str) -> set[str]:
    """The cases that a file of tests is about."""
    named = set(re.findall(r"def test_case_(\d+)_", text))
    for listed in re.findall(r'"""Cases? ([\d, and]+)', text):
        named |= set(re.findall(r"\d+", listed))
    return named


def test_every_case_that_a_test_names_is_told() -> None:
    told = {row[0] for row in table(FAULTS, "case")}
    for path in TESTS:
        assert cases(path.read_text()) <= told, path


def test_every_case_has_the_tests_that_it_names() -> None:
    rows = table(FAULTS, "case")
    assert [int(row[0]) for row in rows] == sorted({int(row[0]) for row in rows})
    for case, fault, tests in rows:
        assert fault.endswith("."), case
        named = re.findall(r"tests/[\w/.]+", tests)
        assert named, case
        for path in named:
            assert case in cases((ROOT / path).read_text()), f"{path} has no test of case {case}"


@pytest.mark.parametrize("path", [*TESTS, *documents()], ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_refers_to_documents_that_are_not_here(path: Path) -> None:
    if path != Path(__file__).resolve():
        found = ELSEWHERE.search(path.read_text())
        assert not found, f"{path} refers to {found}"
