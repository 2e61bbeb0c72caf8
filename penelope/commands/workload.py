"""The sessions that a command replays: recorded or generated, in disjoint groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penelope.policy.errors import InvalidConfigError
from penelope.runtime.traces import (
    FORMATS,
    GeneratorOptions,
    Selection,
    SharedPrefix,
    Trace,
    TraceError,
    generate,
    load,
)

GENERATED_SESSIONS = 24
GENERATED_CONTEXT = 131_072


@dataclass(frozen=True, slots=True)
class Workload:
    """The options that say which sessions are replayed."""

    path: Path | None = None
    """None: generated from `seed`."""
    format_name: str = "auto"
    sessions: int | None = None
    """In a group.  None: all that there are; 24 generated ones."""
    groups: int = 1
    max_context: int | None = None
    shared_prefix: str | None = None
    """None: `none`; `by-tools` for generated sessions."""
    subagents: bool = True
    seed: int = 0
    max_think: float | None = None
    """Seconds that a client waits at most before a request; None: as recorded."""

    def check(self) -> None:
        """Raises `PenelopeError` for what can be refused before anything is read."""
        for value, flag in (
            (self.sessions, "--sessions"),
            (self.groups, "--replicates"),
            (self.max_context, "--max-context"),
        ):
            if value is not None and value < 1:
                raise InvalidConfigError(f"{flag} is {value}: give 1 or more")
        # So written that "not a number" is refused too.
        if self.max_think is not None and not self.max_think >= 0:
            raise InvalidConfigError(f"--max-think is {self.max_think}: give seconds, 0 or more")
        if self.path is None and self.format_name not in ("auto", *FORMATS):
            raise TraceError(
                f"--format {self.format_name} is not known", f"give auto, {', '.join(FORMATS)}"
            )

    def trace(self) -> Trace:
        """All sessions together.  Raises `TraceError`."""
        trace = self._sessions()
        return trace if self.max_think is None else trace.with_think_at_most(self.max_think)

    def _sessions(self) -> Trace:
        wanted = None if self.sessions is None else self.sessions * self.groups
        if self.path is None:
            return generate(
                GeneratorOptions(
                    sessions=GENERATED_SESSIONS * self.groups if wanted is None else wanted,
                    max_context=self.max_context or GENERATED_CONTEXT,
                    seed=self.seed,
                    shared_prefix=SharedPrefix.parse(self.shared_prefix or "by-tools"),
                )
            )
        prefix = SharedPrefix.parse(self.shared_prefix or "none")
        selection = Selection(wanted, self.max_context, prefix, self.subagents)
        return load(self.path, self.format_name, selection)

    def split(self, trace: Trace) -> list[Trace]:
        """Its groups, of equal size.  Raises `TraceError` when there are too few sessions."""
        size = self.sessions or max(1, len(trace.sessions) // self.groups)
        return [trace.group(index, size) for index in range(self.groups)]
