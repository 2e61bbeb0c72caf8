"""The session format of real coding agents: one session a line, ids local to it.

A request's `h` is `[k, [[start, length], ...]]`: its block ids are the first `k` of the request
before it in its stream, then the runs.

Entries of type `subagent` hold the requests of a sub-agent.  In the recorded sessions their `t`
is when they *ended*: `t - duration_ms` is the end of the request before them, and sub-agents
started together share it.  Their parent's next `think_time` already covers waiting for them, so
they become streams that run beside the main one and nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator

from penelope.runtime.traces.lines import Record
from penelope.runtime.traces.raw import MAX_TOKENS, RawSession, RawStream, RawTurn

_MAX_ID = 1 << 64


def read(records: Iterator[Record]) -> Iterator[tuple[int, RawSession]]:
    """The block size in tokens and each session.

    Raises `TraceError` for a field that is missing or wrong, for a second session of the same
    name, and for sessions of another block size than the first.
    """
    seen: dict[str, int] = {}
    block_size: tuple[int, int] | None = None
    for record in records:
        name = record.text("id")
        if name in seen:
            raise record.error("id", f"{name!r} is already on line {seen[name]}")
        seen[name] = record.line
        size = record.integer("block_size", 1, MAX_TOKENS)
        block_size = block_size or (size, record.line)
        if size != block_size[0]:
            raise record.error(
                "block_size",
                f"is {size}, but {block_size[0]} on line {block_size[1]}",
                "split the file by block size",
            )
        yield size, RawSession(name, _streams(record, size))


def _streams(session: Record, size: int) -> list[RawStream]:
    main = _Stream(session, size)
    agents: list[RawStream] = []
    for entry in session.records("requests"):
        if entry.fields.get("type") != "subagent":
            main.add(entry)
            continue
        agent = _Stream(entry, size)
        for request in entry.records("requests"):
            if request.fields.get("type") == "subagent":
                raise request.error("type", "a sub-agent inside a sub-agent is not supported")
            agent.add(request)
        if agent.turns:
            ran = entry.number("duration_ms") / 1e3 if entry.has("duration_ms") else agent.ended
            delay = max(0.0, entry.number("t") - ran - main.ended)
            agents.append(agent.stream(len(main.turns), delay))
    if not main.turns:
        raise session.error("requests", "holds no request of the session itself")
    return [main.stream(0, 0.0), *agents]


class _Stream:
    """The requests of one agent, collected in order."""

    def __init__(self, owner: Record, size: int) -> None:
        self._owner = owner
        self._size = size
        self._length = 0  # ids of the last request
        self.ended = 0.0  # when the last response came, in seconds of the owner's clock
        self.turns: list[RawTurn] = []

    def add(self, request: Record) -> None:
        in_tokens = request.integer("in", 1, MAX_TOKENS)
        out_tokens = request.integer("out", 0, MAX_TOKENS)
        keep, ids = self._ids(request, in_tokens)
        start = request.number("t")
        # A few requests have no think time of their own; the clock gives it.
        has_think = request.has("think_time")
        think = request.number("think_time") if has_think else max(0.0, start - self.ended)
        self.ended = start + (request.number("api_time") if request.has("api_time") else 0.0)
        self.turns.append(RawTurn(keep, ids, in_tokens, out_tokens, think))

    def stream(self, starts_after: int, delay_s: float) -> RawStream:
        tokens = [
            self._owner.integer(field, 0, MAX_TOKENS) if self._owner.has(field) else 0
            for field in ("tool_tokens", "system_tokens")
        ]
        return RawStream(self.turns, tokens[0], tokens[1], starts_after, delay_s)

    def _ids(self, request: Record, in_tokens: int) -> tuple[int, range | list[int]]:
        h = request.items("h")
        if len(h) != 2 or not isinstance(h[1], list):
            raise request.error("h", "is not [kept ids, [[start, length], ...]]")
        keep = request.integer_in("h", h[0], 0, self._length)
        runs: list[range] = []
        self._length = keep
        for run in h[1]:
            if not isinstance(run, list) or len(run) != 2:
                raise request.error("h", "has a run that is not [start, length]")
            start = request.integer_in("h", run[0], 0, _MAX_ID)
            length = request.integer_in("h", run[1], 1, MAX_TOKENS)
            runs.append(range(start, start + length))
            self._length += length
        whole = in_tokens // self._size
        if self._length not in (whole, -(-in_tokens // self._size)):
            raise request.error(
                "h",
                f"names {self._length} blocks, but {in_tokens} tokens in hold {whole} whole ones",
            )
        return keep, runs[0] if len(runs) == 1 else [i for run in runs for i in run]
