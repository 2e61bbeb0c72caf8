"""`penelope sweep`: its tables, and that neither processes nor interruptions change them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penelope import cli
from penelope.runtime.replay.compare import COMPARED
from penelope.runtime.sweep import record
from penelope.runtime.sweep.grid import FIGURES, Row, Sweep, Task
from tests.unit.sweeping import GRID, REPLAYS, RESULTS, command, finished, results, start, table
from tests.unit.terminals import on_a_terminal

digest = record._digest_of_code


@pytest.fixture(scope="module", autouse=True)
def same_code() -> Iterator[None]:
    """Whoever edits the code while these tests run begins no other sweep in this process."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(record, "_digest_of_code", lambda: "as it is")
        yield


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep in one process, undisturbed."""
    folder = tmp_path_factory.mktemp("sweep") / "alone"
    assert cli.main(["sweep", "--out", str(folder), *GRID, "--processes", "1"]) == 0
    return folder


def test_one_row_a_setting_policy_and_group(alone: Path) -> None:
    rows = table(alone / "rows.csv")
    assert len(rows) == REPLAYS
    keys = [(row["device_tokens"], row["concurrency"], row["policy"], row["group"]) for row in rows]
    assert keys == [
        (capacity, concurrency, policy, group)
        for capacity in ("40000", "60000")
        for concurrency in ("2", "4")
        for policy in ("sglang-lru", "tail-block", "penelope")
        for group in "01"
    ]
    assert set(FIGURES) <= set(rows[0])
    document = json.loads((alone / "sweep.json").read_text())
    assert [str(row["ttft_mean_s"]) for row in document["rows"]] == [r["ttft_mean_s"] for r in rows]
    assert (alone / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_figures_are_those_of_replay(alone: Path, tmp_path: Path) -> None:
    """The same settings through `penelope replay`: figures, ratios, and groups that agree."""
    out = tmp_path / "out.json"
    one = [*GRID, "--capacity", "40000", "--concurrency", "4"]
    arguments = ["--device-tokens" if a == "--capacity" else a for a in one]
    assert cli.main(["replay", *arguments, "--json", str(out)]) == 0
    expected = json.loads(out.read_text())
    document = json.loads((alone / "sweep.json").read_text())

    def of_setting(row: dict[str, object]) -> bool:
        return (row["device_tokens"], row["concurrency"]) == (40000, 4)

    for row in filter(of_setting, document["rows"]):
        group = expected["replicates"][row["group"]]["policies"][row["policy"]]
        assert {name: row[name] for name in FIGURES} == {name: group[name] for name in FIGURES}
    compared = list(filter(of_setting, document["summary"]))
    assert [row["policy"] for row in compared] == ["sglang-lru", "tail-block", "penelope"]
    for row in compared:
        pooled = expected["policies"][row["policy"]]
        for name in ("requests", "recomputed_units", "mostly_lost_units", "evicted_tokens"):
            assert row[name] == pooled[name]
        for name in ("ttft_mean_s", "hit_rate"):
            assert row[name] == pytest.approx(pooled[name], rel=1e-12)
        for metric in COMPARED:
            ratio = expected["ratios"][row["policy"]][metric]
            assert row[f"{metric}_ratio"] == ratio["geometric_mean"]
            assert row[f"{metric}_better"] == ratio["groups_better"]
    assert any(row["recomputed_units_ratio"] < 0.9 for row in compared), "nothing to compare"


def test_the_summary_is_printed(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", "--out", str(alone), *GRID]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("generated (seed 0): 4 settings, 2 groups of 4 sessions, 24 replays")
    assert "24 of them finished before" in " ".join(shown.split())
    assert sum("penelope" in line for line in shown.splitlines()) == 4
    assert "geometric mean over 2 disjoint groups" in " ".join(shown.split())


def test_processes_change_nothing(alone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "two"
    done = subprocess.run(
        command(folder, *GRID, "--processes", "2"), capture_output=True, text=True, check=True
    )
    assert not done.stderr
    assert results(folder) == results(alone)
    assert sorted(finished(folder)) == sorted(finished(alone))


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def gone(session: int) -> bool:
    """Whether no process of a session is left."""
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_killed_sweep_goes_on_where_it_stopped(alone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    process = start(folder, *GRID, "--processes", "2")
    wait_for(lambda: len(finished(folder)) >= 3)
    process.kill()
    process.communicate()
    before = finished(folder)
    assert 3 <= len(before) < REPLAYS, "too fast to be killed on the way"
    wait_for(lambda: gone(process.pid))  # its processes end with it
    again = start(folder, *GRID, "--processes", "2")
    _, complaint = again.communicate()
    assert (again.returncode, complaint) == (0, "")
    after = finished(folder)
    assert after[: len(before)] == before
    assert len(after) == REPLAYS
    assert results(folder) == results(alone)


def test_what_is_finished_is_not_computed_again(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy(alone, tmp_path)
    path = folder / "finished.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    # The last replay is gone, and a figure of another is one that no replay would give.
    marked = json.loads(lines[5])
    marked["figures"]["ttft_p99_s"] = 123.25
    lines[5] = json.dumps(marked) + "\n"
    path.write_text("".join(lines[:-1]))
    performed = []
    perform = Sweep.perform

    def noted(self: Sweep, task: Task) -> Row:
        performed.append(task)
        return perform(self, task)

    monkeypatch.setattr(Sweep, "perform", noted)
    assert cli.main(["sweep", "--out", str(folder), *GRID, "--processes", "1"]) == 0
    last = json.loads(lines[-1])
    assert performed == [(last["cell"], last["policy"], last["group"])]
    shown = [row["ttft_p99_s"] for row in table(folder / "rows.csv")]
    assert shown.count("123.25") == 1
    assert len(shown) == REPLAYS


def test_a_line_that_was_cut_off_is_done_again(alone: Path, tmp_path: Path) -> None:
    folder = copy(alone, tmp_path)
    path = folder / "finished.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    assert cli.main(["sweep", "--out", str(folder), *GRID, "--processes", "1"]) == 0
    assert results(folder) == results(alone)
    assert finished(folder) == finished(alone)


def test_a_terminal_gets_a_progress_bar_that_begins_where_it_stopped(
    alone: Path, tmp_path: Path
) -> None:
    folder = copy(alone, tmp_path)
    path = folder / "finished.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    first = json.dumps({**json.loads(first), "code": digest()}) + "\n"
    path.write_text("".join([first, *rest[:-3]]))
    shown = on_a_terminal(command(folder, *GRID, "--processes", "1"))
    assert "replays" in shown
    assert "21/24" in shown
    assert "24/24" in shown
    assert "20/24" not in shown


def copy(folder: Path, to: Path) -> Path:
    """A sweep's folder with only what is finished."""
    target = to / "copy"
    target.mkdir()
    (target / "finished.jsonl").write_bytes((folder / "finished.jsonl").read_bytes())
    return target


