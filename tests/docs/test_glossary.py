"""The glossary has every public name, and nothing that is none."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from tests.docs.documents import DOCS

PAGE = DOCS / "glossary.md"
PUBLIC = ("penelope", "penelope.policy", "penelope.routing", "penelope.testing", "penelope.cost")
CONTRACT = (DOCS / "contract.md").read_text()


def named() -> list[str]:
    """Single names in code type."""
    return re.findall(r"`([A-Za-z_]+)`", PAGE.read_text())


def contracted() -> set[str]:
    """What the contract's first table names of modules without a list of their own."""
    rows = [line for line in CONTRACT.splitlines() if line.startswith("| `penelope.runtime")]
    assert len(rows) == 3
    return {name for row in rows for name in re.findall(r"`([A-Z]\w+)`", row)}


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_there(module: str) -> None:
    public = {name for name in import_module(module).__all__ if not name.startswith("__")}
    assert public - set(named()) == set()


def test_what_the_contract_names_is_there() -> None:
    assert len(contracted()) > 8
    assert contracted() - set(named()) == set()


def test_every_name_is_one() -> None:
    known = {name for module in PUBLIC for name in import_module(module).__all__} | contracted()
    others = set(named()) - known
    # Modes by name, a letter of the formula, and a class that the adapter alone needs.
    assert others == {"sticky", "prefix", "exact", "p", "Shadow"}


def test_terms_are_defined_once_and_used_in_their_sense() -> None:
    terms = re.findall(r"\*\*([^*]+)\*\*", PAGE.read_text())
    assert len(terms) == len(set(terms)) > 50
    for word in ("unit", "key", "span", "plan", "request", "move", "trace", "hole", "cost"):
        assert word in terms
