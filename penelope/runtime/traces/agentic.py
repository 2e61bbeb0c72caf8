"""The increments format: the turns of synthetic agent sessions, one a line, with global ids.

A session's first line holds its whole prompt; each later line holds only what the prompt gains
(`hash_ids`, `input_length`), the previous output included.  Gains are whole numbers of blocks (of
512 tokens, or of the line's `block_size`), so a prompt is taken to be its earlier blocks, filled
up, plus the tokens of its last gain.
"""

from __future__ import annotations

from collections.abc import Iterator

from penelope.runtime.traces.lines import Record
from penelope.runtime.traces.mooncake import BlockSize, lengths_and_ids
from penelope.runtime.traces.raw import MAX_TOKENS, RawSession, RawStream, RawTurn


class _Session:
    def __init__(self, arrival_s: float) -> None:
        self.arrival_s = arrival_s
        self.length = 0  # blocks so far
        self.turns: list[RawTurn] = []


def read(records: Iterator[Record]) -> Iterator[tuple[int, RawSession]]:
    """The block size and each session, in the order in which they first occur.

    `delay` (ms) is the think time of a later turn, `timestamp` (ms) the arrival of a session.
    Raises `TraceError` for a field that is missing or wrong.
    """
    sessions: dict[str, _Session] = {}
    blocks = BlockSize()
    for record in records:
        name = record.text("session_id")
        ids, gained, out_tokens = lengths_and_ids(record, blocks)
        session = sessions.get(name)
        if session is None:
            arrival = record.number("timestamp") / 1e3 if record.has("timestamp") else 0.0
            session = sessions[name] = _Session(arrival)
            think = 0.0
        else:
            if record.has("timestamp"):
                raise record.error(
                    "timestamp",
                    f"starts session {name!r} a second time",
                    "give each session an id of its own",
                )
            think = record.number("delay") / 1e3
        in_tokens = session.length * blocks.tokens + gained
        if in_tokens > MAX_TOKENS:
            raise record.error("input_length", f"makes a prompt of more than {MAX_TOKENS} tokens")
        session.turns.append(RawTurn(session.length, ids, in_tokens, out_tokens, think))
        session.length += len(ids)
    for name, session in sessions.items():
        yield blocks.tokens, RawSession(name, [RawStream(session.turns)], session.arrival_s)
