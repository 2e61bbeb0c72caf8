"""`spec/README.md` lists what the package has: no more, no less, in the same words."""

from __future__ import annotations

import re
from pathlib import Path

from penelope_spec import INVARIANTS, TRANSITIONS, Kind
from penelope_spec.assumptions import KEPT
from penelope_spec.relational import Relational
from penelope_spec.theorems import STEPS, eviction, preservation
from penelope_spec.transitions import MOVES
from penelope_spec.verify import theorems

ROOT = Path(__file__).parents[2]
README = (ROOT / "spec" / "README.md").read_text(encoding="utf-8")
ASSURANCE = (ROOT / "docs" / "assurance.md").read_text(encoding="utf-8")


def rows(heading: str, text: str = README) -> list[list[str]]:
    """The rows of the table with this heading."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    table = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


def test_the_tables_list_exactly_the_registry() -> None:
    for kind in Kind:
        expected = [
            [f"`{i.name}`", i.says, i.checked] for i in INVARIANTS.values() if i.kind is kind
        ]
        assert rows(f"{kind.value} invariant") == expected


def test_the_design_s_invariants_are_all_there() -> None:
    """Written down here once more, so that none is lost from the registry unseen."""
    named = """no-shared-eviction no-in-use-eviction one-copy bounded-swap moves-do-not-evict
    accounting lock-balance history-intact one-hole minimal-eviction progress no-dangling-hole
    unified-order determinism exact-refill"""
    assert set(named.split()) <= INVARIANTS.keys()


def test_every_transition_is_described() -> None:
    described = {row[0].strip("`") for row in rows("transition")}
    assert described == set(TRANSITIONS)


def test_every_move_is_described() -> None:
    assert [row[0] for row in rows("move")] == [f"`{move.name}`" for move in MOVES]


def test_every_theorem_is_listed() -> None:
    """One by one, or as `MOVE keeps NAME` and `MOVE respects NAME`."""
    grid = {theorem.name for theorem in (*preservation(), *eviction())}
    expected = {theorem.name for theorem in theorems()} - grid
    items = re.findall(
        r"^- (.+)$", README.split("## 4.")[1].split("**Why a proof")[0], re.MULTILINE
    )
    listed = {re.sub(r" [*(]+(bounded|whatever|T\d).*$", "", item) for item in items}
    assert listed == expected
    for name in (*KEPT, *STEPS):
        assert f"`{name}`" in README.split("## 4.")[1]


def test_what_is_marked_bounded_is_bounded() -> None:
    marked = set(re.findall(r"^- (.+?) \*\(bounded", README, re.MULTILINE))
    found = {t.name for t in theorems() if getattr(t, "bounded", False)}
    assert marked == found


def test_what_no_theorem_is_about_is_admitted() -> None:
    """Section 5 names every registered invariant that only tests check."""
    unproved = README.split("## 5.")[1]
    for invariant in INVARIANTS.values():
        if "z3" not in invariant.checked and invariant.name != "reads-change-nothing":
            assert f"`{invariant.name}`" in unproved, invariant.name


def test_the_sceptic_s_table_counts_the_theorems() -> None:
    """How many theorems are about each invariant, without a bound, and who else checks it."""
    expected = []
    for invariant in INVARIANTS.values():
        about = [theorem for theorem in theorems() if theorem.kind == invariant.name]
        trees = sum(isinstance(t, Relational) and not t.bounded for t in about)
        numbers = sum(not isinstance(t, Relational) for t in about)
        checks = (invariant.on_state, invariant.on_step, invariant.on_refusal)
        runs = "yes" if any(checks) or invariant.name == "one-hole" else "see below"
        cells = [str(trees or "—"), str(numbers or "—"), runs]
        expected.append([f"`{invariant.name}`", *cells])
    assert rows("invariant", ASSURANCE) == expected


def test_the_sceptic_is_told_what_is_bounded_and_what_only_tested() -> None:
    bounded = ASSURANCE.split("## What is bounded")[1].split("## Why")[0]
    for theorem in theorems():
        if getattr(theorem, "bounded", False):
            assert f"*{theorem.name}*" in bounded
    tested = ASSURANCE.split("## What is only tested")[1].split("## What is assumed")[0]
    for invariant in INVARIANTS.values():
        if "z3" not in invariant.checked:
            assert f"`{invariant.name}`" in tested, invariant.name
