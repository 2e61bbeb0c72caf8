"""Every sequence of operations in small worlds: nothing is wrong, and so many states are met."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from penelope.policy import (
    DEFAULT_NAMESPACE,
    Config,
    State,
    acquire,
    admit,
    empty,
    evict,
    insert,
    match,
    pack,
    plan,
    touch,
)
from tests.docs.documents import ROOT, table
from tests.exhaustive.__main__ import row
from tests.exhaustive.canonical import canonical
from tests.exhaustive.explore import explore
from tests.exhaustive.worlds import FAST, SLOW, WORLDS
from tools import broken_rules

LISTED: Final = table(ROOT / "docs" / "assurance.md", "small world")


@pytest.mark.parametrize("name", FAST)
def test_everything_that_can_happen_in_a_few_seconds(name: str) -> None:
    _goes_through(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_everything_that_can_happen_in_some_minutes(name: str) -> None:
    _goes_through(name)


def _goes_through(name: str) -> None:
    done = explore(WORLDS[name])
    assert [
        cell.strip() for cell in row(name, WORLDS[name], done).strip("|").split(" | ")
    ] in LISTED


def test_the_page_lists_every_world_once() -> None:
    assert [listed[0] for listed in LISTED] == list(WORLDS)


def test_the_fast_worlds_meet_what_matters() -> None:
    met, done = Counter[str](), Counter[str]()
    for name in FAST:
        explored = explore(WORLDS[name])
        met += explored.met
        done += explored.by_name
    assert {name for name, count in met.items() if count > 5} == {
        "hole",
        "shared prefix",
        "refill in flight",
        "several requests",
        "both tiers",
        "promise",
        "swap buffer in use",
        "move in flight",
        "moves of a request that has ended",
        "waiting beside idle",
        "retired history",
    }
    accepted = "insert touch acquire admit release checkpoint refill reserve evict reset"
    accepted += " begin_move end_move fail_move settle_promise forgo_promise line_up retire"
    assert {name for name in accepted.split() if done[name] < 20} == set()
    refused = (
        "insert",
        "admit",
        "checkpoint",
        "reserve",
        "evict",
        "reset",
        "refill",
        "settle_promise",
    )
    assert {name for name in refused if done[f"{name} refused"] < 20} == set()


# Symmetry: what is called the same is the same, and nothing else is

Making = Callable[[State], State]


def _made(*steps: Making) -> State:
    state = empty(Config(6, 1, 1))
    for step in steps:
        state = step(state)
    return state


def _insert(*units: int) -> Making:
    return lambda state: insert(state, pack(units)).state


def _lock(*units: int) -> Making:
    return lambda s: acquire(s, match(s, pack(units), at_most=len(units))).state


def _use(*units: int) -> Making:
    return lambda s: touch(s, match(s, pack(units), at_most=len(units))).state


def _begin(*units: int) -> Making:
    return lambda s: admit(s, plan(s, pack(units), DEFAULT_NAMESPACE)).state


def _evict(need: int) -> Making:
    return lambda state: evict(state, need).state


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([_insert(0, 1)], [_insert(1, 0)]),
        ([_insert(0, 1), _insert(0, 0)], [_insert(1, 1), _insert(1, 0)]),
        ([_insert(0), _use(0), _use(0)], [_insert(0)]),
        ([_lock(), _insert(0), _lock(0)], [_insert(1), _lock(1), _lock()]),
        ([_insert(0, 0, 0), _evict(2)], [_insert(0, 0, 0), _evict(1), _evict(1)]),
    ],
    ids=["tokens", "branches", "ticks", "receipts", "cuts that were merged"],
)
def test_renamed_states_are_the_same(one: list[Making], other: list[Making]) -> None:
    assert canonical(_made(*one)) == canonical(_made(*other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([_insert(0, 1)], [_insert(0, 1, 0)]),
        ([_insert(0), _insert(1, 1)], [_insert(1, 1), _insert(0)]),
        ([_insert(0, 0), _evict(1)], [_insert(0, 0)]),
        ([_insert(0, 0), _lock(0)], [_insert(0, 0), _lock(0, 0)]),
        ([_insert(0, 0), _evict(1), _lock(0, 0)], [_insert(0, 0), _evict(1), _begin(0, 0, 1)]),
        ([_insert(0, 0), _use(0)], [_insert(0, 0)]),
    ],
    ids=["length", "recency", "residency", "locks", "refills", "order within a history"],
)
def test_states_that_differ_are_not(one: list[Making], other: list[Making]) -> None:
    assert canonical(_made(*one)) != canonical(_made(*other))


# That it bites

BROKEN: Final = {
    "shared: the second child is ignored": "no-shared-eviction",
    "locked: the walk goes on": "no-in-use-eviction",
    "head: one block too many at a boundary": "minimal-eviction",
    "prune forgets the counter": "accounting",
    "a hole ends a history": "no-dangling-hole",
    "an ended refill stays in flight": "in-flight",
    "checkpoint does not extend the lock": "lock-balance",
    "drops are decided per tier": "unified-order",
    "merge never happens": "merged",
    "the prefix jumps a gap": "reads-change-nothing",
    "the history that waits longest goes first": "order-followed",
    "a retired history waits for its turn": "order-followed",
    "used later: the walk goes on": "order-followed",
    "a ticket is lost in a merge": "queue-kept",
}
"""Rules of tools/broken_rules.toml, each with the invariant that the fast worlds then name."""

QUICK: Final = ("shared: the second child is ignored", "the prefix jumps a gap")


@pytest.mark.parametrize("rule", QUICK)
def test_a_broken_rule_is_found(rule: str, tmp_path: Path) -> None:
    _is_found(rule, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [rule for rule in BROKEN if rule not in QUICK])
def test_other_broken_rules_are_found(rule: str, tmp_path: Path) -> None:
    _is_found(rule, tmp_path)


def _is_found(rule: str, folder: Path) -> None:
    """In a copy of the project with the rule broken, with a program of a few steps."""
    (broken,) = [b for b in broken_rules.rules() if b.rule == rule]
    for name in ("penelope", "spec", "tests"):
        ignore = shutil.ignore_patterns("__pycache__", "sglang*")
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    source = folder / "penelope" / "policy" / f"{broken.file}.py"
    source.write_text(source.read_text().replace(broken.right, broken.wrong))
    paths = os.pathsep.join((str(folder), str(folder / "spec")))
    done = subprocess.run(
        [sys.executable, "-m", "tests.exhaustive", "--fast"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    violation, *program = [line for line in done.stdout.splitlines() if not line.startswith("|")]
    assert f": {BROKEN[rule]}: " in violation
    assert 1 <= len(program) <= 6
