"""What of a trace is replayed, and what its sessions share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penelope.runtime.traces.errors import TraceError, quote
from penelope.runtime.traces.raw import MAX_TOKENS


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Which opening tokens of a stream are the same text in other sessions.

    - `none`: ids of different sessions never meet.
    - `all`: the first `tokens` of all main streams.  Sub-agents run under a prompt of their own:
      they share theirs with each other, up to the length the trace states for it.
    - `by-tools`: the first `tool_tokens + system_tokens` of streams with the same two numbers.

    Lengths are rounded down to whole blocks, and end with a stream's first prompt.
    """

    kind: Literal["none", "all", "by-tools"] = "none"
    tokens: int = 0

    @staticmethod
    def parse(text: str) -> SharedPrefix:
        """Read `none`, `all:N` (N tokens) or `by-tools`; raises `TraceError` for anything else."""
        if text == "none":
            return SharedPrefix()
        if text == "by-tools":
            return SharedPrefix("by-tools")
        kind, _, tokens = text.partition(":")
        if kind == "all" and tokens.isascii() and tokens.isdigit():
            if len(tokens) > len(str(MAX_TOKENS)) or int(tokens) > MAX_TOKENS:
                raise TraceError(
                    f"--shared-prefix {quote(text)} is too long",
                    f"give {MAX_TOKENS} tokens at most",
                )
            return SharedPrefix("all", int(tokens))
        raise TraceError(
            f"--shared-prefix {quote(text)} is not known",
            "give none, all:N with N tokens, or by-tools",
        )

    def __str__(self) -> str:
        return f"all:{self.tokens}" if self.kind == "all" else self.kind


@dataclass(frozen=True, slots=True)
class Selection:
    """Which part of a trace to use.

    - `sessions`: the first that many usable ones; None takes all.
    - `max_context`: tokens that prompt and output of a request may have together.  A stream ends
      before its first request that has more, because what follows would continue a conversation
      that never happened.  A session whose first request has more is left out and does not count.
    - `subagents`: whether sub-agents run, as streams beside their session's main stream.
    """

    sessions: int | None = None
    max_context: int | None = None
    shared_prefix: SharedPrefix = SharedPrefix()
    subagents: bool = True

    def __post_init__(self) -> None:
        """Raises `TraceError` for a number below 1."""
        for flag, value in (("--sessions", self.sessions), ("--max-context", self.max_context)):
            if value is not None and value < 1:
                raise TraceError(f"{flag} {value} selects nothing", "give a number from 1")
