"""From a reader's sessions to the in-memory form: units, shared prefixes, outputs, cuts.

What an output's units are.  A trace has no ids for outputs.  If the next prompt of the stream
keeps every whole block of this prompt and is at least as long as prompt and output together, the
output is taken to be what that prompt goes on with, so its units are the next prompt's own:

    prompt of this turn   |==========|
    with its output       |==========|oooo|
    next prompt           |==========|oooo|rrrrrrrr|     r: tool result or next question

Otherwise (history rewritten, reasoning stripped from the output, last turn) the output gets
units that occur nowhere else, a dead branch: an engine caches it and nothing ever matches it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from penelope.policy.keys import UNIT_BYTES, pack
from penelope.runtime.traces.errors import TraceError
from penelope.runtime.traces.model import Omitted, Session, Stream, Trace, Turn
from penelope.runtime.traces.options import Selection
from penelope.runtime.traces.raw import RawSession, RawStream, RawTurn

_MAX_UNITS = 1 << 8 * UNIT_BYTES


class Assembler:
    """Collects sessions into one trace, giving every distinct block a unit of its own.

    `global_ids` tells that equal ids of different sessions are equal blocks; otherwise ids mean
    something only inside their session, and sessions share what `selection` says.
    """

    def __init__(self, unit_tokens: int, selection: Selection, *, global_ids: bool) -> None:
        if global_ids and selection.shared_prefix.kind != "none":
            raise TraceError(
                f"--shared-prefix {selection.shared_prefix} does not go with a trace whose ids "
                "are global: what its sessions share is in it",
                "use --shared-prefix none",
            )
        self._unit_tokens = unit_tokens
        self._selection = selection
        self._ids: dict[int, int] | None = {} if global_ids else None
        self._shared: dict[tuple[object, ...], list[int]] = {}
        self._units = 0
        self._sessions: list[Session] = []
        self._omitted_sessions = 0
        self._omitted_turns = 0
        self._omitted_streams = 0

    @property
    def full(self) -> bool:
        """Whether the selection has all the sessions it asked for."""
        wanted = self._selection.sessions
        return wanted is not None and len(self._sessions) >= wanted

    def add(self, session: RawSession) -> None:
        """Take a session in, unless the selection is full or leaves it out."""
        if self.full:
            return
        main = self._fitting(session.streams[0])
        if not main:
            self._omitted_sessions += 1
            return
        self._omitted_turns += len(session.streams[0].turns) - len(main)
        kept = [(session.streams[0], main)]
        for stream in session.streams[1:]:
            turns = self._fitting(stream)
            if not (self._selection.subagents and turns and stream.starts_after <= len(main)):
                self._omitted_streams += 1
                continue
            self._omitted_turns += len(stream.turns) - len(turns)
            kept.append((stream, turns))
        units = {} if self._ids is None else self._ids
        streams = tuple(
            self._stream(stream, turns, units, main=i == 0)
            for i, (stream, turns) in enumerate(kept)
        )
        self._sessions.append(Session(session.id, streams, session.arrival_s))

    def trace(self, name: str, format_name: str) -> Trace:
        """What was collected; raises `TraceError` when that is less than was asked for."""
        wanted = self._selection.sessions
        found = len(self._sessions)
        if not found or (wanted is not None and found < wanted):
            why, remedy = "", "lower --sessions"
            if self._omitted_sessions:
                limit = self._selection.max_context
                why = f" and {self._omitted_sessions} that --max-context {limit} leaves out"
                remedy += " or raise --max-context"
            raise TraceError(
                f"{name} holds {found} usable sessions{why}; {wanted or 'at least 1'} wanted",
                remedy,
            )
        omitted = Omitted(self._omitted_sessions, self._omitted_turns, self._omitted_streams)
        return Trace(
            name, format_name, self._unit_tokens, tuple(self._sessions), self._units, omitted
        )

    def _fitting(self, stream: RawStream) -> Sequence[RawTurn]:
        limit = self._selection.max_context
        if limit is not None:
            for i, turn in enumerate(stream.turns):
                if turn.in_tokens + turn.out_tokens > limit:
                    return stream.turns[:i]
        return stream.turns

    def _stream(
        self, stream: RawStream, turns: Sequence[RawTurn], units: dict[int, int], *, main: bool
    ) -> Stream:
        self._share_prefix(stream, turns[0], units, main=main)
        blocks = array("I")
        prompts: list[tuple[int, int]] = []  # units kept, units in all
        appended: list[array[int]] = []
        length = 0
        for turn in turns:
            keep = min(turn.keep, length)
            del blocks[turn.keep :]
            blocks.extend(self._to_units(turn.ids, units))
            # The part of a block at a prompt's end is cut here, and may be whole in the next.
            length = min(turn.in_tokens // self._unit_tokens, len(blocks))
            keep = min(keep, length)
            prompts.append((keep, length))
            appended.append(blocks[keep:length])
        done: list[Turn] = []
        for i, turn in enumerate(turns):
            after = i + 1
            repeated = (
                after < len(turns)
                and prompts[after][0] == prompts[i][1]
                and turns[after].in_tokens >= turn.in_tokens + turn.out_tokens
            )
            total = (turn.in_tokens + turn.out_tokens) // self._unit_tokens
            count = total - prompts[i][1]
            output = appended[after][:count] if repeated else array("I", self._fresh(count))
            done.append(
                Turn(
                    keep=prompts[i][0],
                    append=pack(appended[i]),
                    output=pack(output),
                    repeated=repeated,
                    in_tokens=turn.in_tokens,
                    out_tokens=turn.out_tokens,
                    think_s=turn.think_s,
                )
            )
        return Stream(tuple(done), stream.starts_after, stream.delay_s)

    def _share_prefix(
        self, stream: RawStream, first: RawTurn, units: dict[int, int], *, main: bool
    ) -> None:
        """Give the opening ids of a stream the units that its companions have there."""
        shared = self._selection.shared_prefix
        stated = stream.tool_tokens + stream.system_tokens
        key: tuple[object, ...]
        if shared.kind == "none":
            return
        elif shared.kind == "by-tools":
            key, tokens = (stream.tool_tokens, stream.system_tokens), stated
        elif main:
            key, tokens = ("main",), shared.tokens
        else:
            key, tokens = ("sub-agent",), min(shared.tokens, stated)
        common = self._shared.setdefault(key, [])
        opening = first.ids[: min(tokens, first.in_tokens) // self._unit_tokens]
        common.extend(self._fresh(len(opening) - len(common)))
        units.update(zip(opening, common, strict=False))

    def _to_units(self, ids: Sequence[int], units: dict[int, int]) -> list[int]:
        result = []
        for block in ids:
            unit = units.get(block)
            if unit is None:
                unit = units[block] = self._units
                self._units += 1
            result.append(unit)
        if self._units > _MAX_UNITS:
            raise _too_many()
        return result

    def _fresh(self, count: int) -> range:
        first = self._units
        self._units += max(count, 0)
        if self._units > _MAX_UNITS:
            raise _too_many()
        return range(first, self._units)


def _too_many() -> TraceError:
    return TraceError(
        f"the sessions have more than {_MAX_UNITS} distinct blocks", "lower --sessions"
    )
