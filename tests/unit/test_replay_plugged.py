"""A third party's policy in a comparison, by name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from penelope import cli
from penelope.policy import POLICIES
from penelope.runtime.replay import arms, plugged
from penelope.runtime.replay.colours import OTHER, look

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SMALL = [
    *("--sessions", "6", "--concurrency", "3"),
    *("--device-tokens", "140000", "--max-context", "120000"),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own, with the example in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "most_idle", raising=False)
    plugged.plugged.cache_clear()
    source = (EXAMPLES / "most_idle.py").read_text()
    assert len(source.splitlines()) < 40
    (tmp_path / "most_idle.py").write_text(source)
    return tmp_path


def test_the_example_is_compared_with_others(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["replay", *SMALL, "--policy", "penelope,most_idle:make", "--json", "out.json"]
    assert cli.main([*arguments, "--plot", "out.svg"]) == 0
    assert "most_idle:make" in capsys.readouterr().out
    found = json.loads((here / "out.json").read_text())["policies"]
    assert found["most_idle:make"]["requests"] == found["penelope"]["requests"]
    assert found["most_idle:make"]["evicted_tokens"] > 0
    assert found["most_idle:make"] != found["penelope"]
    assert look("most_idle:make") is OTHER
    assert "most_idle:make" in (here / "out.svg").read_text()


def test_it_is_found_in_the_processes_of_a_sweep(here: Path) -> None:
    arguments = ["sweep", *SMALL, "--policy", "penelope,most_idle:make", "--out", "swept"]
    assert cli.main([*arguments, "--replicates", "2", "--processes", "2"]) == 0
    rows = json.loads((here / "swept" / "sweep.json").read_text())["rows"]
    assert [row["policy"] for row in rows].count("most_idle:make") == 2


def test_a_base_says_which_configuration_it_is_given(here: Path) -> None:
    (here / "based.py").write_text(
        "from penelope.runtime.replay.caches import CoreCache\n"
        "def make(config, unit_tokens):\n    return CoreCache(config)\n"
        "make.base = 'sglang-lru'\n"
    )
    assert arms.switches("based:make") == POLICIES["sglang-lru"]
    arguments = ["replay", *SMALL, "--policy", "sglang-lru,based:make", "--json", "out.json"]
    assert cli.main(arguments) == 0
    found = json.loads((here / "out.json").read_text())["policies"]
    for figures in found.values():
        del figures["policy_seconds"]
    assert found["based:make"] == found["sglang-lru"]


BROKEN = """
import nowhere_to_be_found
"""
WRONG = """
SIZE = 3
def make(config, unit_tokens): return 5
def fails(config, unit_tokens): raise KeyError("size")
def takes_none(): ...
def based(config, unit_tokens): ...
based.base = "best"
"""


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("absent:make", "no module absent is found here or in Python's path: run in its folder"),
        ("broken:make", "no module nowhere_to_be_found is found here"),
        ("garbled:make", "garbled cannot be imported (SyntaxError: "),
        ("wrong:other", "wrong has no such name as 'other': name a function"),
        ("wrong:SIZE", "wrong has nothing that can be called as 'SIZE'"),
        ("wrong:make", "makes a int, which has no admit: make a penelope.runtime.replay.caches"),
        ("wrong:fails", "makes no cache of a configuration and the tokens of a unit (KeyError: "),
        ("wrong:takes_none", "(TypeError: takes_none() takes 0 positional arguments but 2"),
        ("wrong:based", "is based on 'best': choose from sglang-lru"),
        (":make", "policy ':make' is no name: give module:function"),
        ("wrong:", "policy 'wrong:' is no name"),
        ("most_idle:make --host-tokens 100000", "this policy has one tier"),
        ("most_idle:make --replicas 2 --router cost", "tells no router what it holds"),
    ],
)
@pytest.mark.parametrize("command", [["replay"], ["sweep", "--out", "swept"]])
def test_what_is_none_is_refused_in_one_line(
    command: list[str], policy: str, says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("broken", BROKEN), ("garbled", "def make(:"), ("wrong", WRONG)):
        (here / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
    assert cli.main([*command, *SMALL, "--policy", *policy.split()]) == cli.USER_ERROR
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert says in captured.err
    assert not (here / "swept").exists()
