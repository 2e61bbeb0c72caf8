"""tools/mutation.py: the list of survivors fits the code, and what is wrong with a list is said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

from tools.mutation import LEFT_OUT, TESTS, Mutant, Survivor, complaints, listed, with_plain_getters

ROOT: Final = Path(__file__).parents[2]
ONE: Final = Mutant("ticks._insert", "a = 1", "a = 2")
TWO: Final = Mutant("ticks._insert", "b = 1", "b = 2")


def even(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("entry", listed(), ids=lambda entry: entry.mutant.function)
def test_each_survivor_changes_a_line_that_the_core_has(entry: Survivor) -> None:
    module = entry.mutant.function.partition(".")[0]
    (path,) = (ROOT / "penelope").glob(f"*/{module}.py")
    source = path.read_text(encoding="utf-8")
    assert even(entry.mutant.line) in even(source), "it has changed: run tools/mutation.py again"
    assert f"def {entry.mutant.function.rpartition('.')[2]}(" in source
    assert entry.mutant.line != entry.mutant.mutant
    assert len(entry.why.split()) > 3


def test_no_survivor_is_listed_twice() -> None:
    assert len({entry.mutant for entry in listed()}) == len(listed())


def test_a_list_that_says_what_happened_is_right() -> None:
    assert complaints([ONE, ONE], [Survivor(ONE, equivalent=True, why="…")]) == []


def test_a_survivor_that_is_not_listed_is_named() -> None:
    (said,) = complaints([ONE, TWO], [Survivor(ONE, equivalent=True, why="…")])
    assert said == "survived and is not listed: ticks._insert\n  - b = 1\n  + b = 2"


def test_an_entry_that_was_killed_is_named() -> None:
    known = [Survivor(mutant, equivalent=True, why="…") for mutant in (ONE, TWO)]
    (said,) = complaints([TWO], known)
    assert said == "listed and did not survive: ticks._insert\n  - a = 1\n  + a = 2"


def test_a_property_is_a_method_that_can_be_mutated() -> None:
    source = (
        "class A:\n"
        "    @property\n"
        "    def b(self) -> int:\n"
        "        return 1\n"
        "\n"
        "    @staticmethod\n"
        "    def c() -> int:\n"
        "        return 2\n"
    )
    made = with_plain_getters(source)
    assert "    def get_b(self) -> int:\n        return 1\n    b = property(" in made
    assert "@property" not in made
    assert "    @staticmethod\n    def c()" in made
    space: dict[str, Any] = {}
    exec(made, space)
    assert (space["A"]().b, space["A"].c()) == (1, 2)


def test_the_tests_that_are_run_exist() -> None:
    for name in (*TESTS, *(test.partition("::")[0] for test in LEFT_OUT)):
        assert (ROOT / name).exists(), name
    for test in LEFT_OUT:
        path, _, function = test.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8")
