"""What `penelope replay` leaves behind: files, and tables on standard output."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from penelope.cli import import_or_name_extra
from penelope.runtime.outputs import (
    OutputError,
    check_writable,
    descriptor,
    write_text,
    write_whole,
)
from penelope.runtime.replay.compare import Comparison, Setting, as_json
from penelope.runtime.replay.plot import SUFFIXES as PLOT_SUFFIXES
from penelope.runtime.replay.plot import plot
from penelope.runtime.replay.table import (
    WIDTH,
    fleet_legend,
    fleet_table,
    legend,
    table,
    tiers_legend,
    tiers_table,
)
from penelope.runtime.traces import Trace


def write(
    result: Comparison,
    config: dict[str, object],
    title: str,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Write the files that were asked for."""
    if json_path is not None:
        write_text(json_path, json.dumps(as_json(result, config), indent=2) + "\n")
    if plot_path is not None:
        write_whole(plot_path, lambda beside: plot(result, title, beside))


def check_outputs(json_path: Path | None, plot_path: Path | None, read: Sequence[Path]) -> None:
    """Raises `PenelopeError` if the results could not be written when they are there."""
    if plot_path is not None:
        if plot_path.suffix.lower() not in PLOT_SUFFIXES:
            raise OutputError(
                f"--plot {plot_path} has no suffix that can be drawn: "
                f"name one that ends in {' or '.join(PLOT_SUFFIXES)}"
            )
        import_or_name_extra("matplotlib")
    taken = {os.path.realpath(path) for path in read}
    for output in (json_path, plot_path):
        if output is not None:
            if descriptor(output) is None and os.path.realpath(output) in taken:
                raise OutputError(f"{output} is named twice: give every file a name of its own")
            taken.add(os.path.realpath(output))
            check_writable(output)


@dataclass(frozen=True, slots=True)
class Shown:
    """What is said besides the tables."""

    title: str
    trace: Trace
    setting: Setting
    left_over: int
    """Sessions that fill no group."""
    elsewhere: bool
    """Whether standard output has the document, so that the tables go to standard error."""


def show(result: Comparison, shown: Shown) -> None:
    """Print the tables, and what they mean."""
    title, trace, setting = shown.title, shown.trace, shown.setting
    # A narrower window gets the lines broken, not the figures cut off.
    console = Console(highlight=False, markup=False, emoji=False, stderr=shown.elsewhere)
    console.width = max(console.width, WIDTH)
    console.print(title)
    omitted = trace.omitted
    for count, noun, why in (
        (omitted.sessions, "session", "left out: the first request is beyond --max-context"),
        (
            omitted.turns,
            "later request",
            "not sent: the first beyond --max-context, and all after it",
        ),
        (omitted.streams, "sub-agent", "left out: not asked for, or its session was cut off"),
        (shown.left_over, "session", "left over: --replicates makes groups of equal size"),
        (result.refused_sessions, "session", "refused: a request is larger than the device"),
    ):
        if count:
            console.print(f"{counted(count, noun)} {why}")
    console.print()
    console.print(table(result))
    console.print()
    if setting.host_tokens:
        console.print(tiers_table(result))
        console.print()
    if setting.fleet.replicas > 1:
        console.print(fleet_table(result))
        console.print()
    console.print(legend(result))
    if setting.fleet.replicas > 1:
        console.print(fleet_legend())
    if setting.host_tokens:
        console.print(tiers_legend())


def counted(number: int, noun: str) -> str:
    """A number of things, in words."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