@pytest.mark.parametrize("processes", ["1", "2"])
def test_an_interrupted_sweep_says_so_in_one_line(tmp_path: Path, processes: str) -> None:
    """As Ctrl-C does it: every process of the terminal's session is interrupted."""
    folder = tmp_path / "stopped"
    process = start(folder, *GRID, "--processes", processes)
    wait_for(lambda: len(finished(folder)) >= 2)
    os.killpg(process.pid, signal.SIGINT)
    shown, complaint = process.communicate(timeout=60)
    assert process.returncode == cli.INTERRUPTED
    assert not shown
    done = len(finished(folder))
    assert complaint == (
        f"penelope sweep: interrupted after {done} of 24 replays: the same command goes on from "
        "there\n"
    )
    assert [path.name for path in folder.iterdir()] == ["finished.jsonl"]
    wait_for(lambda: gone(process.pid))


def children(pid: int) -> list[int]:
    """The worker processes of a sweep."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(p) for p in found if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_a_worker_that_dies_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "bereft"
    process = start(folder, *GRID, "--processes", "2")
    wait_for(lambda: len(finished(folder)) >= 2)
    os.kill(children(process.pid)[0], signal.SIGKILL)
    shown, complaint = process.communicate(timeout=60)
    assert (process.returncode, shown) == (cli.USER_ERROR, "")
    assert complaint.startswith("penelope sweep: a process of the sweep died, perhaps for want of")
    assert len(complaint.splitlines()) == 1
    assert len(finished(folder)) < REPLAYS
    wait_for(lambda: gone(process.pid))


def test_results_are_replaced_whole(alone: Path) -> None:
    assert sorted(p.name for p in alone.iterdir()) == sorted(
        [*RESULTS, "finished.jsonl", "sweep.png"]
    )
