"""The command line where something around it is missing, full, closed or in a hurry."""

from __future__ import annotations

import importlib.metadata
import json
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penelope
from penelope import cli, installing
from tests.unit.replaying import weka, write

ROOT = Path(__file__).resolve().parent.parent.parent
PENELOPE = [sys.executable, "-m", "penelope"]
COST = "cost --model qwen3-8b --context 131072".split()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "t.jsonl", weka("a", [640, 1915]), weka("b", [640, 2555]))


def bash(command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        **options,
    )


# --- what is installed ----------------------------------------------------------------------------

WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys("click rich numpy matplotlib z3".split()))
from penelope.cli import main
sys.exit(main())
"""


def core_alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_EXTRAS, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("arguments", [(), ("-h",), ("--help",)])
def test_the_core_alone_shows_help(arguments: tuple[str, ...]) -> None:
    done = core_alone(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"  {name} " in done.stdout for name in cli.SUBCOMMANDS)


def test_the_core_alone_knows_its_version() -> None:
    done = core_alone("--version")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"penelope {penelope.__version__}\n",
        "",
    )
    assert importlib.metadata.version("penelope-kv") == penelope.__version__


@pytest.mark.parametrize("command", ["replay", "demo", "sweep", "cost", "verify", "frobnicate"])
def test_the_core_alone_says_what_a_command_needs(command: str) -> None:
    done = core_alone(command)
    assert (done.returncode, done.stdout) == (cli.USER_ERROR, "")
    assert "which is not installed: run " in done.stderr
    assert sys.executable in done.stderr
    assert done.stderr.count("\n") == 1


def test_advice_in_a_checkout_names_its_target_if_that_installs_for_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pip = f'{sys.executable} -m pip install -e "{ROOT}[verify]"'
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))
    assert installing.advice("verify") == f"run make verify in {ROOT}, or {pip}"
    monkeypatch.setattr(sys, "prefix", "/somewhere/else")
    assert installing.advice("verify") == f"run {pip}"


@pytest.mark.parametrize(
    ("recorded", "says"),
    [
        ('{"url": "file:///home/me/penelope"}', " @ file:///home/me/penelope"),
        (None, ""),
        ("no JSON", ""),
    ],
)
def test_advice_outside_a_checkout_names_where_we_came_from(
    recorded: str | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installing, "checkout", lambda: None)
    found = SimpleNamespace(read_text=lambda name: recorded)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)
    monkeypatch.setattr(sys, "executable", "/opt/my python/bin/python")
    assert installing.advice("ray") == (
        f"run '/opt/my python/bin/python' -m pip install \"penelope-kv[ray]{says}\""
    )


def test_every_extra_that_is_advised_exists() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = document["project"]["optional-dependencies"]
    assert set(installing.EXTRA_OF_MODULE.values()) <= set(extras)
    targets = (ROOT / "Makefile").read_text()
    for target in installing.TARGET_OF_EXTRA.values():
        assert f"\n{target.removeprefix('make ')}:" in targets


# --- standard output ------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], COST, ["cost", "--help"], ["replay", "TRACE"]]
)
def test_full_standard_output_is_one_line(arguments: Sequence[str], trace: Path) -> None:
    if arguments[-1] == "TRACE":
        arguments = ["replay", "--policy", "penelope", "--trace", str(trace)]
    done = bash(f"exec {' '.join([*PENELOPE, *arguments])} > /dev/full")
    assert done.returncode == cli.USER_ERROR, done.stderr
    assert "standard output cannot be written (No space left on device)" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_standard_error_changes_no_status(trace: Path) -> None:
    done = bash(f"exec {' '.join([*PENELOPE, 'cost'])} 2> /dev/full")
    assert (done.returncode, done.stdout) == (cli.USER_ERROR, "")


@pytest.mark.parametrize("arguments", [["--help"], COST])
def test_a_reader_that_has_gone_is_no_error(arguments: Sequence[str]) -> None:
    done = bash(f"{' '.join([*PENELOPE, *arguments])} | true; exit ${{PIPESTATUS[0]}}")
    assert done.returncode in {0, cli.NOBODY_READS}
    assert not done.stderr


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1"])
def test_results_go_to_standard_output(name: str, trace: Path) -> None:
    """The document alone, so that the next program can read it; the tables are on the other."""
    options = f"replay --policy penelope --trace {trace} --json {name}"
    piped = bash(f"cd {trace.parent}; {' '.join(PENELOPE)} {options} | cat")
    filed = bash(f"cd {trace.parent}; {' '.join(PENELOPE)} {options} > out; cat out")
    for done in (piped, filed):
        assert json.loads(done.stdout)["policies"]["penelope"]["requests"] == 4
        assert "t.jsonl: 4 requests" in done.stderr
    assert {path.name for path in trace.parent.iterdir()} == {"t.jsonl", "out"}


def test_a_reader_of_the_document_that_has_gone_is_no_error(trace: Path) -> None:
    options = f"replay --policy penelope --trace {trace} --json -"
    done = bash(f"{' '.join(PENELOPE)} {options} | true; exit ${{PIPESTATUS[0]}}")
    assert done.returncode in {0, cli.NOBODY_READS}
    assert "penelope replay: " not in done.stderr
    assert "Traceback" not in done.stderr


def test_results_go_to_another_program(trace: Path) -> None:
    """A process substitution is a pipe under /dev/fd."""
    options = f"replay --policy penelope --trace {trace} --json >(cat > {trace.parent}/copy)"
    done = bash(f"{' '.join(PENELOPE)} {options}; sleep 0.5")
    assert done.returncode == 0
    assert done.stdout.startswith("t.jsonl: 4 requests")
    assert json.loads((trace.parent / "copy").read_text())["policies"]


def test_an_input_is_no_place_for_results(trace: Path) -> None:
    model = trace.parent / "m.json"
    model.write_text("{}")
    before = trace.read_bytes()
    for flag, name in (("--trace", trace), ("--model", model)):
        done = bash(f"{' '.join(PENELOPE)} replay {flag} {name} --json {name}")
        assert done.returncode == cli.USER_ERROR
    assert (trace.read_bytes(), model.read_text()) == (before, "{}")


def test_a_file_open_for_reading_takes_no_results(trace: Path) -> None:
    done = bash(f"{' '.join(PENELOPE)} replay --trace {trace} --json /dev/fd/0 < {trace}")
    assert done.returncode == cli.USER_ERROR
    assert "/dev/fd/0 cannot be written (it is open for reading only)" in done.stderr


# --- interruption ---------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["replay"], ["cost", "--help"], ["verify"]])
def test_an_interruption_while_modules_are_imported_is_one_line(
    arguments: list[str],
) -> None:
    """Wherever it falls from the moment on in which `penelope` has begun."""
    for pause in (0, 0.01, 0.02, 0.04, 0.06):
        script = (
            "import os, signal, sys, threading, time\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "def stop():\n"
            "    while 'penelope.cli' not in sys.modules:\n"
            "        time.sleep(0.001)\n"
            f"    time.sleep({pause})\n"
            "    os.kill(os.getpid(), signal.SIGINT)\n"
            "from penelope.__main__ import main\n"
            "threading.Thread(target=stop, daemon=True).start()\n"
            "code = main()\n"
            "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            "sys.exit(code)\n"
        )
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode in {0, cli.INTERRUPTED}
        if done.returncode == cli.INTERRUPTED:
            # Where Ctrl-C was typed on a terminal, click first leaves the line that says ^C.
            assert done.stderr.lstrip("\n") == "penelope: interrupted\n"
        assert time.monotonic() - began < 30


def test_the_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert cli.main(COST) == 0
    assert signal.getsignal(signal.SIGINT) is before
