"""Reading JSON lines so that whatever is wrong is reported with its place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penelope.runtime import inputs
from penelope.runtime.documents import TwiceError, each_once
from penelope.runtime.traces.errors import TraceError, quote


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
    shown = inputs.shown(path)
    try:
        with inputs.opened(path) as source:
            for line, raw in source.lines():
                yield Record(shown, line, _parse(shown, line, raw))
    except inputs.InputError as error:
        raise TraceError(error.problem, _remedy(error), path=shown, line=error.line) from error


def _remedy(error: inputs.InputError) -> str:
    if error.problem.startswith("cannot be read"):
        return "give --trace the path of a readable JSON-lines file, plain or .gz"
    return error.remedy


def _parse(path: Path, line: int, raw: bytes) -> dict[str, object]:
    try:
        value = json.loads(raw.decode(), object_pairs_hook=each_once)
    except UnicodeDecodeError as error:
        raise TraceError(
            f"is not UTF-8 text (byte {error.start})",
            "give a JSON-lines file, plain or .gz",
            path=path,
            line=line,
        ) from error
    except TwiceError as error:
        raise TraceError(str(error), "keep one of them", path=path, line=line) from error
    except (ValueError, RecursionError) as error:
        problem, remedy = _no_json(raw, error, line)
        raise TraceError(problem, remedy, path=path, line=line) from error
    if not isinstance(value, dict):
        raise TraceError(
            f"{quote(value)} is not a JSON object",
            "give a JSON-lines file: one object a line"
            + (", as jq -c '.[]' writes them" if isinstance(value, list) else ""),
            path=path,
            line=line,
        )
    return value


_CORRECT = "correct the line or remove it"


def _no_json(raw: bytes, error: ValueError | RecursionError, line: int) -> tuple[str, str]:
    """What a line is instead of JSON, and what to do about it."""
    text = raw.strip()
    whole = raw.endswith(b"\n")
    if text.startswith((b"#", b"//")):
        return "is a comment, which JSON lines do not have", "remove the line"
    if text.startswith(b"<"):
        return "is markup: a page about the trace?", "fetch the file itself"
    if b"\r" in text:
        return "ends lines with CR alone", "convert the file: tr '\\r' '\\n'"
    if whole and text.startswith(b"[") and _ends_early(raw, error):
        return "begins an array of many lines", "write one object a line: jq -c '.[]'"
    if whole and _ends_early(raw, error):
        return "begins an object of many lines", "write one object a line: jq -c ."
    if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
        return f"is more than one JSON value ({error})", "write one object a line: jq -c ."
    if not whole and (text.startswith(b"{") or line > 1):
        return f"is not JSON ({error})", inputs.DAMAGED
    remedy = _CORRECT if text.startswith(b"{") or line > 1 else "give a JSON-lines file"
    return f"is not JSON ({error})", remedy


def _ends_early(raw: bytes, error: ValueError | RecursionError) -> bool:
    """Whether what is missing would come after the end of the line."""
    return isinstance(error, json.JSONDecodeError) and error.pos >= len(raw.decode().rstrip())
