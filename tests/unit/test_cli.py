"""The command line: what it says, and how it fails.  One line, status 2, never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from penelope import cli
from penelope.policy.errors import PenelopeError

COST = "cost --model qwen3-8b --context 131072 --fraction 0.3 --start 2048 --append 512".split()


@pytest.fixture
def subcommand(monkeypatch: pytest.MonkeyPatch) -> click.Command:
    """A subcommand `probe` that the test gives a body to."""
    command = click.Command("probe", params=[click.Option(["--size"], type=int)])
    monkeypatch.setitem(sys.modules, "probe_room", SimpleNamespace(probe=command))
    monkeypatch.setitem(cli.SUBCOMMANDS, "probe", cli.Subcommand("probe_room:probe", "A probe."))
    return command


def only_line(text: str) -> str:
    lines = text.splitlines()
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


def test_help_lists_every_subcommand_without_importing_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cli.SUBCOMMANDS, "ghost", cli.Subcommand("no.such.module:x", "A ghost."))
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and entry.help in shown for name, entry in cli.SUBCOMMANDS.items())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("penelope ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["reply"], "penelope: no command 'reply'; did you mean replay?"),
        (["frobnicate"], "penelope: no command 'frobnicate'; there are demo, replay,"),
        (["--frobnicate"], "penelope: No such option"),
        (["cost"], "penelope cost: Missing option '--model'"),
        (["cost", "--context", "many"], "penelope cost: Invalid value for '--context'"),
        (["cost", "--model", "qwen3-8b", "--context", "-1"], "penelope cost: --context -1 is neg"),
        ([*COST, "--fraction", "nan"], "penelope cost: --fraction nan is not a share"),
        (["cost", "--model", "gpt-9", "--context", "9"], "penelope cost: unknown model 'gpt-9'"),
    ],
)
def test_usage_errors_are_one_line_and_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == cli.USER_ERROR
    captured = capsys.readouterr()
    assert only_line(captured.err).startswith(says)
    assert not captured.out


def test_usage_error_names_the_help_of_its_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["cost"])
    assert only_line(capsys.readouterr().err).endswith("(see `penelope cost --help`)")


@pytest.mark.parametrize(
    ("raised", "status", "says"),
    [
        (PenelopeError("device too small;\n  raise it"), 2, "device too small; raise it"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.FileError("out.json", "is a directory"), 2, "Could not open file 'out.json'"),
        (ModuleNotFoundError("No module named 'z3'", name="z3"), None, ""),
    ],
)
def test_errors_of_a_subcommand(
    raised: BaseException,
    status: int | None,
    says: str,
    subcommand: click.Command,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def body(size: int | None) -> None:
        raise raised

    subcommand.callback = body
    if status is None:  # a bug: nothing may hide it
        with pytest.raises(type(raised)):
            cli.main(["probe"])
        return
    assert cli.main(["probe"]) == status
    assert says in only_line(capsys.readouterr().err.strip())


@pytest.mark.parametrize(("returned", "status"), [(None, 0), (0, 0), (1, 1), (2, 2)])
def test_status_is_what_the_subcommand_returns(
    returned: int | None, status: int, subcommand: click.Command
) -> None:
    subcommand.callback = lambda size: returned
    assert cli.main(["probe"]) == status


@pytest.mark.parametrize(
    ("missing", "extra"), [("matplotlib", "replay"), ("z3", "verify"), ("sglang", "sglang")]
)
def test_missing_extra_names_the_command_that_installs_it(
    missing: str,
    extra: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "needy_room.py").write_text(f"import {missing}.part\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setitem(cli.SUBCOMMANDS, "needy", cli.Subcommand("needy_room:needy", ""))
    assert cli.main(["needy"]) == cli.USER_ERROR
    root = Path(cli.__file__).parent.parent
    line = only_line(capsys.readouterr().err)
    assert line.startswith(f"penelope needy: this needs {missing}, which is not installed: run ")
    assert line.endswith(f'{sys.executable} -m pip install -e "{root}[{extra}]"')


def test_missing_room_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cli.SUBCOMMANDS, "ghost", cli.Subcommand("penelope.no.room:x", ""))
    assert cli.main(["ghost"]) == cli.USER_ERROR
    assert "this installation has no penelope.no.room" in only_line(capsys.readouterr().err)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--tp", "2", "--", "-x"], ["a", "-h"]])
def test_plain_function_gets_every_argument_as_it_is(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def room(given: list[str]) -> int:
        seen.append(given)
        return 7

    monkeypatch.setitem(sys.modules, "plain_room", SimpleNamespace(main=room))
    monkeypatch.setitem(cli.SUBCOMMANDS, "plain", cli.Subcommand("plain_room:main", "", plain=True))
    monkeypatch.setitem(sys.modules, "click", None)  # which it does not need
    assert cli.main(["plain", *arguments]) == 7
    assert seen == [arguments]


def test_core_alone_says_what_the_command_line_needs(tmp_path: Path) -> None:
    """On an installation without click nothing of ours may fail before the hint."""
    script = (
        "import sys; sys.modules['click'] = None; from penelope.cli import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "replay"], capture_output=True, text=True, check=False
    )
    assert done.returncode == cli.USER_ERROR
    line = only_line(done.stderr)
    assert line.startswith("penelope replay: this needs click, which is not installed: run ")
    assert line.endswith('[replay]"')


def test_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m penelope --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}  # 1: click's answer to a closed pipe
    assert not done.stderr


@pytest.mark.parametrize(("context", "speedup"), [(8192, "1.11"), (131072, "2.90")])
def test_cost_prints_the_predicted_speed_up(
    context: int, speedup: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*COST, "--context", str(context)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"next request: {speedup}")


def test_cost_reads_a_configuration_file_or_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "qwen3",
                "hidden_size": 4096,
                "intermediate_size": 12288,
                "num_hidden_layers": 36,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 128,
            }
        )
    )
    for name in (config, tmp_path):
        assert cli.main([*COST, "--model", str(name)]) == 0
        assert capsys.readouterr().out.splitlines()[-1].endswith("next request: 2.90")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read"),
        (b"", "is not JSON"),
        (b"\xff\xfe", "is UTF-16 text; convert it"),
        (b"\xff{}", "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b"{}", "hidden_size is missing"),
        (b'{"model_type": "mamba2"}', "use a model with full attention"),
    ],
)
def test_cost_refuses_a_bad_configuration_in_one_line(
    content: bytes | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    if content is not None:
        config.write_bytes(content)
    assert cli.main([*COST, "--model", str(config)]) == cli.USER_ERROR
    line = only_line(capsys.readouterr().err)
    assert line.startswith("penelope cost: ")
    assert says in line
