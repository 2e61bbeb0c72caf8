"""What `penelope sweep` refuses: in one line, before anything is replayed or written."""

from __future__ import annotations

import fcntl
import importlib.util
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penelope import cli
from penelope.runtime.outputs import OutputError
from penelope.runtime.sweep import record
from penelope.runtime.sweep.grid import Row, Sweep, Task
from tests.unit.replaying import weka, write
from tests.unit.sweeping import GRID

TINY = "--sessions 1 --max-context 34000 --policy penelope --processes 1".split()


def refusal(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["sweep", *arguments]) == cli.USER_ERROR
    captured = capsys.readouterr()
    assert not captured.out
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("penelope sweep: ")
    return lines[0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--policy lru", "unknown policy 'lru': choose from sglang-lru, tail-block"),
        ("--policy penelope,lru", "unknown policy 'lru': choose from"),
        ("--policy ,", "Invalid value for '--policy': ',' names nothing at a comma: give a value"),
        ("--policy sglang-hicache", "policy 'sglang-hicache' has two tiers: give --host-tokens"),
        ("--host-tokens 0,65536 --policy independent-tiers", "policy 'independent-tiers' has two"),
        ("--policy penelope --baseline sglang-lru", "the baseline 'sglang-lru' is none of the"),
        ("--model gpt-9", "unknown model 'gpt-9'; choose one of qwen3-235b-a22b"),
        ("--model qwen3-8b,./absent/config.json", "cannot read absent/config.json: No such file"),
        ("--concurrency 2,x", "Invalid value for '--concurrency': '2,x' is not whole numbers"),
        ("--concurrency 2,0", "--concurrency is 0: give 1 or more"),
        ("--concurrency 1.5", "'1.5' is not whole numbers"),
        ("--capacity 1000", "no session fits a device of 960 tokens, the smallest needs"),
        ("--capacity 0", "--device-tokens is 0: give 1 or more"),
        ("--capacity 60000,63", "--device-tokens 63 holds no page of 64: give it more"),
        ("--host-tokens -1", "--host-tokens is -1: give 0 for one tier, or more"),
        (
            "--host-tokens 512",
            "--host-tokens 512 does not hold its swap buffer of 1024",
        ),
        ("--scheduler lpm,sjf", "unknown scheduler 'sjf': choose from lpm, fcfs"),
        ("--sticky-shared yes", "'yes' is not true or false"),
        ("--effective-tflops 400,nan", "--effective-tflops is nan: give a number from 1e-6"),
        ("--seconds-per-prefill -1", "--seconds-per-prefill is -1.0: give a number from 0"),
        ("--block-tokens 100", "--block-tokens 100 is not a multiple of the page size, 64"),
        (
            "--host-tokens 65536 --transfers never",
            "--transfers never is not known: choose from overlapped, serial",
        ),
        ("--groups 0", "--replicates is 0: give 1 or more"),
        ("--sessions 0", "--sessions is 0: give 1 or more"),
        ("--sessions 2,3", "Invalid value for '--sessions': '2,3' is not whole numbers"),
        ("--seed -1", "--seed -1 is out of range for generated sessions"),
        ("--processes 0", "--processes is 0: give 1 or more"),
        ("--trace absent.jsonl", "absent.jsonl"),
        ("--shared-prefix all", "--shared-prefix 'all' is not known; give none, all:N"),
        (
            "--trace here --format wiki",
            "--format 'wiki' is not known; give auto, weka, mooncake, agentic",
        ),
        ("--grid absent.toml", "cannot read absent.toml: No such file or directory"),
        ("--out .", ". holds notes.txt but no sweep: name a new folder with --out"),
        ("--out notes.txt", "--out notes.txt is no folder to write to"),
        ("--out absent/out", "--out absent/out is no folder to write to (No such file"),
        ("--out /proc/out", "--out /proc/out is no folder to write to"),
        ("--colour red", "No such option '--colour'"),
    ],
)
def test_bad_options(
    options: str,
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.setattr(Sweep, "perform", lambda *_: pytest.fail("replayed"))
    assert says in refusal(["--out", "out", *TINY, *options.split()], capsys)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_where_results_go_must_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Missing option '--out'" in refusal(TINY, capsys)


def test_a_trace_of_too_few_sessions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write(tmp_path / "t.jsonl", weka("a", [640]), weka("b", [640]))
    options = ["--trace", str(trace), "--sessions", "2", "--groups", "2"]
    said = refusal(["--out", str(tmp_path / "out"), *options], capsys)
    assert "holds 2 usable sessions; 4 wanted; lower --sessions" in said
    assert not (tmp_path / "out").exists()


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("concurrency = [", "is not TOML"),
        ("conurrency = 2", "conurrency is no option here; did you mean concurrency?"),
        ("colour = 2", "colour is no option here; there are policy, model, device-tokens"),
        ("concurrency = []", "concurrency names nothing; give at least one"),
        ("concurrency = [2, 'x']", "concurrency is 'x'; give whole numbers"),
        ("concurrency = true", "concurrency is True; give whole numbers"),
        ("sticky-shared = 1", "sticky-shared is 1; give true or false"),
        ("policy = [1]", "policy is 1; give a name in quotes"),
        ("sessions = [1, 2]", "sessions is [1, 2]; give whole numbers"),
        ("capacity = 9\ndevice_tokens = 9", "device_tokens is given twice, by two names"),
        ("grid = 3", "grid is no list of tables; begin each with [[grid]]"),
        ("grid = []", "has no grid: add values, or leave the list out"),
        ("[[grid]]\nsessions = 3", "sessions is no option here"),
        ("[[grid]]\nconcurrency = 0", "--concurrency is 0: give 1 or more"),
        ("trace = 'absent.jsonl'", "absent.jsonl"),
    ],
)
def test_bad_files(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    said = refusal(["--out", str(tmp_path / "out"), "--grid", str(file)], capsys)
    assert says in said
    assert not (tmp_path / "out").exists()


# --- what is finished already ---------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished sweep of one replay."""
    out = tmp_path / "out"
    assert cli.main(["sweep", "--out", str(out), *TINY]) == 0
    return out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--chunk-tokens 512", "other values of chunk_tokens"),
        ("--capacity 60000,70000 --scheduler fcfs", "other values of device_tokens, scheduler"),
        ("--policy penelope,tail-block", "other values of policies"),
        ("--seed 1", "other sessions"),
        ("--groups 2", "other sessions"),
    ],
)
def test_another_sweep_in_the_same_place(
    options: str, says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    said = refusal(["--out", str(folder), *TINY, *options.split()], capsys)
    assert f"is of another sweep ({says}): name a new folder with --out" in said
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_sweep_by_other_code(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capsys.readouterr()
    monkeypatch.setattr(record, "_digest_of_code", lambda: "other")
    said = refusal(["--out", str(folder), *TINY], capsys)
    assert "is of another sweep (made by other code than this)" in said


def test_a_model_file_that_has_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    model = tmp_path / "config.json"
    arguments = ["--out", str(tmp_path / "out"), *TINY, "--model", str(model)]
    model.write_text(json.dumps(config))
    assert cli.main(["sweep", *arguments]) == 0
    capsys.readouterr()
    model.write_text(json.dumps({**config, "intermediate_size": 8192}))
    assert "is of another sweep (other cells)" in refusal(arguments, capsys)


def spoiled(what: str, line: str) -> str:
    """A line of a finished replay that is none any more."""
    found = json.loads(line)
    if what == "another policy":
        found["policy"] = "tail-block"
    elif what == "another group":
        found["group"] = 1
    elif what == "a figure less":
        del found["figures"]["ttft_mean_s"]
    elif what == "a field less":
        del found["first_time"]
    else:
        return what
    return json.dumps(found)


@pytest.mark.parametrize(
    "what", ["{", "[]", "7", "another policy", "another group", "a figure less", "a field less"]
)
def test_a_line_that_is_none_of_the_sweep(
    what: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    path = folder / "finished.jsonl"
    first, line = path.read_text().splitlines()
    path.write_text(f"{first}\n{spoiled(what, line)}\n{line}\n")
    said = refusal(["--out", str(folder), *TINY], capsys)
    assert "line 2: no finished replay of this sweep; delete the line" in said


@pytest.mark.parametrize("content", ["", "no JSON\n", "no line", '{"a": 1}\nno line', "[1]\n"])
def test_a_file_that_is_no_record(
    content: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    (folder / "finished.jsonl").write_text(content)
    assert "is no record of a sweep" in refusal(["--out", str(folder), *TINY], capsys)
    assert (folder / "finished.jsonl").read_text() == content


def test_replays_that_do_not_belong_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["--out", str(out), *TINY, "--policy", "penelope,sglang-lru"]
    assert cli.main(["sweep", *arguments]) == 0
    capsys.readouterr()
    path = out / "finished.jsonl"
    first, one, other = path.read_text().splitlines()
    changed = json.loads(one)
    changed["first_time"] += 1
    path.write_text("\n".join([first, json.dumps(changed), other, ""]))
    assert "policies did different work" in refusal(arguments, capsys)


def test_a_sweep_that_runs_in_the_same_place(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        said = refusal(["--out", str(folder), *TINY], capsys)
    finally:
        os.close(handle)
    assert f"another sweep is running in {folder}: wait for it" in said


def test_a_full_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    said = refusal(["--out", str(tmp_path / "out"), *GRID, "--processes", "1"], capsys)
    assert "finished.jsonl cannot be written (No space left on device): make room" in said


def test_a_line_of_which_a_part_is_written(folder: Path) -> None:
    """A row is kept whole, or it is not there."""

    class Short(io.RawIOBase):
        def write(self, data: Any) -> int:
            return len(data) - 7

    kept = record.Record(folder / "finished.jsonl", Short(), {}, {})
    with pytest.raises(OutputError, match="No space left on device"):
        kept.add(Task(0, "penelope", 0), Row(0, 0, {}))
    assert not kept.rows


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is not None, reason="says what it says without Ray"
)
def test_ray_that_is_not_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(["--out", str(tmp_path / "out"), *TINY, "--ray"], capsys)
    assert f"this needs ray, which is not installed: run {sys.executable} -m pip install -e" in said
