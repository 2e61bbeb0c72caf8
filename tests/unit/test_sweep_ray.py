"""`penelope sweep --ray` on a local Ray: the same rows as in this process."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.unit.sweeping import GRID, REPLAYS, command, finished, results, start

pytest.importorskip("ray", reason="needs Ray: pip install 'penelope-kv[ray]'")

pytestmark = pytest.mark.slow
"""Ray takes some seconds to start."""


def test_ray_changes_nothing(tmp_path: Path) -> None:
    alone, on_ray = tmp_path / "alone", tmp_path / "ray"
    for folder, how in ((alone, ["--processes", "1"]), (on_ray, ["--ray", "--processes", "2"])):
        done = subprocess.run(
            command(folder, *GRID, *how), capture_output=True, text=True, check=True
        )
        assert not done.stderr
    assert results(on_ray) == results(alone)
    assert sorted(finished(on_ray)) == sorted(finished(alone))


def test_a_sweep_that_was_killed_on_ray_goes_on_without_it(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    process = start(folder, *GRID, "--ray", "--processes", "1")
    while len(finished(folder)) < 2:
        assert process.poll() is None, process.communicate()
    # With the Ray that it started, of which a part would go on for a while.
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = finished(folder)
    assert len(before) < REPLAYS
    subprocess.run(
        command(folder, *GRID, "--processes", "1"), capture_output=True, text=True, check=True
    )
    assert finished(folder)[: len(before)] == before
    assert len(finished(folder)) == REPLAYS


def test_a_cluster_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path / "out", *GRID, "--ray"),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "RAY_ADDRESS": "127.0.0.1:1"},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "penelope sweep: no Ray answers at RAY_ADDRESS 127.0.0.1:1 ([Errno 111] Connection "
        "refused): start it, or unset RAY_ADDRESS\n"
    )
