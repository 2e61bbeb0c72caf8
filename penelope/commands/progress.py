"""Progress on a terminal, and nothing where nobody looks."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def progress_bar() -> Progress:
    """A bar for each task on standard error, gone when it is left."""
    return Progress(
        TextColumn("{task.description:<18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        # Not the console's opinion: it takes a pipe for a terminal where colour is forced.
        disable=not sys.stderr.isatty(),
    )
