"""Reading JSON lines so that whatever is wrong is reported with its place."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from penelope.runtime.traces.errors import TraceError, quote

_GZIP_MAGIC = b"\x1f\x8b"
_DAMAGED = "the file is damaged or not complete: fetch it again"


@dataclass(frozen=True, slots=True)
class Record:
    """One JSON object of a file, or one inside it, that knows where it is.

    Its readers raise `TraceError` naming file, line and field when a value is not what a replay
    can use.
    """

    path: Path
    line: int
    fields: Mapping[str, object]
    prefix: str = ""

    def error(
        self, field: str, problem: str, remedy: str = "correct the line or remove it"
    ) -> TraceError:
        """The error about one field of this record; "" is the record itself."""
        name = f"{self.prefix}{field}".rstrip(".") or None
        return TraceError(problem, remedy, path=self.path, line=self.line, field=name)

    def has(self, field: str) -> bool:
        """Whether the field is there and not null."""
        return self.fields.get(field) is not None

    def text(self, field: str) -> str:
        """A string that is not empty."""
        value = self._required(field)
        if not isinstance(value, str) or not value:
            raise self.error(field, f"{quote(value)} is not a name")
        return value

    def integer(self, field: str, low: int, high: int) -> int:
        """A whole number from `low` to `high`."""
        return self.integer_in(field, self._required(field), low, high)

    def integer_in(self, field: str, value: object, low: int, high: int) -> int:
        """`value`, found somewhere inside `field`, as a whole number from `low` to `high`."""
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(field, f"{quote(value)} is not a whole number")
        if not low <= value <= high:
            raise self.error(field, f"{quote(value)} is not between {low} and {high}")
        return value

    def number(self, field: str, low: float = 0.0) -> float:
        """A finite number from `low`."""
        value = self._required(field)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(field, f"{quote(value)} is not a number")
        if not low <= value <= 1e15:  # NaN compares false; beyond lies no time of any trace
            raise self.error(field, f"{quote(value)} is not between {low:g} and 1e15")
        return float(value)

    def items(self, field: str) -> list[object]:
        """A list, as it stands."""
        value = self._required(field)
        if not isinstance(value, list):
            raise self.error(field, f"{quote(value)} is not a list")
        return value

    def records(self, field: str) -> Iterator[Record]:
        """The objects of a list."""
        for i, item in enumerate(self.items(field)):
            name = f"{self.prefix}{field}[{i}]."
            if not isinstance(item, dict):
                raise self.error(f"{field}[{i}]", f"{quote(item)} is not an object")
            yield Record(self.path, self.line, item, name)

    def _required(self, field: str) -> object:
        if not self.has(field):
            raise self.error(field, "is missing")
        return self.fields[field]


def read_records(path: Path) -> Iterator[Record]:
    """The objects of a JSON-lines file, plain or gzipped (told by its content); blank lines pass.

    Raises `TraceError`: the file cannot be read, is not gzip to its end, or a line is not one
    JSON object.
    """
    line = 0
    try:
        with _open(path) as file:
            for raw in file:
                line += 1
                if raw.strip():
                    yield Record(path, line, _parse(path, line, raw))
    except EOFError as error:
        raise TraceError(
            "the compressed data ends early", _DAMAGED, path=path, line=line + 1
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(
            f"the compressed data is corrupt ({error})", _DAMAGED, path=path, line=line + 1
        ) from error
    except OSError as error:
        raise TraceError(
            f"cannot be read ({error.strerror or error})",
            "give --trace the path of a readable JSON-lines file, plain or .gz",
            path=path,
        ) from error


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP_MAGIC
    return cast("IO[bytes]", gzip.open(path)) if packed else path.open("rb")


def _parse(path: Path, line: int, raw: bytes) -> dict[str, object]:
    try:
        value = json.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise TraceError(
            f"is not UTF-8 text (byte {error.start})",
            "give a JSON-lines file, plain or .gz",
            path=path,
            line=line,
        ) from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"is not JSON ({error})", _DAMAGED, path=path, line=line) from error
    if not isinstance(value, dict):
        raise TraceError(
            f"{quote(value)} is not a JSON object",
            "give a JSON-lines file: one object a line",
            path=path,
            line=line,
        )
    return value
