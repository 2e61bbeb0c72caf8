"""The list of rules to break still fits the code: tools/broken_rules.py does the rest."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.docs.documents import table

ROOT: Final = Path(__file__).parents[2]
RULES: Final = tomllib.loads((ROOT / "tools/broken_rules.toml").read_text(encoding="utf-8"))["rule"]


@pytest.mark.parametrize("rule", RULES, ids=[rule["name"] for rule in RULES])
def test_each_rule_stands_where_the_list_says_and_its_breach_is_a_program(
    rule: dict[str, str],
) -> None:
    source = (ROOT / "penelope/policy" / f"{rule['file']}.py").read_text(encoding="utf-8")
    assert source.count(rule["right"]) == 1, "the rule has moved: update tools/broken_rules.toml"
    broken = source.replace(rule["right"], rule["wrong"])
    assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(source))


def test_no_rule_is_listed_twice() -> None:
    assert len({rule["name"] for rule in RULES}) == len(RULES)


CLASSIC: Final = [rule for rule in RULES if "mistake" in rule]


def test_the_classic_mistakes_are_many_and_differ() -> None:
    assert len({rule["mistake"] for rule in CLASSIC}) == len(CLASSIC) >= 10
    assert {rule["file"] for rule in CLASSIC} >= {"eviction", "planning", "storing", "moves"}


@pytest.mark.parametrize("rule", CLASSIC, ids=[rule["name"] for rule in CLASSIC])
def test_each_classic_mistake_has_a_test_that_is_there(rule: dict[str, str]) -> None:
    path, _, name = rule["test"].partition("::")
    functions = ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    assert name in {f.name for f in functions if isinstance(f, ast.FunctionDef)}


def test_the_sceptic_is_shown_each_classic_mistake_with_its_test() -> None:
    def shown(rule: dict[str, str]) -> list[str]:
        file, _, name = rule["test"].rpartition("/")[2].partition(".py::")
        return [
            rule["mistake"],
            rule["file"],
            f"{file}`: {name.removeprefix('test_').replace('_', ' ')}",
        ]

    assert table(ROOT / "docs/assurance.md", "mistake") == [shown(rule) for rule in CLASSIC]
