"""Result files: checked before the work, written whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penelope.policy.errors import PenelopeError

_NAMED = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}


class OutputError(PenelopeError):
    """A result file cannot be written."""


def descriptor(path: Path) -> int | None:
    """The open file that a name stands for: `-` and /dev/stdout are standard output.

    Such a file is written to.  Putting another in its place would cut off who holds it open.
    """
    name = str(path)
    if name in _NAMED:
        return _NAMED[name]
    found = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d{1,6})", name)
    return int(found[1]) if found else None


def is_standard_output(path: Path) -> bool:
    """Whether a result goes where the tables go."""
    return descriptor(path) == 1


def check_writable(path: Path) -> None:
    """Raises `OutputError` if a file cannot be put there, before hours are spent on it.

    A file is put there for a moment, under another name: permission bits alone do not tell.
    """
    number = descriptor(path)
    if number is not None:
        with _named(path):
            if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                raise OSError(errno.EBADF, "it is open for reading only")
        return
    with _file_beside(path):
        pass


def write_text(path: Path, text: str) -> None:
    """Put a text there: into an open file as it is, elsewhere whole or not at all.

    Raises `OutputError`.
    """
    number = descriptor(path)
    if number is None:
        write_whole(path, lambda beside: none(beside.write_text(text, encoding="utf-8")))
        return
    with _named(path):
        sys.stdout.flush()
        with os.fdopen(os.dup(number), "w", encoding="utf-8") as file:
            file.write(text)


def none(_written: int) -> None:
    """For writers that return a length."""


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a file beside `path`, then put it in its place in one step.

    Raises `OutputError`, and then `path` is as it was.
    """
    with _file_beside(path) as (beside, target):
        write(beside)
        mode = _mode(target)
        beside.chmod(0o666 & ~_umask() if mode is None else stat.S_IMODE(mode))
        beside.replace(target)


@contextmanager
def _file_beside(path: Path) -> Iterator[tuple[Path, Path]]:
    """A new empty file of the same suffix, and what it may replace.  Nothing of it stays.

    Raises `OutputError`, also for what goes wrong while it is used.
    """
    with _named(path):
        # Through a symbolic link to what it names: the link stays.
        target = Path(os.path.realpath(path))
        _require_replaceable(path, target)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".penelope-", suffix=path.suffix)
        try:
            os.close(handle)
            yield Path(name), target
        finally:
            Path(name).unlink(missing_ok=True)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE and is_standard_output(path):
            raise  # a reader that has gone is no error
        raise OutputError(
            f"{path} cannot be written ({error.strerror or error}): name another file"
        ) from error


def _require_replaceable(path: Path, target: Path) -> None:
    if not target.parent.is_dir():
        raise OutputError(f"{target.parent} is no folder: create it, or name a file elsewhere")
    mode = _mode(target)
    if mode is None:
        return
    if stat.S_ISDIR(mode):
        raise OutputError(f"{path} is a folder: name a file in it")
    if not stat.S_ISREG(mode):
        # A device or a pipe: putting a file in its place would not write to it but remove it.
        raise OutputError(f"{path} is not a regular file: name another file")
    if not os.access(target, os.W_OK):
        raise OutputError(f"{path} exists and may not be written: name another file")


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _umask() -> int:
    """The process's mask for new files; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
