"""What the page about sweeps says is what `penelope sweep` does."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

import click

from penelope import cli
from penelope.commands.sweep import sweep
from penelope.commands.sweep_options import chosen
from penelope.runtime.sweep.grid import cells
from tests.docs.documents import DOCS, blocks, table

PAGE = DOCS / "sweep.md"


def test_command_lines_are_understood() -> None:
    (shown,) = blocks(PAGE, "sh")
    assert isinstance(sweep, click.Command)
    for line in shown.splitlines():
        program, name, *arguments = shlex.split(line)
        assert (program, name) == ("penelope", "sweep")
        sweep.make_context("sweep", arguments)


def test_the_file_is_one(tmp_path: Path) -> None:
    (shown,) = blocks(PAGE, "toml")
    file = tmp_path / "sweep.toml"
    file.write_text(shown)
    asked = chosen({}, file)
    asked.workload.check()
    assert asked.workload.path == tmp_path / tomllib.loads(shown)["trace"]
    found = cells(asked.grids, asked.baseline)
    assert [(c.options.model, c.options.concurrency, c.options.scheduler) for c in found] == [
        *(("qwen3-8b", sessions, "lpm") for sessions in (2, 4, 8)),
        *(("qwen3-32b", 4, scheduler) for scheduler in ("lpm", "fcfs")),
    ]


def test_files_are_those_that_are_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = "--sessions 1 --max-context 34000 --policy penelope --processes 1".split()
    assert cli.main(["sweep", "--out", str(out), *options]) == 0
    assert {p.name for p in out.iterdir()} == {name for name, _ in table(PAGE, "file")}
