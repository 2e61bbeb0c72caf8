"""Mooncake's format: one request a line, with global ids of 512-token blocks.

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


def read(records: Iterator[Record]) -> Iterator[tuple[int, RawSession]]:
    """The block size and each request as a session, in order of arrival (`timestamp`, ms).

    Raises `TraceError` for a field that is missing or wrong.
    """
    sessions = []
    for record in records:
        ids, in_tokens, out_tokens = lengths_and_ids(record)
        turn = RawTurn(0, ids, in_tokens, out_tokens, 0.0)
        arrival = record.number("timestamp") / 1e3
        sessions.append(RawSession(f"line-{record.line}", [RawStream([turn])], arrival))
    # Sorting is stable: requests of one millisecond stay in file order.
    for session in sorted(sessions, key=lambda session: session.arrival_s):
        yield BLOCK_TOKENS, session


def lengths_and_ids(record: Record) -> tuple[list[int], int, int]:
    """`hash_ids`, `input_length` and `output_length`, which must agree on the block count."""
    in_tokens = record.integer("input_length", 1, MAX_TOKENS)
    out_tokens = record.integer("output_length", 0, MAX_TOKENS)
    ids = [record.integer_in("hash_ids", i, 0, _MAX_ID) for i in record.items("hash_ids")]
    whole, part = divmod(in_tokens, BLOCK_TOKENS)
    if len(ids) not in (whole, whole + bool(part)):
        raise record.error(
            "hash_ids",
            f"names {len(ids)} blocks, but {in_tokens} tokens are {whole + bool(part)} "
            f"of {BLOCK_TOKENS}",
        )
    return ids, in_tokens, out_tokens
