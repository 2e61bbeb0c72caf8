"""The one in-memory form of every trace.

A *unit* is the id of one hashed block, and prompts are keys as the policy core takes them
(`penelope.policy.keys`).  Consecutive prompts of a stream share their head, so a turn holds only
how many units it keeps and what it appends; prompts are put together one at a time, when a stream
is walked.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from penelope.policy.keys import UNIT_BYTES, Key
from penelope.runtime.traces.errors import TraceError


@dataclass(frozen=True, slots=True)
class Request:
    """One request as a client sends it.

        prompt  |== whole blocks, in units ==|= output =|
        tokens  |<------ in_tokens ------->|<- out ->|

    `prompt` holds the whole blocks of the `in_tokens` prompt tokens: up to one block less one
    token at its end has no unit, because a part of a block is never matched.  `output` holds the
    whole blocks that prompt and output fill together, beyond `prompt`; it may be empty.
    `think_s` is how many seconds the client waits before sending it, after the response before.
    """

    prompt: Key
    output: Key
    in_tokens: int
    out_tokens: int
    think_s: float


@dataclass(frozen=True, slots=True)
class Turn:
    """A request as a change of the prompt before it in its stream.

    Its prompt is the first `keep` units of that prompt followed by `append`.  `repeated` tells
    whether the next turn's prompt holds this turn's output; otherwise the output's units occur
    nowhere else in the trace (a dead branch).
    """

    keep: int
    append: Key
    output: Key
    repeated: bool
    in_tokens: int
    out_tokens: int
    think_s: float


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests that one agent sends one after the other.

    `starts_after` is the number of turns of the session's first stream that must have been
    answered before this one starts, `delay_s` the seconds from then (or from the session's start)
    to its first request, besides that request's own `think_s`.
    """

    turns: tuple[Turn, ...]
    starts_after: int = 0
    delay_s: float = 0.0

    def requests(self) -> Iterator[Request]:
        """The stream's requests in order; only the current prompt is held."""
        prompt = Key(b"")
        for turn in self.turns:
            prompt = Key(prompt[: turn.keep * UNIT_BYTES] + turn.append)
            yield Request(prompt, turn.output, turn.in_tokens, turn.out_tokens, turn.think_s)

    @property
    def pure_appends(self) -> int:
        """Turns whose prompt starts with the whole prompt before it (the first never counts)."""
        lengths = (turn.keep + len(turn.append) // UNIT_BYTES for turn in self.turns)
        return sum(
            turn.keep == before for turn, before in zip(self.turns[1:], lengths, strict=False)
        )


@dataclass(frozen=True, slots=True)
class Session:
    """One task of one user: a main stream and those of its sub-agents, which run beside it.

    `arrival_s` is when it began, in seconds from the trace's start, where the trace says so.
    """

    id: str
    streams: tuple[Stream, ...]
    arrival_s: float = 0.0

    @property
    def requests(self) -> int:
        """Requests in all streams together."""
        return sum(len(stream.turns) for stream in self.streams)


@dataclass(frozen=True, slots=True)
class Omitted:
    """What a selection left out of a trace."""

    sessions: int = 0  # whose first request does not fit the maximum context
    turns: int = 0  # cut off the end of the sessions that stayed
    streams: int = 0  # sub-agents: not asked for, or started by a turn that was cut off


@dataclass(frozen=True, slots=True)
class Trace:
    """Sessions to replay.  Their units are `0 .. units-1`; each stands for `unit_tokens` tokens."""

    name: str
    format: str
    unit_tokens: int
    sessions: tuple[Session, ...]
    units: int
    omitted: Omitted = Omitted()

    @property
    def requests(self) -> int:
        """Requests in all sessions together."""
        return sum(session.requests for session in self.sessions)

    def with_think_at_most(self, seconds: float) -> Trace:
        """The same sessions of clients who never think longer than that before a request."""
        return replace(self, sessions=tuple(_hurried(s, seconds) for s in self.sessions))

    def group(self, index: int, size: int) -> Trace:
        """The `index`-th group of `size` consecutive sessions; groups are disjoint.

        Raises `TraceError` when the trace does not hold that many sessions.
        """
        if index < 0 or size < 1:
            raise TraceError(
                f"group {index} of {size} sessions is not one",
                "give --sessions and --replicates of at least 1",
            )
        end = (index + 1) * size
        if end > len(self.sessions):
            raise TraceError(
                f"{self.name} holds {len(self.sessions)} usable sessions, "
                f"{index + 1} groups of {size} need {end}",
                "lower --sessions or --replicates, or raise --max-context",
            )
        return replace(self, sessions=self.sessions[end - size : end])

    def digest(self) -> str:
        """SHA-256 of everything that a replay of this trace can depend on, in hexadecimal."""
        sha = hashlib.sha256(struct.pack("<q", self.unit_tokens))
        for session in self.sessions:
            sha.update(struct.pack("<dq", session.arrival_s, len(session.streams)))
            for stream in session.streams:
                head = (stream.starts_after, stream.delay_s, len(stream.turns))
                sha.update(struct.pack("<qdq", *head))
                for turn in stream.turns:
                    sizes = (turn.keep, len(turn.append), len(turn.output))
                    times = (turn.in_tokens, turn.out_tokens, turn.think_s)
                    sha.update(struct.pack("<qqqqqd", *sizes, *times))
                    sha.update(turn.append)
                    sha.update(turn.output)
        return sha.hexdigest()


def _hurried(session: Session, seconds: float) -> Session:
    streams = (
        replace(
            stream,
            turns=tuple(replace(turn, think_s=min(turn.think_s, seconds)) for turn in stream.turns),
        )
        for stream in session.streams
    )
    return replace(session, streams=tuple(streams))
