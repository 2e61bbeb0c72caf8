"""Mooncake's format: one request a line, with global ids of 512-token blocks.

A file of other blocks says so: `"block_size": 16` on every line.

Nothing says which requests belong together, so each is a session of one turn; what they share is
in their ids.  The last id may stand for a part of a block; it is not used, since a part of a block
is never matched.
"""

from __future__ import annotations

from collections.abc import Iterator

from penelope.runtime.traces.lines import Record
from penelope.runtime.traces.raw import MAX_TOKENS, RawSession, RawStream, RawTurn

BLOCK_TOKENS = 512
_MAX_ID = 1 << 64
_COMMON = (16, 32, 64, 128, 256, 1024, 2048, 1, 8)
"""Block sizes that engines use."""


def read(records: Iterator[Record]) -> Iterator[tuple[int, RawSession]]:
    """The block size and each request as a session, in order of arrival (`timestamp`, ms).

    Raises `TraceError` for a field that is missing or wrong.
    """
    sessions = []
    blocks = BlockSize()
    for record in records:
        ids, in_tokens, out_tokens = lengths_and_ids(record, blocks)
        turn = RawTurn(0, ids, in_tokens, out_tokens, 0.0)
        arrival = record.number("timestamp") / 1e3
        sessions.append(RawSession(f"line-{record.line}", [RawStream([turn])], arrival))
    # Sorting is stable: requests of one millisecond stay in file order.
    for session in sorted(sessions, key=lambda session: session.arrival_s):
        yield blocks.tokens, session


class BlockSize:
    """Tokens of a block: what the first line says, 512 if it says nothing."""

    def __init__(self) -> None:
        self.tokens = BLOCK_TOKENS
        self._line: int | None = None

    def of(self, record: Record) -> int:
        """Raises `TraceError` for a line that says another than the first one."""
        tokens = BLOCK_TOKENS
        if record.has("block_size"):
            tokens = record.integer("block_size", 1, MAX_TOKENS)
        if self._line is None:
            self.tokens, self._line = tokens, record.line
        if tokens != self.tokens:
            raise record.error(
                "block_size",
                f"is {tokens}, but {self.tokens} on line {self._line}",
                "split the file by block size, and name it on every line",
            )
        return tokens


def lengths_and_ids(record: Record, blocks: BlockSize) -> tuple[list[int], int, int]:
    """`hash_ids`, `input_length` and `output_length`, which must agree on the block count."""
    in_tokens = record.integer("input_length", 1, MAX_TOKENS)
    out_tokens = record.integer("output_length", 0, MAX_TOKENS)
    ids = [record.integer_in("hash_ids", i, 0, _MAX_ID) for i in record.items("hash_ids")]
    size = blocks.of(record)
    whole, part = divmod(in_tokens, size)
    if len(ids) not in (whole, whole + bool(part)):
        problem = (
            f"names {len(ids)} blocks, but {in_tokens} tokens are {whole + bool(part)} of {size}"
        )
        fits = next((n for n in _COMMON if len(ids) in (in_tokens // n, -(-in_tokens // n))), None)
        if not ids or fits is None or record.has("block_size"):
            raise record.error("hash_ids", problem)
        raise record.error(
            "hash_ids",
            f"{problem}, the size that is read",
            f"if yours have {fits}, add that to every line: jq -c '.block_size = {fits}'",
        )
    return ids, in_tokens, out_tokens
