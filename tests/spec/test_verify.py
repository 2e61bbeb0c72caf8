"""`penelope verify` as a user and a CI job meet it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penelope.cli import main as penelope
from penelope.runtime.outputs import OutputError
from penelope_spec import cli, verify
from penelope_spec.arithmetic import Arithmetic
from penelope_spec.smt import Status, integer
from penelope_spec.theorem import Theorem, Verdict

ROOT = Path(__file__).parents[2]


def test_verify_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert penelope(["verify", "--only", "cost"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("status")
    assert lines[1].startswith("proved ")
    assert lines[1].endswith("of two spans of equal length the earlier never costs more")
    assert "6 of 6 proved" in lines[-2]
    assert "0 unknown" in lines[-2]
    assert lines[-1].endswith("broken variants refuted.")


def test_verbose_shows_hypotheses_and_counterexamples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert penelope(["verify", "--only", "drop respects no-in-use-eviction", "--verbose"]) == 0
    printed = capsys.readouterr().out
    assert "hypotheses: ancestry before; " in printed
    assert "scope: all trees" in printed
    assert "drop forgets the locks: n = 0" in printed
    assert re.search(r"witness: n = 0, l = 0; before: 1 root > 0 (host )?KV", printed)


def test_json_holds_every_field(tmp_path: Path) -> None:
    target = tmp_path / "verdicts.json"
    target.write_text("old")
    assert penelope(["verify", "--only", "a victim has KV", "--json", str(target)]) == 0
    (found,) = json.loads(target.read_text())
    assert found["name"] == "a victim has KV"
    assert found["kind"] == "progress"
    assert found["scope"] == "all trees"
    assert found["status"] == "proved"
    assert found["seconds"] > 0
    assert "l is a victim" in found["hypotheses"]
    assert found["witness"]
    assert {"name", "status"} <= found["broken_variants"][0].keys()
    assert found["broken_variants"][0]["status"] == "counterexample"
    assert list(tmp_path.iterdir()) == [target], "nothing else is left behind"


class Fixed:
    """A theorem whose verdict is known."""

    def __init__(self, status: Status) -> None:
        true = Arithmetic(
            "x", "lemma", "all integers", {"x > 1": integer("x") > 1}, integer("x") > 0
        )
        self.verdict = true.decide()
        self.status = status
        self.name = f"a {status.value} one"
        self.kind = "lemma"

    def decide(self) -> Verdict:
        return Verdict(
            self.name,
            "lemma",
            "all integers",
            self.status,
            0.0,
            self.verdict.hypotheses,
            self.verdict.witness,
            self.verdict.broken,
            "x = 1" if self.status is Status.COUNTEREXAMPLE else "",
            () if self.status is Status.PROVED else ("so it is",),
        )


@pytest.fixture
def statuses(monkeypatch: pytest.MonkeyPatch) -> list[Status]:
    wanted: list[Status] = []

    def theorems() -> list[Theorem]:
        return [Fixed(status) for status in wanted]

    monkeypatch.setattr(verify, "theorems", theorems)
    return wanted


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([Status.PROVED, Status.PROVED], 0),
        ([Status.PROVED, Status.COUNTEREXAMPLE, Status.UNKNOWN], 1),
        ([Status.UNKNOWN, Status.PROVED], 2),
    ],
)
def test_exit_status(
    statuses: list[Status],
    given: list[Status],
    expected: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    statuses += given
    assert penelope(["verify"]) == expected
    printed = capsys.readouterr().out
    assert ("because: so it is" in printed) == (expected > 0)
    assert ("counterexample: x = 1" in printed) == (expected == 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "nobody"], "no theorem is about 'nobody'"),
        (["--josn", "x"], "unrecognized arguments: --josn x"),
        (["--json"], "expected one argument"),
        (["--json", "/nowhere/at/all.json"], "/nowhere/at is no folder: create it, or name a file"),
        (["--json", "/dev/null"], "is not a regular file: name another file"),
        (["--json", "."], ". is a folder: name a file in it"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert penelope(["verify", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("penelope verify: ")
    assert said in error
    assert error.count("\n") == 1


def test_an_unwritable_place_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the proofs are run; the operating system's refusal is played, for root meets none."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(OutputError, match=r"Permission denied.*name another file"):
        cli.main(["--json", str(tmp_path / "verdicts.json")])
    assert list(tmp_path.iterdir()) == []


def test_verdicts_go_to_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    assert penelope(["verify", "--only", "a victim has KV", "--json", "-"]) == 0
    shown, told = capfd.readouterr()
    assert [verdict["name"] for verdict in json.loads(shown)] == ["a victim has KV"]
    assert "1 of 1 proved" in told


def test_the_package_runs_without_the_command_line(tmp_path: Path) -> None:
    """As an engine's CI runs it: another process, another directory, nothing but z3."""
    target = tmp_path / "verdicts.json"
    blocked = "import sys; sys.modules['click'] = None; import runpy; "
    run = f"sys.argv[1:] = ['--only', 'cost', '--json', {str(target)!r}]; "
    module = "runpy.run_module('penelope_spec', run_name='__main__')"
    path = {"PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in (".", "spec"))}
    done = subprocess.run(
        [sys.executable, "-c", blocked + run + module],
        cwd=tmp_path,
        env={**os.environ, **path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {verdict["status"] for verdict in json.loads(target.read_text())} == {"proved"}
    wrong = subprocess.run(
        [sys.executable, "-m", "penelope_spec", "--only", "nobody"],
        cwd=tmp_path,
        env={**os.environ, **path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("penelope_spec: no theorem is about 'nobody'")
