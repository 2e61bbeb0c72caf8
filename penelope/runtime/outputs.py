"""Result files: checked before the work, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from penelope.policy.errors import PenelopeError


class OutputError(PenelopeError):
    """A result file cannot be written."""


def check_writable(path: Path) -> None:
    """Raises `OutputError` if a file cannot be put there, before hours are spent on it."""
    if path.is_dir():
        raise OutputError(f"{path} is a folder: name a file in it")
    if path.exists() and not os.access(path, os.W_OK):
        raise OutputError(f"{path} exists and may not be written: name another file")
    folder = path.parent
    if not folder.is_dir():
        raise OutputError(f"{folder} is no folder: create it, or name a file elsewhere")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{folder} may not be written to: name a file elsewhere")


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a file beside `path`, then put it in its place in one step.

    Raises `OutputError`, and then `path` is as it was.
    """
    try:
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix
        )
        os.close(handle)
        beside = Path(name)
        try:
            write(beside)
            beside.chmod(0o666 & ~_umask())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror}): name another file"
        ) from error


def _umask() -> int:
    """The process's mask for new files; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
