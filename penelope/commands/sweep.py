"""`penelope sweep`: every combination of settings, on all cores, as often as it takes."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path, PurePath
from typing import Any

import click

from penelope.cli import INTERRUPTED, complain, import_or_name_extra
from penelope.commands.effects import (
    NoEffect,
    require_host_room,
    require_inputs_once,
    require_sessions,
)
from penelope.commands.progress import progress_bar
from penelope.commands.replay_outcome import counted
from penelope.commands.sweep_options import chosen, options
from penelope.commands.sweep_outcome import show, write
from penelope.policy.errors import InvalidConfigError
from penelope.runtime.sweep.grid import Sweep, cells, narrowed
from penelope.runtime.sweep.record import Record, opened
from penelope.runtime.sweep.running import cores, run, run_on_ray, uninterrupted
from penelope.runtime.sweep.tables import compared


@click.command()
@click.option(
    "--out",
    "folder",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder of its results, and of what is finished: a new one, or that of the same sweep.",
)
@click.option(
    "--grid",
    "file",
    type=click.Path(path_type=Path),
    help="A TOML file with any of the options below; each [[grid]] in it is a grid of its own.",
)
@click.option("--processes", type=int, help="Replays at a time.  [default: one a core]")
@click.option("--ray", "on_ray", is_flag=True, help="Replay on Ray: RAY_ADDRESS, or locally.")
@options
def sweep(
    folder: Path, file: Path | None, processes: int | None, on_ray: bool, **given: Any
) -> int | None:
    """Replay every combination of settings, under every policy, on every group of sessions.

    Most options take lists: `--concurrency 2,4,8`; they mean what they mean to `penelope replay`.
    Every finished replay is kept at once: after an interruption the same command goes on.  OUT
    gets rows.csv (one row a setting, policy and group), summary.csv (groups together, and the
    comparison with the baseline), both in sweep.json, and sweep.png.
    """
    if processes is not None and processes < 1:
        raise InvalidConfigError(f"--processes is {processes}: give 1 or more")
    if on_ray:
        import_or_name_extra("ray")
        if processes is not None and "RAY_ADDRESS" in os.environ:
            raise NoEffect(
                "--processes has no effect with RAY_ADDRESS, whose cluster decides: leave it out"
            )
    # Before the file is read: it may name more inputs, which are looked at below.
    (trace_name,) = given["path"] or (None,)
    named = Path(trace_name) if trace_name else None
    require_inputs_once(named, given["model"] or (), file)
    asked = chosen(given, file)
    asked.workload.check()
    require_inputs_once(asked.workload.path, asked.models, file)
    grid = cells(asked.grids, asked.baseline)
    trace = asked.workload.trace()
    groups = tuple(asked.workload.split(trace))
    sessions = len(groups[0].sessions)
    if asked.concurrency is None:
        grid = narrowed(grid, sessions)
    else:
        require_sessions(max(asked.concurrency), sessions)
    for cell in grid:
        require_host_room(cell.setting, trace.unit_tokens)
    work = Sweep(grid, groups)
    work.check()
    with opened(folder, work) as record:
        before = len(record.rows)
        total = len(work.tasks())
        try:
            _finish(work, record, processes, on_ray=on_ray)
        except KeyboardInterrupt:
            complain(
                "penelope sweep",
                f"interrupted after {len(record.rows)} of {counted(total, 'replay')}: the same "
                "command goes on from there",
            )
            return INTERRUPTED
        found = compared(work, record.rows)
        title = (
            f"{PurePath(trace.name).name}: {counted(len(grid), 'setting')}, "
            f"{counted(len(work.groups), 'group')} of "
            f"{counted(len(work.groups[0].sessions), 'session')}, {counted(total, 'replay')}"
        )
        write(folder, work, record, found, title)
        show(work, found, f"{title}, {before:,} of them finished before" if before else title)
    return None


def _finish(work: Sweep, record: Record, processes: int | None, *, on_ray: bool) -> None:
    """Do what is not finished, with a progress bar on a terminal."""
    tasks = work.tasks()
    left = [task for task in tasks if task not in record.rows]
    if not left:
        return
    finished = (
        run_on_ray(work, left, processes) if on_ray else run(work, left, processes or cores())
    )
    with progress_bar() as progress, closing(finished):
        bar = progress.add_task("replays", total=len(tasks), completed=len(tasks) - len(left))
        for task, row in finished:
            with uninterrupted():
                record.add(task, row)
            progress.advance(bar)
