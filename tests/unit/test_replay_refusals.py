"""What `penelope replay` refuses: in one line, before the replay, and without writing anything."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from penelope import cli
from tests.unit.replaying import weka, write


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two sessions of 1,920 and 2,560 tokens at most, in 64-token blocks."""
    return write(tmp_path / "a trace.jsonl", weka("a", [640, 1915]), weka("b", [640, 2555]))


def refusal(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command line is refused with: one line, status 2, and nothing on standard output."""
    assert cli.main(list(arguments)) == cli.USER_ERROR
    captured = capsys.readouterr()
    assert not captured.out
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("penelope replay: ")
    return lines[0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--policy lru", "unknown policy 'lru': choose from sglang-lru, tail-block"),
        ("--policy penelope,,lru", "--policy 'penelope,,lru' names nothing at a comma"),
        ("--policy ,", "--policy ',' names nothing at a comma: choose from sglang-lru"),
        ("--model gpt-9", "unknown model 'gpt-9'; choose one of qwen3-235b-a22b"),
        ("--model ./absent/config.json", "cannot read absent/config.json: No such file"),
        (
            "--trace here --format wiki",
            "--format 'wiki' is not known; give auto, weka, mooncake, agentic",
        ),
        ("--scheduler sjf", "unknown scheduler 'sjf': choose from lpm, fcfs"),
        ("--shared-prefix all", "--shared-prefix 'all' is not known; give none, all:N"),
        ("--shared-prefix all:-1", "--shared-prefix 'all:-1' is not known"),
        ("--sessions 0", "--sessions is 0: give 1 or more"),
        ("--sessions -3", "--sessions is -3: give 1 or more"),
        ("--sessions 10000000", "--sessions times --replicates 10000000 is out of range"),
        ("--sessions few", "Invalid value for '--sessions': 'few' is not a valid integer"),
        ("--replicates 0", "--replicates is 0: give 1 or more"),
        ("--concurrency 0", "--concurrency is 0: give 1 or more"),
        ("--concurrency -1", "--concurrency is -1: give 1 or more"),
        ("--concurrency 1.5", "Invalid value for '--concurrency': '1.5' is not a valid integer"),
        ("--max-context 0", "--max-context is 0: give 1 or more"),
        ("--max-context 500", "--max-context 500 leaves generated sessions no room"),
        ("--seed -1", "--seed -1 is out of range for generated sessions"),
        ("--device-tokens 0", "--device-tokens is 0: give 1 or more"),
        ("--device-tokens 63", "--device-tokens 63 holds no page of 64: give it more"),
        ("--device-tokens 1000", "no session fits a device of 960 tokens, the smallest needs"),
        ("--chunk-tokens 0", "--chunk-tokens is 0: give 1 or more"),
        ("--page-tokens 100", "--page-tokens 100 is not a multiple of the trace's hashed"),
        ("--page-tokens 0", "--page-tokens 0 is not a multiple"),
        ("--block-tokens 100", "--block-tokens 100 is not a multiple of the page size, 64"),
        ("--block-tokens 0", "--block-tokens 0 is not a multiple"),
        ("--page-tokens 128 --block-tokens 64", "--block-tokens 64 is not a multiple of the"),
        ("--effective-tflops 0", "--effective-tflops is 0.0: give a number from 1e-6"),
        ("--effective-tflops nan", "--effective-tflops is nan: give a number"),
        ("--effective-tflops inf", "--effective-tflops is inf: give a number"),
        ("--effective-tflops -400", "--effective-tflops is -400.0: give a number"),
        ("--effective-tflops 1e-320", "--effective-tflops is 1e-320: give a number"),
        ("--seconds-per-unit nan", "--seconds-per-unit is nan: give a number from 0"),
        ("--seconds-per-unit -1", "--seconds-per-unit is -1.0: give a number from 0"),
        ("--seconds-per-prefill inf", "--seconds-per-prefill is inf: give a number from 0"),
        ("--seconds-per-output-token nan", "--seconds-per-output-token is nan: give a number"),
        ("--json .", ". is a folder: name a file in it"),
        ("--json absent/out.json", "absent is no folder: create it, or name a file elsewhere"),
        ("--json here/out.json", "here is no folder"),
        ("--json /proc/self/out.json", "/proc/self/out.json cannot be written"),
        ("--json /dev/null", "/dev/null is not a regular file: name another file"),
        ("--plot absent/out.png", "absent is no folder: create it, or name a file elsewhere"),
        (
            "--plot out.bmp",
            "--plot out.bmp has no suffix that can be drawn: name one that ends in .png or",
        ),
        (
            "--plot out",
            "--plot out has no suffix that can be drawn: name one that ends in .png or .pdf or",
        ),
        ("--json out.png --plot out.png", "out.png is named twice: give every file a name"),
        ("--json out.png --plot ./out.png", "out.png is named twice: give every file a name"),
        ("--trace here --json here", "here is named twice: give every file a name"),
    ],
)
def test_a_bad_option_is_refused_before_anything_is_replayed(
    options: str,
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "here").write_text("a file\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("penelope.runtime.replay.compare.replay", None)
    assert says in refusal(["replay", *options.split()], capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert (tmp_path / "here").read_text() == "a file\n"


BAD_TRACES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty; give a trace"),
    "no JSON": (b"{7}\n", "line 1: is not JSON"),
    "cut short": (
        gzip.compress(json.dumps(weka("a", [640])).encode() * 99)[:80],
        "the compressed data ends early",
    ),
    "unknown": (b'{"prompt": "x"}\n', "line 1: is of no known format"),
    "mixed": (
        json.dumps(weka("a", [640])).encode() + b'\n{"hash_ids": [1]}\n',
        "line 2: is of format mooncake in a trace read as weka",
    ),
    "bad field": (
        json.dumps(weka("a", [640], out=-1)).encode(),
        "line 1: field requests[0].out: -1 is not between 0",
    ),
}


@pytest.mark.parametrize("kind", BAD_TRACES)
def test_a_bad_trace_is_refused_with_its_place(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, says = BAD_TRACES[kind]
    path = tmp_path / ("trace.jsonl.gz" if kind == "cut short" else "trace.jsonl")
    path.write_bytes(content)
    outputs = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    line = refusal(["replay", "--trace", str(path), *outputs], capsys)
    assert line.startswith(f"penelope replay: {path}: ")
    assert says in line
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--sessions 3", "holds 2 usable sessions; 3 wanted; lower --sessions"),
        ("--sessions 1 --replicates 3", "holds 2 usable sessions; 3 wanted; lower --sessions"),
        ("--replicates 3", "holds 2 usable sessions, 3 groups of 1 need 3; lower --sessions or"),
        ("--max-context 100", "holds 0 usable sessions and 2 that --max-context 100 leaves out"),
        ("--format mooncake", "line 1: is of format weka in a trace read as mooncake"),
        ("--device-tokens 1000", "no session fits a device of 960 tokens, the smallest needs 1920"),
        ("--replicates 2 --device-tokens 2000", "no session of group 2 fits a device of 1984"),
    ],
)
def test_a_trace_that_cannot_give_what_is_asked_for_is_refused(
    options: str, says: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refusal(["replay", "--trace", str(trace), *options.split()], capsys)


def test_a_missing_package_is_named_before_the_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("penelope.runtime.replay.compare.replay", None)
    line = refusal(["replay", "--plot", str(tmp_path / "out.png")], capsys)
    assert "is not installed: run " in line
    assert f"{sys.executable} -m pip install -e " in line
