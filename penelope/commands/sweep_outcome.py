"""What `penelope sweep` leaves behind: files, and a table on standard output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from penelope.commands.replay_outcome import counted
from penelope.runtime.outputs import write_whole
from penelope.runtime.replay.compare import fitting
from penelope.runtime.replay.digits import three_digits
from penelope.runtime.replay.table import WIDTH, change
from penelope.runtime.sweep.grid import Sweep
from penelope.runtime.sweep.plot import plot
from penelope.runtime.sweep.record import Record
from penelope.runtime.sweep.tables import (
    Compared,
    named_values,
    summary_rows,
    tidy_rows,
    varying,
    write_csv,
)


def write(
    folder: Path, sweep: Sweep, record: Record, found: Sequence[Compared], title: str
) -> None:
    """Write all results into the folder of the sweep."""
    tidy, summary = tidy_rows(sweep, record.rows), summary_rows(sweep, found)
    document = json.dumps(
        {"settings": record.settings, "rows": tidy, "summary": summary}, separators=(",", ":")
    )
    write_whole(folder / "rows.csv", lambda beside: write_csv(beside, tidy))
    write_whole(folder / "summary.csv", lambda beside: write_csv(beside, summary))
    write_whole(folder / "sweep.json", lambda beside: _text(beside, f"{document}\n"))
    write_whole(folder / "sweep.png", lambda beside: plot(sweep, found, title, beside))


def _text(path: Path, document: str) -> None:
    path.write_text(document, encoding="utf-8")


def show(sweep: Sweep, found: Sequence[Compared], title: str) -> None:
    """Print the summary: one row a setting and policy."""
    options = varying(sweep.cells)
    shown = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, show_edge=False)
    for name in options:
        shown.add_column(name.replace("_", " "), justify="right", no_wrap=True)
    shown.add_column("policy", no_wrap=True)
    for heading in ("TTFT s", "change", "hits", "recomputed"):
        shown.add_column(heading, justify="right", no_wrap=True)
    before = None
    for one in found:
        cell = sweep.cells[one.cell]
        base = one.policy == cell.baseline
        values = named_values(sweep.cells, cell)
        own = [_short(values[name]) if one.cell != before else "" for name in options]
        shown.add_row(
            *own,
            one.policy,
            three_digits(one.ttft_mean_s),
            "" if base else change(one.ratios["ttft_mean_s"], counted=True),
            f"{100 * one.hit_rate:.1f}%",
            "" if base else change(one.ratios["recomputed_units"], counted=False),
        )
        before = one.cell
    console = Console(highlight=False, markup=False, emoji=False)
    wide = console.options.update(width=1000)
    # A narrower window gets the lines broken, not the figures cut off.
    console.width = max(console.width, WIDTH, console.measure(shown, options=wide).maximum)
    console.print(title)
    console.print()
    console.print(shown)
    console.print()
    console.print(_legend(sweep))
    for note in _notes(sweep):
        console.print(note)


def _legend(sweep: Sweep) -> str:
    columns = (
        "TTFT: mean time to first token.  hits: prompt tokens not computed.  recomputed: cost of "
        "computing what had been cached before."
    )
    if all(len(cell.policies) == 1 for cell in sweep.cells):
        return columns
    against = ", ".join(dict.fromkeys(cell.baseline for cell in sweep.cells))
    groups = len(sweep.groups)
    if groups == 1:
        return (
            f"{columns}\nChanges are against {against}.  This is one group, which an irrelevant "
            "change moves by 10 to 30 %: use --replicates for a claim."
        )
    return (
        f"{columns}\nChanges are against {against}: geometric mean over {groups} disjoint groups "
        "of sessions, and in how many of them it is better."
    )


def _notes(sweep: Sweep) -> list[str]:
    """Where fewer sessions run at a time than a setting says."""
    found = []
    for cell in sweep.cells:
        runnable = max(len(group.sessions) for group in fitting(sweep.groups, cell.setting))
        if runnable < cell.options.concurrency:
            found.append(
                f"{counted(runnable, 'session')} of a group at most "
                f"{'fits' if runnable == 1 else 'fit'} {cell.options.device_tokens:,} device "
                f"tokens: with concurrency {cell.options.concurrency} no more run at a time."
            )
    return list(dict.fromkeys(found))


def _short(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
