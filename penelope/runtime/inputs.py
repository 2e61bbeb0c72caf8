"""What a user names as input: opened once, read once from front to back, never without a bound.

A pipe gives its bytes once, so nothing here opens a file a second time, or seeks in it: that holds
for traces, model configurations and grids alike.  `-` is standard input; gzip is told by content.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from penelope.policy.errors import PenelopeError

MAX_LINE_BYTES = 1 << 26
"""No session comes near; without it, a file without line ends would fill the memory."""

MAX_LINES = 1 << 22
"""Records of a trace are held in memory: more of them than this are refused."""

MAX_DOCUMENT_BYTES = 1 << 24
"""A model configuration or a grid: thousands of times what one has."""

STANDARD_INPUT = Path("standard input")
"""How errors and titles name it."""

DAMAGED = "the file is damaged or not complete: fetch it again"

_GZIP = b"\x1f\x8b"
_HEAD = 512
_FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd", "decompress it, or give --trace <(zstdcat …)"),
    (b"BZh", "is compressed with bzip2", "decompress it: bzcat"),
    (b"\xfd7zXZ\0", "is compressed with xz", "decompress it: xzcat"),
    (b"\x04\x22\x4d\x18", "is compressed with lz4", "decompress it: lz4cat"),
    (b"PK\x03\x04", "is a zip archive", "unpack it and give a file in it"),
    (b"PAR1", "is a Parquet file", "convert it to JSON lines"),
    (b"\xff\xfe", "is UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "is UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"),
    (b"version https://git-lfs", "is a Git LFS pointer", "fetch the file itself: git lfs pull"),
)
"""What files of other kinds begin with, and what to do about each."""


class InputError(PenelopeError):
    """An input that cannot be read, with the line where that showed if it has lines."""

    def __init__(self, problem: str, remedy: str, line: int | None = None) -> None:
        self.problem = problem
        self.remedy = remedy
        self.line = line
        super().__init__(f"{problem}; {remedy}")


def is_standard_input(path: Path) -> bool:
    """Whether a name stands for standard input."""
    return str(path) in {"-", "/dev/stdin"}


def shown(path: Path) -> Path:
    """How errors name an input."""
    return STANDARD_INPUT if is_standard_input(path) else path


def title(path: Path) -> str:
    """How results name an input: a pipe's own name differs from one call to the next."""
    if is_standard_input(path):
        return str(STANDARD_INPUT)
    try:
        return "a pipe" if stat.S_ISFIFO(path.stat().st_mode) else str(path)
    except (OSError, ValueError):
        return str(path)


def require_read_once(named: Sequence[tuple[str, Path]]) -> None:
    """Raises `InputError` where two options would read the same pipe: each would get a part.

    `named` are options and the inputs they name.
    """
    seen: dict[tuple[int, int], str] = {}
    for flag, path in named:
        try:
            status = os.fstat(0) if str(path) == "-" else path.stat()
        except (OSError, ValueError):
            continue  # said when it is opened
        if stat.S_ISDIR(status.st_mode):
            continue
        if stat.S_ISREG(status.st_mode) and not is_standard_input(path):
            continue
        key = (status.st_dev, status.st_ino)
        if key in seen:
            raise InputError(
                f"{seen[key]} and {flag} both read {shown(path)}, which can be read only once",
                "give one of them a file",
            )
        seen[key] = flag


class Source:
    """An open input, decompressed."""

    def __init__(self, file: IO[bytes], head: bytes) -> None:
        self._file = file
        self._head = head

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Lines that are not blank, with their numbers.  Raises `InputError`."""
        number = 0
        while raw := self._line(number + 1):
            number += 1
            if number > MAX_LINES:
                raise InputError(
                    f"has more than {MAX_LINES:,} lines", "give a part of it: head -n", number
                )
            if raw.strip():
                yield number, raw

    def document(self) -> bytes:
        """All of it.  Raises `InputError`."""
        with _named(1):
            content = self._head + self._file.read(MAX_DOCUMENT_BYTES + 1 - len(self._head))
        if len(content) > MAX_DOCUMENT_BYTES:
            raise InputError(f"is larger than {MAX_DOCUMENT_BYTES:,} bytes", "give another file")
        return content

    def _line(self, number: int) -> bytes:
        with _named(number):
            head, newline, self._head = self._head.partition(b"\n")
            if newline:
                return head + newline
            raw = head + self._file.readline(MAX_LINE_BYTES + 1)
        if len(raw) > MAX_LINE_BYTES:
            raise InputError(
                f"has a line of more than {MAX_LINE_BYTES:,} bytes",
                "give a JSON-lines file: one object a line",
                number,
            )
        return raw


@contextmanager
def opened(path: Path) -> Iterator[Source]:
    """An input, decompressed if it is gzip, without a UTF-8 byte order mark.

    Raises `InputError` for one that cannot be opened or is of another kind than text.
    """
    with _named(None):
        raw = open(0, "rb", closefd=False) if str(path) == "-" else path.open("rb")  # noqa: SIM115
    with raw:
        file: IO[bytes] = raw
        head = _read(file, _HEAD)
        if head.startswith(_GZIP):
            rest = cast("IO[bytes]", _Rejoined(head, raw))
            file = cast("IO[bytes]", gzip.GzipFile(fileobj=rest, mode="rb"))
            head = _read(file, _HEAD)
            if head.startswith(_GZIP):
                raise InputError("is compressed twice", "decompress it once: zcat")
        _require_text(head)
        yield Source(file, head.removeprefix(b"\xef\xbb\xbf"))


class _Rejoined:
    """A file of which the beginning has been read already."""

    def __init__(self, head: bytes, rest: io.BufferedReader) -> None:
        self._head = io.BytesIO(head)
        self._rest = rest

    def read(self, size: int) -> bytes:
        return self._head.read(size) or self._rest.read1(size)


def _read(file: IO[bytes], size: int) -> bytes:
    """The first bytes, as many as there are: a pipe may give fewer at a time."""
    found = b""
    with _named(1):
        while len(found) < size and (more := file.read(size - len(found))):
            found += more
    return found


def _require_text(head: bytes) -> None:
    for magic, problem, remedy in _FOREIGN:
        if head.startswith(magic):
            raise InputError(problem, remedy)
    if head[257:262] == b"ustar":
        raise InputError("is a tar archive", "unpack it and give a file in it: tar -xOf")
    if b"\0" in head:
        raise InputError("holds zero bytes, so it is no text", "give a text file, plain or .gz", 1)


@contextmanager
def _named(line: int | None) -> Iterator[None]:
    """Failures of reading, as `InputError`."""
    try:
        yield
    except EOFError as error:
        raise InputError("the compressed data ends early", DAMAGED, line) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"the compressed data is corrupt ({error})", DAMAGED, line) from error
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = error.strerror if isinstance(error, OSError) else None
        raise InputError(
            f"cannot be read ({reason or error})", "give the path of a readable file"
        ) from error
