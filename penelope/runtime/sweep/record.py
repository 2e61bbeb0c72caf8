"""What a sweep has finished, in one file that survives its end whenever that comes.

The first line says which sweep it is; every further line is one finished replay, written and
synchronised in one go.  A line that was cut off by the end of the process is not one, and its
replay is done again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any

from penelope.runtime.outputs import OutputError, write_whole
from penelope.runtime.replay.options import Options
from penelope.runtime.sweep.grid import FIGURES, Row, Sweep, SweepError, Task

FINISHED = "finished.jsonl"
_VERSION = 1


def settings(sweep: Sweep) -> dict[str, Any]:
    """All that the figures of a sweep depend on, as it is written down."""
    first = sweep.groups[0]
    return {
        "sweep": _VERSION,
        "code": _digest_of_code(),
        "trace": PurePath(first.name).name,
        "sessions": [len(group.sessions) for group in sweep.groups],
        "groups": [group.digest() for group in sweep.groups],
        "cells": [
            {
                "options": asdict(cell.options),
                # A model may be a file, of which the name says little.
                "cost": str(cell.setting.cost),
                "policies": list(cell.policies),
                "baseline": cell.baseline,
            }
            for cell in sweep.cells
        ],
    }


class Record:
    """The finished replays of one sweep, on disk and in memory."""

    def __init__(
        self,
        path: Path,
        file: io.RawIOBase | io.BytesIO,
        settings: dict[str, Any],
        rows: dict[Task, Row],
    ) -> None:
        self.path = path
        self.settings = settings
        """What the sweep was when it was opened: the code may be another by its end."""
        self.rows = rows
        self._file = file

    def add(self, task: Task, row: Row) -> None:
        """Keep a finished replay.  It is on disk when this returns.  Raises `OutputError`."""
        line = json.dumps({**task._asdict(), **row._asdict()}, separators=(",", ":")) + "\n"
        try:
            if self._file.write(line.encode()) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self.rows[task] = row


@contextmanager
def opened(folder: Path, sweep: Sweep) -> Iterator[Record]:
    """The record of this sweep in `folder`, which is made if it does not exist.

    Raises `SweepError` where another sweep is kept or runs there, or where lines do not belong to
    this one; `OutputError` where nothing can be written.
    """
    path = folder / FINISHED
    with ExitStack() as stack:
        try:
            folder.mkdir(exist_ok=True)
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise OutputError(
                f"--out {folder} is no folder to write to ({error.strerror}): name another"
            ) from error
        stack.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SweepError(f"another sweep is running in {folder}: wait for it") from error
        try:
            ours = settings(sweep)
            rows = _begun(path, sweep, ours)
            # Unbuffered: what could not be written is not tried again when the file is closed.
            file = stack.enter_context(path.open("ab", buffering=0))
        except OSError as error:
            raise _unwritable(path, error) from error
        yield Record(path, file, ours, rows)


def _begun(path: Path, sweep: Sweep, ours: dict[str, Any]) -> dict[Task, Row]:
    """What is finished already, after the first line is there and a cut-off last line is not."""
    if not path.exists():
        others = [p.name for p in path.parent.iterdir() if not p.name.startswith(".penelope-")]
        if others:
            raise SweepError(
                f"{path.parent} holds {min(others)} but no sweep: name a new folder with --out"
            )
        header = json.dumps(ours, separators=(",", ":")) + "\n"
        write_whole(path, lambda beside: _text(beside, header))
        return {}
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    lines = whole.splitlines()
    _require_same(path, lines[0] if lines else b"", ours)
    expected = set(sweep.tasks())
    rows = dict(_row(path, number, line, expected) for number, line in enumerate(lines[1:], 2))
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    return rows


def _require_same(path: Path, first: bytes, ours: dict[str, Any]) -> None:
    try:
        theirs = json.loads(first)
    except ValueError:
        theirs = None
    if not isinstance(theirs, dict) or "sweep" not in theirs:
        raise SweepError(f"{path} is no record of a sweep: name a new folder with --out")
    if theirs != ours:
        raise SweepError(
            f"{path} is of another sweep ({_difference(theirs, ours)}): "
            "name a new folder with --out, or repeat that sweep's command"
        )


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    said = {
        "sweep": "another format",
        "code": "made by other code than this",
        "trace": "other sessions",
        "sessions": "other sessions",
        "groups": "other sessions",
    }
    for field, difference in said.items():
        if theirs.get(field) != ours[field]:
            return difference
    axes = [
        name
        for name in (*(field.name for field in fields(Options)), "policies", "baseline")
        if _values(theirs, name) != _values(ours, name)
    ]
    return f"other values of {', '.join(axes)}" if axes else "other cells"


def _values(settings: Mapping[str, Any], name: str) -> set[str]:
    cells = settings.get("cells", [])
    return {str(cell.get("options", {}).get(name, cell.get(name))) for cell in cells}


def _row(path: Path, number: int, line: bytes, expected: set[Task]) -> tuple[Task, Row]:
    try:
        found = json.loads(line)
        task = Task(*(found[field] for field in Task._fields))
        row = Row(*(found[field] for field in Row._fields))
        if task in expected and set(row.figures) == set(FIGURES):
            return task, row
    except (ValueError, KeyError, TypeError):
        pass
    raise SweepError(f"{path}, line {number}: no finished replay of this sweep; delete the line")


def _digest_of_code() -> str:
    """SHA-256 of the sources that decide what a replay gives."""
    sha = hashlib.sha256()
    for package in ("penelope.policy", "penelope.runtime"):
        (root,) = import_module(package).__path__
        for path in sorted(Path(root).rglob("*.py")):
            sha.update(f"{path.relative_to(root)}\0".encode())
            sha.update(path.read_bytes())
    return sha.hexdigest()


def _unwritable(path: Path, error: OSError) -> OutputError:
    return OutputError(
        f"{path} cannot be written ({error.strerror or error}): make room, and the same command "
        "goes on"
    )


def _text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
