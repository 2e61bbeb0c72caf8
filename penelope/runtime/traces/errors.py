"""How a trace, or a choice made about one, is refused."""

from __future__ import annotations

from pathlib import Path

from penelope.policy.errors import PenelopeError

_SHOWN = 60  # characters of a value that an error quotes


class TraceError(PenelopeError):
    """A trace that cannot be replayed: one line that says where, what and the remedy.

    `line` counts from 1; `field` is the path of a field inside that line's object.
    """

    def __init__(
        self,
        problem: str,
        remedy: str,
        *,
        path: Path | None = None,
        line: int | None = None,
        field: str | None = None,
    ) -> None:
        self.problem = problem
        self.remedy = remedy
        self.path = path
        self.line = line
        self.field = field
        where = [] if path is None else [one_line(str(path))]
        where += [] if line is None else [f"line {line}"]
        where += [] if field is None else [f"field {field}"]
        super().__init__(": ".join([*where, f"{one_line(problem)}; {one_line(remedy)}"]))


def one_line(text: str) -> str:
    """`text` with everything unprintable escaped, so that it stays on one line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quote(value: object) -> str:
    """A value from a file as an error shows it: escaped and of bounded length."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
