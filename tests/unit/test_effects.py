"""An option that changes nothing is refused by name; a title says what ran."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from penelope import cli
from penelope.runtime.model_config import load_model
from penelope.runtime.replay.compare import Ratio
from penelope.runtime.replay.table import change
from penelope.runtime.sweep.grid import Row, Sweep, Task
from tests.unit.replaying import weka, write
from tests.unit.test_inputs import CONFIG


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [weka(name, [640, 1915]) for name in "abcde"]
    return write(tmp_path / "t.jsonl", *rows)


def refusal(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(list(arguments)) == cli.USER_ERROR
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.count("\n") == 1
    return captured.err


USELESS = [
    ("--router cost", "--router has no effect with one replica: give --replicas"),
    ("--kv-events exact", "--kv-events has no effect without a router that hears of them"),
    (
        "--replicas 2 --router session --event-lag 1",
        "--event-lag has no effect without a router that hears of them: choose --router prefix or",
    ),
    ("--swap-tokens 2048", "--swap-tokens has no effect without a host: give --host-tokens"),
    ("--host-gbps 25", "--host-gbps has no effect without a host"),
    ("--transfers serial", "--transfers has no effect without a host"),
    ("--seed 3 --trace TRACE", "--seed has no effect with --trace"),
    ("--format weka", "--format has no effect without --trace"),
    (
        "--effective-tflops 300 --seconds-per-unit 1e-9",
        "--effective-tflops has no effect with --seconds-per-unit",
    ),
    ("--policy sglang-lru --block-tokens 128", "--block-tokens has no effect on policies that"),
    ("--host-tokens 1024", "--host-tokens 1024 has no effect with a swap buffer of 1024"),
    ("--host-tokens 1087 --swap-tokens 1024", "has no effect with a swap buffer of 1024"),
    ("--block-tokens 1000000000 --device-tokens 262144", "--block-tokens 1000000000 is more than"),
    ("--device-tokens 1000000000000000000", "--device-tokens is 1000000000000000000: give 10995"),
    ("--chunk-tokens 10000000000000", "--chunk-tokens is 10000000000000: give 10995"),
    ("--trace TRACE --concurrency 6", "--concurrency 6 is more than the 5 sessions of a group"),
    ("--sessions 1 --concurrency 2", "--concurrency 2 is more than the 1 session of a group"),
    ("--shared-prefix all:1000000000", "'all:1000000000' is too long; give 16777216 tokens at"),
]


@pytest.mark.parametrize(("options", "says"), USELESS)
@pytest.mark.parametrize("command", ["replay", "sweep --out OUT"])
def test_an_option_without_effect_is_refused(
    command: str, options: str, says: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = trace.parent / "out"
    text = f"{command} {options}".replace("TRACE", str(trace)).replace("OUT", str(out))
    assert says in refusal(text.split(), capsys)
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("replay --no-subagents", "--subagents has no effect without --trace"),
        ("replay --sticky-shared --policy tail-block", "--sticky-shared has no effect on these"),
        ("sweep --out o --concurrency 2,,4", "'2,,4' names nothing at a comma"),
        ("sweep --out o --sticky-shared true --policy sglang-lru", "--sticky-shared has no effect"),
        ("cost --model qwen3-8b --context 1" + "0" * 400, "--context 1000"),
        ("cost --model qwen3-8b --context 9000 --append 1" + "0" * 40, "--append 1000"),
    ],
)
def test_more_of_them(arguments: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refusal(arguments.split(), capsys)


def test_an_option_with_an_effect_somewhere_is_taken(trace: Path) -> None:
    """In a sweep it need not have one everywhere, and what differs in it alone is one setting."""
    options = (
        f"sweep --out {trace.parent / 'out'} --trace {trace} --host-tokens 0,4096 "
        "--swap-tokens 1024,2048 --policy penelope --processes 1 --concurrency 1"
    )
    assert cli.main(options.split()) == 0
    with (trace.parent / "out" / "summary.csv").open(newline="") as file:
        rows = [(row["host_tokens"], row["swap_tokens"]) for row in csv.DictReader(file)]
    assert rows == [("0", "1024"), ("4096", "1024"), ("4096", "2048")]


# --- what ran -------------------------------------------------------------------------------------


def test_the_title_counts_the_sessions_that_run(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four at a time are the default: of three that fit the device, three run."""
    write(trace, *(weka(n, [640]) for n in "abc"), *(weka(n, [64_000]) for n in "de"))
    options = f"replay --trace {trace} --policy penelope --device-tokens 20000".split()
    assert cli.main(options) == 0
    assert "3 requests, 3 sessions at a time" in capsys.readouterr().out
    assert cli.main([*options, "--concurrency", "5"]) == 0
    assert "3 requests, 3 sessions at a time" in capsys.readouterr().out


