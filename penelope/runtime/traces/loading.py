"""Opening a trace file: its format, its sessions, the selection of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from penelope.runtime import inputs
from penelope.runtime.traces import agentic, mooncake, weka
from penelope.runtime.traces.assemble import Assembler
from penelope.runtime.traces.errors import TraceError, one_line, quote
from penelope.runtime.traces.lines import Record, read_records
from penelope.runtime.traces.model import Trace
from penelope.runtime.traces.options import Selection
from penelope.runtime.traces.raw import RawSession


@dataclass(frozen=True, slots=True)
class Format:
    """How a format is told from the others, and read.

    A record is of this format when it has the fields `has` and none of `lacks`.
    """

    read: Callable[[Iterator[Record]], Iterator[tuple[int, RawSession]]]
    global_ids: bool
    has: tuple[str, ...]
    lacks: tuple[str, ...] = ()

    def matches(self, record: Record) -> bool:
        """Whether a record looks like one of this format."""
        fields = record.fields
        return all(f in fields for f in self.has) and not any(f in fields for f in self.lacks)


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "weka": Format(weka.read, False, ("requests",)),
        "mooncake": Format(mooncake.read, True, ("hash_ids",), ("requests", "session_id")),
        "agentic": Format(agentic.read, True, ("hash_ids", "session_id"), ("requests",)),
    }
)


def load(
    path: str | os.PathLike[str],
    format_name: str = "auto",
    selection: Selection | None = None,
) -> Trace:
    """Read a trace of one of `FORMATS`, or of the one its first record has (`auto`).

    `-` is standard input; a pipe is read once, like any file.  The whole file is read and checked,
    whatever part of it is selected.  Raises `TraceError` for
    an unknown format, a file that is unreadable, empty, damaged, not in the format or in more than
    one, and for a selection that it cannot satisfy.
    """
    if format_name != "auto" and format_name not in FORMATS:
        raise TraceError(
            f"--format {quote(format_name)} is not known", f"give auto, {', '.join(FORMATS)}"
        )
    file = Path(path)
    shown = inputs.shown(file)
    # Before it is opened: a pipe that has been read to its end may be gone.
    title = one_line(inputs.title(file))
    records = read_records(file)
    first = next(records, None)
    if first is None:
        raise TraceError("is empty", "give a trace with at least one record", path=shown)
    name = _detect(first) if format_name == "auto" else format_name
    chosen = FORMATS[name]
    assembler: Assembler | None = None
    for block_tokens, session in chosen.read(_only(name, chain([first], records))):
        if assembler is None:
            assembler = Assembler(
                block_tokens, selection or Selection(), global_ids=chosen.global_ids
            )
        assembler.add(session)
    if assembler is None:
        raise TraceError("holds no session", "give a trace with at least one", path=shown)
    return assembler.trace(title, name)


def _detect(first: Record) -> str:
    name = _looks_like(first)
    if name is None:
        fields = ", ".join(list(first.fields)[:8]) or "none"
        raise first.error(
            "",
            f"is of no known format (its fields: {fields})",
            f"give a {', '.join(FORMATS)} trace, or name its format with --format",
        )
    return name


def _looks_like(record: Record) -> str | None:
    return next((name for name, format_ in FORMATS.items() if format_.matches(record)), None)


def _only(name: str, records: Iterator[Record]) -> Iterator[Record]:
    """The records, as long as none is of another format than `name`."""
    for record in records:
        other = None if FORMATS[name].matches(record) else _looks_like(record)
        if other is not None:
            raise record.error(
                "",
                f"is of format {other} in a trace read as {name}",
                f"split the file by format, or read it with --format {other}",
            )
        yield record
