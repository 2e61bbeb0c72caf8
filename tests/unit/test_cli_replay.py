"""`penelope replay` and `penelope demo` as a user meets them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from penelope import cli
from penelope.policy import POLICIES
from penelope.runtime.replay.compare import COMPARED, Summary
from tests.unit.replaying import weka, write
from tests.unit.terminals import on_a_terminal

NAMES = list(POLICIES)

SMALL = "replay --sessions 4 --max-context 34000 --device-tokens 60000 --concurrency 4".split()
"""Some two hundred generated requests, on a device that must evict."""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two sessions of 1,920 and 2,560 tokens at most, in 64-token blocks."""
    return write(tmp_path / "a trace.jsonl", weka("a", [640, 1915]), weka("b", [640, 2555]))


# --- results --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, str]:
    """One run with everything asked for: the document, the picture and what was printed."""
    folder = tmp_path_factory.mktemp("replay")
    results, picture = folder / "out.json", folder / "out.png"
    command = [sys.executable, "-m", "penelope", *SMALL, "--replicates", "2"]
    command += ["--json", str(results), "--plot", str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not done.stderr, "no progress bar and no warning where nobody looks"
    assert sorted(folder.iterdir()) == [results, picture]
    return json.loads(results.read_text()), picture, done.stdout


def test_the_document_has_every_figure_of_every_policy(
    outcome: tuple[dict[str, Any], Path, str],
) -> None:
    document = outcome[0]
    assert set(document) == {
        *("config", "policies", "ratios", "replicates", "refused_sessions", "replicas"),
    }
    for name in NAMES:
        (alone,) = document["replicas"][name]
        assert alone["requests"] == document["policies"][name]["requests"]
        assert alone["evicted_tokens"] == document["policies"][name]["evicted_tokens"]
        assert alone["hit_rate"] == document["policies"][name]["hit_rate"]
        assert alone["busy_s"] > 0
    assert len(document["replicates"]) == 2
    kinds = {"int": int, "float": float}
    for policies in (document["policies"], *(r["policies"] for r in document["replicates"])):
        assert list(policies) == NAMES
        for figures in policies.values():
            assert set(figures) >= {
                *("requests", "ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "jct_mean_s"),
                *("hit_rate", "computed_tokens", "recomputed_units", "evicted_tokens"),
                *("holes_per_request", "over_evicted_tokens", "nodes_max", "policy_seconds"),
            }
            for field in fields(Summary):
                assert isinstance(figures[field.name], kinds[str(field.type)]), field.name
        first = {f["computed_units"] - f["recomputed_units"] for f in policies.values()}
        assert len(first) == 1
        assert policies["sglang-lru"]["recomputed_units"] > 0, "too much room to compare anything"
        assert policies["penelope"]["holes_per_request"] > 0
    for name in NAMES:
        assert set(document["ratios"][name]) == set(COMPARED)
        assert document["ratios"][name]["ttft_mean_s"]["groups"] == 2


def test_the_document_says_what_was_replayed(outcome: tuple[dict[str, Any], Path, str]) -> None:
    config = outcome[0]["config"]
    assert config["trace"] == "generated (seed 0)"
    assert (config["sessions"], config["replicates"], config["concurrency"]) == (4, 2, 4)
    assert (config["device_tokens"], config["unit_tokens"]) == (60000, 64)
    assert (config["model"], config["scheduler"]) == ("qwen3-8b", "lpm")
    # 4 * heads * head_dim * layers operations a unit, at 400e12 a second.
    assert config["timing"]["seconds_per_unit"] == pytest.approx(4 * 32 * 128 * 36 / 400e12)
    assert len(set(config["digest"])) == 2


def test_the_table_is_printed_within_80_columns(outcome: tuple[dict[str, Any], Path, str]) -> None:
    lines = outcome[2].splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in POLICIES]
    assert rows == NAMES
    assert "geometric mean over 2 disjoint groups" in " ".join(outcome[2].split())


def test_the_picture_is_written(outcome: tuple[dict[str, Any], Path, str]) -> None:
    assert outcome[1].read_bytes().startswith(b"\x89PNG")
    assert outcome[1].stat().st_size > 20_000


def test_results_do_not_depend_on_the_process(tmp_path: Path) -> None:
    documents = []
    for seed in ("1", "2"):
        path = tmp_path / f"{seed}.json"
        subprocess.run(
            [sys.executable, "-m", "penelope", *SMALL, "--json", str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        document = json.loads(path.read_text())
        for policies in (document["policies"], document["replicates"][0]["policies"]):
            for figures in policies.values():
                assert figures.pop("policy_seconds") > 0
        documents.append(document)
    assert documents[0] == documents[1]
    assert documents[0]["policies"]["penelope"]["evicted_tokens"] > 0


def test_the_seed_decides_what_is_generated(tmp_path: Path) -> None:
    digests = set()
    for seed in ("0", "0", "1"):
        assert cli.main([*SMALL, "--seed", seed, "--json", str(tmp_path / "out.json")]) == 0
        digests.add(json.loads((tmp_path / "out.json").read_text())["config"]["digest"][0])
    assert len(digests) == 2


def test_a_trace_is_named_by_its_file_and_its_sessions_counted(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--device-tokens 2000 --policy penelope,sglang-lru --concurrency 1".split()
    assert cli.main(["replay", "--trace", str(trace), *options]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("a trace.jsonl: 2 requests, 1 session at a time, 2,000 tokens of KV")
    assert "1 session refused: a request is larger than the device" in shown
    assert str(trace.parent) not in shown


def test_what_a_selection_leaves_out_is_said(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(trace, weka("a", [64 * 90]), weka("b", [64, 640, 6400]), weka("c", [64]))
    assert cli.main(["replay", "--trace", str(trace), "--max-context", "1000"]) == 0
    shown = capsys.readouterr().out
    assert "1 session left out: the first request is beyond --max-context" in shown
    assert "1 later request not sent" in shown


def test_square_brackets_in_a_name_are_no_markup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "[red]x.jsonl", weka("a", [640]))
    assert cli.main(["replay", "--trace", str(path), "--policy", "penelope"]) == 0
    assert capsys.readouterr().out.startswith("[red]x.jsonl: 1 request, 1 session at")


def test_the_table_is_printed_although_a_file_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may fill up during the replay: that must not cost its result."""

    def full(self: Path, *_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    path = tmp_path / "out.json"
    assert cli.main([*SMALL, "--policy", "penelope", "--json", str(path)]) == cli.USER_ERROR
    captured = capsys.readouterr()
    assert "\npenelope " in captured.out
    assert captured.err == (
        f"penelope replay: {path} cannot be written (No space left on device): name another file\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_reader_that_leaves_costs_no_file(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    command = f"{sys.executable} -m penelope {' '.join(SMALL)} --json {path} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert json.loads(path.read_text())["policies"]


# --- progress and interruption --------------------------------------------------------------------


def test_a_terminal_gets_a_progress_bar_that_counts_to_the_end(trace: Path) -> None:
    options = ["--device-tokens", "2000", "--policy", "penelope"]
    command = [sys.executable, "-m", "penelope", "replay", "--trace", str(trace), *options]
    shown = on_a_terminal(command)
    # Two of the four requests belong to a session that is refused: they are not waited for.
    assert "2/2" in shown
    assert "penelope" in shown


def test_a_pipe_gets_none_even_where_colour_is_forced() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penelope", *SMALL, "--policy", "penelope"],
        env={**os.environ, "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr


def test_an_interrupted_replay_leaves_nothing(tmp_path: Path) -> None:
    """Status 130, one line, no result and nothing beside it."""
    ready = tmp_path / "ready"
    script = f"""
import pathlib, sys
from penelope import cli
from penelope.runtime.replay import closed_loop
class Loop(closed_loop._Loop):
    def run(self):
        pathlib.Path({str(ready)!r}).touch()
        return super().run()
closed_loop._Loop = Loop
sys.exit(cli.main(sys.argv[1:]))
"""
    folder = tmp_path / "results"
    folder.mkdir()
    outputs = ["--json", str(folder / "out.json"), "--plot", str(folder / "out.png")]
    process = subprocess.Popen(
        [sys.executable, "-c", script, "replay", "--sessions", "400", *outputs],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not ready.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    shown, complaint = process.communicate()
    assert process.returncode == cli.INTERRUPTED
    assert (shown, complaint.strip()) == ("", "penelope: interrupted")
    assert not list(folder.iterdir())


# --- the demonstration ----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_demonstration_draws_where_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo"]) == 0
    shown = capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["penelope-demo.png"]
    assert "Drawn in penelope-demo.png" in shown
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    assert float(rows["penelope"][1]) < float(rows["sglang-lru"][1])


def test_the_demonstration_refuses_what_it_cannot_draw(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--plot", "out.txt"]) == cli.USER_ERROR
    assert capsys.readouterr().err.startswith("penelope demo: --plot out.txt has no suffix")
