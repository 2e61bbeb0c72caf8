"""Agent sessions from a seed, for use without any recorded trace.

What is drawn, and from what (LN(m, s): log-normal with median m and sigma s).  The numbers were
fitted by hand to the quantiles of recorded coding-agent sessions (30,829 requests of 500 sessions):

| quantity                      | distribution                                                |
|-------------------------------|-------------------------------------------------------------|
| requests a session            | LN(46, 1.15), 1 to 1,000                                    |
| first prompt                  | tools and system prompt, then LN(0.2 of the maximum, 1.3)   |
| output tokens                 | 80 + LN(136, 1.35)                                          |
| prompt growth besides output  | LN(330, 1.65): tool results, questions                      |
| output not repeated           | 7 % of turns: the prompt grows by less than the output      |
| think time, s                 | 82 % of turns 3 + LN(6, 1.6) (tools), else LN(141, 1.9)     |
| rewrites                      | 1.8 % of turns: half redo the last tenth of the history,    |
|                               | half all of it after the tools and system prompt            |
| compaction                    | when the maximum context would be exceeded: everything      |
|                               | after the tools and system prompt is replaced by a summary  |
|                               | of a tenth to four tenths of the maximum                    |
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from penelope.runtime.traces.assemble import Assembler
from penelope.runtime.traces.errors import TraceError
from penelope.runtime.traces.model import Trace
from penelope.runtime.traces.options import Selection, SharedPrefix
from penelope.runtime.traces.raw import MAX_TOKENS, RawSession, RawStream, RawTurn

_FLAGS = {
    "sessions": "--sessions times --replicates",
    "max_context": "--max-context",
    "seed": "--seed",
}
_BY_TOOLS = SharedPrefix("by-tools")
_TOOL_SHARE = 0.78  # of the tools and system prompt, the rest is the system prompt
_OUTPUT_REPEATED = 0.93
_TOOL_TURNS = 0.82
_REWRITES = 0.018


@dataclass(frozen=True, slots=True)
class GeneratorOptions:
    """What to generate.

    - `sessions`: how many.
    - `max_context`: tokens that prompt and output of any request stay within.
    - `seed`: session i of a seed is the same whatever the number of sessions.
    - `prefix_tokens`: length of the tools and system prompt.
    - `tool_sets`: how many different ones there are; the first is the most used.
    - `shared_prefix`: as for recorded traces; by default sessions of one tool set share its prompt.
    - `median_requests`: a session's, before the limits above.
    - `unit_tokens`: tokens of a block.

    Raises `TraceError` naming the option that is out of range.
    """

    sessions: int = 24
    max_context: int = 200_000
    seed: int = 0
    prefix_tokens: int = 15_616
    tool_sets: int = 1
    shared_prefix: SharedPrefix = _BY_TOOLS
    median_requests: int = 46
    unit_tokens: int = 64

    def __post_init__(self) -> None:
        bounds = {
            "sessions": (1, 1_000_000),
            "max_context": (1, MAX_TOKENS),
            "seed": (0, 1 << 64),
            "prefix_tokens": (0, MAX_TOKENS),
            "tool_sets": (1, 1000),
            "median_requests": (1, 1000),
            "unit_tokens": (1, MAX_TOKENS),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise TraceError(
                    f"{_FLAGS.get(name, name)} {value} is out of range for generated sessions",
                    f"give {low} to {high}",
                )
        if self.tool_sets > 1 + self.prefix_tokens // 2:
            raise TraceError(
                f"generator: {self.tool_sets} tool sets need more than {self.prefix_tokens} tokens",
                "lower tool_sets or raise prefix_tokens",
            )
        # Room for the prompt, a question and an answer, or no session could be made.
        least = 2 * self.prefix_tokens + 1024
        if self.max_context < least:
            raise TraceError(
                f"--max-context {self.max_context} leaves generated sessions no room after a "
                f"prefix of {self.prefix_tokens} tokens",
                f"give at least {least}",
            )


def generate(options: GeneratorOptions | None = None) -> Trace:
    """A trace of agent sessions that depends on `options` alone, in every process."""
    options = options or GeneratorOptions()
    selection = Selection(shared_prefix=options.shared_prefix)
    assembler = Assembler(options.unit_tokens, selection, global_ids=False)
    for index in range(options.sessions):
        assembler.add(_Agent(options, index).session())
    return assembler.trace(f"generated (seed {options.seed})", "generated")


class _Agent:
    """One session in the making."""

    def __init__(self, options: GeneratorOptions, index: int) -> None:
        self._options = options
        self._index = index
        # A string seeds by its bytes, never by its hash: the same in every process.
        self._random = random.Random(f"penelope:{options.seed}:{index}")
        self._next_id = 0
        tool_set = min(int(self._random.expovariate(1.0)), options.tool_sets - 1)
        # All have one length; how it is divided is what tells one tool set from another.
        self._tools = int(options.prefix_tokens * _TOOL_SHARE) - tool_set
        self._system = options.prefix_tokens - self._tools

    def session(self) -> RawSession:
        count = self._within(1, self._log_normal(self._options.median_requests, 1.15), 1000)
        turns = [self._first()]
        while len(turns) < count:
            turns.append(self._next(turns[-1]))
        stream = RawStream(turns, self._tools, self._system)
        return RawSession(f"generated-{self._index}", [stream])

    def _first(self) -> RawTurn:
        out_tokens = self._output()
        prefix = self._tools + self._system
        longest = self._options.max_context - out_tokens
        context = self._log_normal(0.2 * self._options.max_context, 1.3)
        in_tokens = self._within(prefix + 1, prefix + context, longest)
        return self._turn(0, in_tokens, out_tokens, 0.0)

    def _next(self, before: RawTurn) -> RawTurn:
        draw = self._random.random
        out_tokens = self._output()
        longest = self._options.max_context - out_tokens
        prefix = self._tools + self._system
        growth = self._log_normal(330, 1.65)
        if draw() < _OUTPUT_REPEATED:
            growth += before.out_tokens
        else:
            growth = min(growth, before.out_tokens - 1)
        in_tokens = before.in_tokens + max(1, int(growth))
        kept = before.in_tokens
        if in_tokens > longest:
            kept = prefix
            summary = (0.1 + 0.3 * draw()) * self._options.max_context
            in_tokens = self._within(prefix + 1, prefix + summary, longest)
        elif draw() < _REWRITES:
            history = before.in_tokens - prefix
            kept = prefix + int(history * (0.9 + 0.1 * draw()) if draw() < 0.5 else 0)
        return self._turn(kept, in_tokens, out_tokens, self._think())

    def _turn(self, kept: int, in_tokens: int, out_tokens: int, think_s: float) -> RawTurn:
        size = self._options.unit_tokens
        keep = min(kept, in_tokens) // size
        first = self._next_id
        self._next_id += in_tokens // size - keep
        return RawTurn(keep, range(first, self._next_id), in_tokens, out_tokens, think_s)

    def _output(self) -> int:
        # A quarter of the room after the prefix, so that a small context still holds a few turns.
        room = (self._options.max_context - self._tools - self._system) // 4
        return self._within(2, 80 + self._log_normal(136, 1.35), room)

    def _think(self) -> float:
        if self._random.random() < _TOOL_TURNS:
            return round(3 + self._log_normal(6, 1.6), 3)
        return round(self._log_normal(141, 1.9), 3)

    def _log_normal(self, median: float, sigma: float) -> float:
        return self._random.lognormvariate(math.log(median), sigma)

    @staticmethod
    def _within(low: int, value: float, high: int) -> int:
        return max(low, min(int(value), high))
