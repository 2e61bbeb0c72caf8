"""Whatever is typed or fed: one line with the right remedy, nothing lost, status 0 or 2.

Never a traceback, never a hang, never data dropped with status 0.  `make check` runs a few
examples; `make fuzz-cli` runs them for as long as it is told, from a seed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penelope import cli
from penelope.policy.errors import PenelopeError
from penelope.runtime.model_config import load_model
from penelope.runtime.traces import TraceError, load
from tests.fuzz import inputs
from tests.unit.replaying import weka

SECONDS = 60
"""Longer is a hang: all that is run here is small."""

REMEDY = re.compile(
    r"\b(add|build|check|choose|convert|correct|create|decompress|did you mean|enlarge|fetch|fix|"
    r"give|keep|leave|lower|make|name|raise|remove|see|split|there are|unpack|use|wait|write)\b"
)


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """What takes too long fails, wherever it is."""

    def hang(number: int, frame: object) -> None:
        raise AssertionError(f"still running after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refused_well(text: str) -> None:
    """One printable line that ends in what to do."""
    assert text.isprintable(), repr(text)
    assert REMEDY.search(text), f"says no remedy: {text}"
    assert "Traceback" not in text


def call(arguments: list[str]) -> tuple[int, str, str]:
    """Run one command line in this process."""
    shown, complaint = io.StringIO(), io.StringIO()
    with limited(), contextlib.redirect_stdout(shown), contextlib.redirect_stderr(complaint):
        try:
            status = cli.main(arguments)
        except SystemExit as left:  # `--help`
            status = int(left.code or 0)
    return status, shown.getvalue(), complaint.getvalue()


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A place of its own, with some files in it."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        (path / "TRACE").write_bytes(inputs.lines([weka("a", [640, 1915]), weka("b", [640, 2555])]))
        (path / "CONFIG").mkdir()
        (path / "CONFIG" / "config.json").write_text(json.dumps(inputs.DENSE))
        (path / "BAD").write_text("{7}\n")
        (path / "EMPTY").write_text("")
        os.chdir(path)
        try:
            yield path
        finally:
            os.chdir(before)


def contents(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in path.iterdir() if p.is_file()}


# --- traces ---------------------------------------------------------------------------------------


@given(trace=inputs.TRACES, wrapping=st.sampled_from(sorted(inputs.WRAPPINGS)), piped=st.booleans())
def test_no_request_is_lost(trace: tuple[list[Any], int], wrapping: str, piped: bool) -> None:
    """However a trace is written, and wherever it comes from, all of it is read."""
    rows, count = trace
    content = inputs.WRAPPINGS[wrapping](inputs.lines(rows))
    with folder() as path, limited():
        (path / "plain").write_bytes(inputs.lines(rows))
        expected = load(path / "plain")
        if piped:
            os.mkfifo(path / "t")
            writer = threading.Thread(target=(path / "t").write_bytes, args=(content,), daemon=True)
            writer.start()
        else:
            (path / "t").write_bytes(content)
        got = load(path / "t")
    assert got.requests == expected.requests == count
    assert got.digest() == expected.digest()


@given(trace=inputs.TRACES, wrapping=st.sampled_from(["plain", "gzip"]), data=st.data())
def test_what_is_cut_off_is_not_taken_for_whole(
    trace: tuple[list[Any], int], wrapping: str, data: st.DataObject
) -> None:
    """Cut anywhere, a file is refused, unless what is left is whole lines."""
    rows, _ = trace
    whole = inputs.lines(rows)
    content = inputs.WRAPPINGS[wrapping](whole)
    cut = content[: data.draw(st.integers(1, len(content) - 1))]
    with folder() as path, limited():
        (path / "t").write_bytes(cut)
        try:
            load(path / "t")
        except TraceError as error:
            refused_well(str(error))
            return
    assert wrapping == "plain"
    # Without the line end, or without whole lines at the end.
    assert cut.endswith(b"\n") or whole[len(cut) : len(cut) + 1] == b"\n"


@given(rows=inputs.spoiled_rows())
@example(rows=[{"timestamp": 0, "input_length": 512, "output_length": 0, "hash_ids": []}])
@example(rows=[{"timestamp": 0, "input_length": 9, "output_length": 0, "hash_ids": [0, 1]}])
def test_spoiled_values_are_refused_by_name(rows: list[Any]) -> None:
    read_or_refused("".join(json.dumps(row) + "\n" for row in rows).encode())


@given(content=inputs.spoiled_bytes())
@example(content=b"\x1f\x8b")
@example(content=b"\xef\xbb\xbf")
@example(content=b'{"hash_ids": [1]}\r{"hash_ids": [1]}\r')
@example(content=b'{"a": "\\ud800", "requests": []}')
@example(content=b"\xc2\x85\n")
def test_spoiled_bytes_are_refused_by_name(content: bytes) -> None:
    read_or_refused(content)


def read_or_refused(content: bytes) -> None:
    with folder() as path, limited():
        (path / "t").write_bytes(content)
        try:
            trace = load(path / "t")
        except TraceError as error:
            said = str(error)
        else:
            assert trace.requests > 0
            return
    refused_well(said)
    assert said.startswith(f"{path / 't'}: ")


# --- models and grids -----------------------------------------------------------------------------


@given(config=inputs.configurations())
@example(config={**inputs.DENSE, "hidden_size": 1 << 32})
def test_a_configuration_has_a_cost_or_is_refused(config: Any) -> None:
    with folder() as path, limited():
        (path / "m.json").write_text(json.dumps(config))
        try:
            model = load_model(str(path / "m.json"))
        except PenelopeError as error:
            refused_well(str(error))
            return
        assert 0 < model.linear < 1e9
        status, shown, complaint = call(["cost", "--model", "m.json", "--context", "9000"])
    assert (status, complaint) == (0, "")
    assert shown.startswith("m.json: a token at position p costs")
    assert ("assumed" in shown) == bool(model.assumed)


@given(content=st.one_of(st.binary(max_size=60), st.text(max_size=40).map(str.encode)))
def test_what_is_no_configuration_is_refused(content: bytes) -> None:
    with folder() as path:
        (path / "m.json").write_bytes(content)
        status, shown, complaint = call(["cost", "--model", "m.json", "--context", "9000"])
    assert (status, shown) == (cli.USER_ERROR, "")
    refused_well(complaint.removesuffix("\n"))


@given(lines=st.lists(inputs.GRID_LINES, max_size=5))
@example(lines=['model = "a\\u0000/b"'])
def test_a_grid_runs_or_is_refused(lines: list[str]) -> None:
    with folder() as path:
        (path / "grid.toml").write_text("\n".join(lines), encoding="utf-8", errors="replace")
        # What a grid does not say is said here, so that whatever runs is small.
        options = ["--grid", "grid.toml", "--out", "out", "--processes", "1"]
        options += ["--sessions", "1", "--max-context", "34000"]
        status, shown, complaint = call(["sweep", *options])
        judged(status, shown, complaint)
        assert (path / "out" / "summary.csv").exists() == (status == 0)


# --- command lines --------------------------------------------------------------------------------


@given(arguments=inputs.command_lines())
@example(arguments=["replay", "--trace", "TRACE", "--model", "x" * 300])
@example(arguments=["cost", "--model", "qwen3-8b", "--context", "9" * 400])
@example(arguments=["replay", "--trace", "TRACE", "--json", "TRACE"])
@example(arguments=["replay", "--trace", "TRACE", "--plot", "out.bmp"])
@example(arguments=["cost", "--model", "qwen3-8b", "--context", "9000", "--append", "-1"])
def test_a_command_line_runs_or_is_refused(arguments: list[str]) -> None:
    with folder() as path:
        arguments = ["out" if a == "OUT" else a for a in arguments]
        before = contents(path)
        status, shown, complaint = call(arguments)
        after = contents(path)
    piped = arguments[-1] in {"-", "/dev/stdout"} or any(
        arguments[i : i + 2] in (["--json", "-"], ["--json", "/dev/stdout"])
        for i in range(len(arguments))
    )
    judged(status, shown, complaint, tables_on_standard_error=piped)
    # What was there is as it was, and nothing half-written lies beside it.
    named = {arguments[i + 1] for i, a in enumerate(arguments[:-1]) if a in {"--json", "--plot"}}
    assert set(after) <= set(before) | (named if status == 0 else set())
    assert {n: c for n, c in after.items() if n in before and n not in named} == {
        n: c for n, c in before.items() if n not in named
    }
    if status == 0 and arguments[0] == "replay":
        for name in named & set(after):
            if name.endswith(".json"):
                assert json.loads(after[name])["policies"]


def judged(
    status: int, shown: str, complaint: str, *, tables_on_standard_error: bool = False
) -> None:
    assert status in {0, cli.USER_ERROR}, (status, complaint)
    if status == 0:
        assert shown or tables_on_standard_error
        assert not complaint or tables_on_standard_error
        return
    assert not shown
    assert complaint.endswith("\n")
    assert complaint.startswith("penelope")
    refused_well(complaint.removesuffix("\n"))


@given(
    content=st.one_of(inputs.spoiled_bytes(), inputs.TRACES.map(lambda t: inputs.lines(t[0]))),
    named=st.sampled_from(["-", "/dev/stdin", "/dev/fd/0"]),
    model=st.sampled_from(["qwen3-8b", "-"]),
)
@settings(max_examples=20)  # each starts a process
@pytest.mark.slow
def test_standard_input_is_read_or_refused(content: bytes, named: str, model: str) -> None:
    """In a process of its own, because it has only one."""
    command = [sys.executable, "-m", "penelope", "replay", "--policy", "penelope"]
    command += ["--trace", named, "--model", model]
    done = subprocess.run(command, input=content, capture_output=True, timeout=SECONDS, check=False)
    complaint = done.stderr.decode()
    judged(done.returncode, done.stdout.decode(), complaint)
    if model == "-":
        assert done.returncode == cli.USER_ERROR
        assert "both read" in complaint