def test_a_sweep_counts_the_sessions_that_run(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(trace, *(weka(n, [640]) for n in "abc"), *(weka(n, [64_000]) for n in "de"))
    out = trace.parent / "out"
    options = f"sweep --trace {trace} --policy penelope --processes 1 --device-tokens 20000"
    assert cli.main([*options.split(), "--out", str(out), "--concurrency", "3,5"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "3 sessions of a group at most fit 20,000 device tokens: with concurrency 5 no" in shown
    # Where nobody asked for more than there are, what is written down is what ran.
    write(trace, weka("a", [640]), weka("b", [640]))
    assert cli.main([*options.split(), "--out", str(trace.parent / "other")]) == 0
    with (trace.parent / "other" / "rows.csv").open(newline="") as file:
        assert [row["concurrency"] for row in csv.DictReader(file)] == ["2"]


def test_sessions_that_fill_no_group_are_counted(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = f"replay --trace {trace} --policy penelope --replicates 2 --concurrency 2"
    assert cli.main(options.split()) == 0
    assert "1 session left over: --replicates makes groups of equal size" in capsys.readouterr().out


# --- how a model is named -------------------------------------------------------------------------


def test_a_model_has_one_name_everywhere(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its file's, not its type's: two sizes of one type differ in nothing else."""
    for name in ("small", "large"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "mine.json").write_text(json.dumps(CONFIG))
    assert load_model(str(tmp_path / "small")).name == "small/config.json"
    assert load_model(str(tmp_path / "mine.json")).name == "mine.json"
    assert cli.main(["cost", "--model", str(tmp_path / "small"), "--context", "9000"]) == 0
    assert capsys.readouterr().out.startswith("small/config.json: a token at position p costs")
    common = ["--trace", str(trace), "--policy", "penelope"]
    assert cli.main(["replay", *common, "--model", str(tmp_path / "mine.json")]) == 0
    assert "mine.json, lpm" in " ".join(capsys.readouterr().out.split())
    models = ",".join(str(tmp_path / name) for name in ("small", "large", "mine.json"))
    out = ["--out", str(tmp_path / "out"), "--processes", "1"]
    assert cli.main(["sweep", *common, "--model", models, *out]) == 0
    shown = capsys.readouterr().out
    assert all(n in shown.split() for n in ("small/config.json", "large/config.json", "mine.json"))


def test_two_files_of_one_name_are_told_apart(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.json").write_text(json.dumps(CONFIG))
    models = ",".join(str(tmp_path / name / "m.json") for name in ("one", "two"))
    options = ["--trace", str(trace), "--policy", "penelope", "--processes", "1"]
    assert cli.main(["sweep", *options, "--model", models, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert f"{tmp_path}/one/m.json" in shown
    assert f"{tmp_path}/two/m.json" in shown


# --- ties -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [
        (Ratio(1.0, 0, 2, 2), "0%"),
        (Ratio(0.9999, 1, 2, 0), "0% 1/2"),
        (Ratio(1.0001, 0, 2, 1), "0% 0/2"),
        (Ratio(0.984, 2, 2, 0), "-2% 2/2"),
        (Ratio(1.016, 0, 2, 0), "+2% 0/2"),
        (Ratio(None, 0, 2, 2), "-"),
    ],
)
def test_ties_are_neither_better_nor_worse(ratio: Ratio, shown: str) -> None:
    assert change(ratio, counted=True) == shown


def test_a_tie_is_shown_as_one(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With room for everything no policy differs from another."""
    options = f"replay --trace {trace} --replicates 2 --concurrency 2 --policy sglang-lru,penelope"
    assert cli.main(options.split()) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("penelope")]
    assert row.split()[2] == "0%"
    assert "0/2" not in row
    assert "-0%" not in row


def test_nothing_is_replayed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that differ only in what has no effect there are one."""
    performed: list[Task] = []
    perform = Sweep.perform

    def counted(work: Sweep, task: Task) -> Row:
        performed.append(task)
        return perform(work, task)

    monkeypatch.setattr(Sweep, "perform", counted)
    options = (
        f"sweep --out {tmp_path / 'out'} --sessions 2 --max-context 34000 --policy penelope "
        "--host-tokens 0,65536 --transfers overlapped,serial --host-gbps 25,50 --processes 1"
    )
    assert cli.main(options.split()) == 0
    assert len(performed) == 1 + 4
