"""The operations that one replay asks of a cache, recorded once and fed to every arm.

A replay of agent sessions through the policy core says in which order requests are admitted,
computed and finished while others run.  Blocks of the trace become tokens here, so that every tree
sees the same ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from penelope import policy
from penelope.cost import preset
from penelope.policy import UNIT_BYTES, Config, Key, Receipt
from penelope.runtime.replay.caches import Admission, Ask, CoreCache
from penelope.runtime.replay.closed_loop import replay
from penelope.runtime.replay.server import Scheduler, Server, Timing
from penelope.runtime.traces import GeneratorOptions, Selection, SharedPrefix, Trace, generate, load

CONCURRENCY = 8
CAPACITY = 524_288
LONGEST = 131_072
SHARED_PREFIX = SharedPrefix("all", 15_616)
VOCABULARY = 150_000

Kind = Literal["admitted", "computed", "finished"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens to a request."""

    kind: Kind
    request: int
    key: Key
    """Blocks of its prompt; when it is finished, of its whole history."""


class Step(NamedTuple):
    """An event, ready to be carried out."""

    kind: Kind
    request: int
    tokens: array[int]
    """As an engine has them: 64-bit integers."""
    grown: int
    """Tokens that no earlier request had: what must be evicted for them where memory is full."""


@dataclass(slots=True)
class Stream:
    """The events of some requests, in order."""

    source: str
    requests: int
    events: list[Event] = field(default_factory=list)
    unit_tokens: int = 64

    def steps(self) -> Iterator[Step]:
        """Every event with its tokens, made one at a time."""
        ever = policy.empty(Config(1 << 60, block_size=1))
        for event in self.events:
            grown = 0
            if event.kind != "computed":
                inserted = policy.insert(ever, event.key)
                ever, grown = inserted.state, inserted.adopted
            yield Step(
                event.kind,
                event.request,
                tokens_of(event.key, self.unit_tokens),
                grown * self.unit_tokens,
            )


def tokens_of(key: Key, unit_tokens: int) -> array[int]:
    """Each block's tokens, which depend on nothing but its id."""
    units = np.frombuffer(key, dtype="<u4").astype(np.uint64)
    positions = units[:, None] * np.uint64(unit_tokens) + np.arange(unit_tokens, dtype=np.uint64)
    # A multiplicative hash: neighbouring blocks have nothing in common.
    mixed = (positions * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(33)
    return array("q", (mixed % np.uint64(VOCABULARY)).astype(np.int64).tobytes())


def sessions(path: Path | None, quick: bool) -> Trace:
    """The first sessions of a recorded trace, or generated ones."""
    count = 4 if quick else 24
    longest = 32_768 if quick else LONGEST
    if path is None:
        options = GeneratorOptions(sessions=count, max_context=longest, shared_prefix=SHARED_PREFIX)
        return generate(options)
    return load(path, "auto", Selection(count, longest, SHARED_PREFIX))


def record(trace: Trace, requests: int) -> Stream:
    """The first `requests` requests that a replay admits, from admission to the end."""
    generated = trace.format == "generated"
    source = f"generated sessions ({trace.name})" if generated else Path(trace.name).name
    stream = Stream(source, requests, unit_tokens=trace.unit_tokens)
    cost = preset("qwen3-8b")
    server = Server(
        _Recorder(Config(CAPACITY // trace.unit_tokens, block_size=1), stream),
        cost,
        Timing(cost.flops_per_unit / 400e12),
        Scheduler.FCFS,
        trace.unit_tokens,
    )
    replay(trace, server, CONCURRENCY)
    stream.requests = len({event.request for event in stream.events})
    return stream


class _Recorder(CoreCache):
    """The policy core, which writes down what it is asked."""

    def __init__(self, config: Config, stream: Stream) -> None:
        super().__init__(config)
        self._stream = stream
        self._numbers: dict[Receipt, int] = {}

    def admit(self, ask: Ask) -> Admission | None:
        admission = super().admit(ask)
        if admission is not None:
            self._numbers[admission.receipt] = len(self._numbers)
            self._note("admitted", admission, ask.prompt)
        return admission

    def computed(self, admission: Admission, prompt: Key) -> int:
        self._note("computed", admission, prompt)
        return super().computed(admission, prompt)

    def finished(self, admission: Admission, history: Key) -> int:
        self._note("finished", admission, history)
        return super().finished(admission, history)

    def _note(self, kind: Kind, admission: Admission, key: Key) -> None:
        number = self._numbers[admission.receipt]
        if number < self._stream.requests:
            self._stream.events.append(Event(kind, number, key))


def background(number: int, shared: int, private: int, unit_tokens: int) -> array[int]:
    """History `number` of those that only fill the tree: shared blocks, then its own."""
    first = (1 << 31) + shared + number * private
    units = [*range(1 << 31, (1 << 31) + shared), *range(first, first + private)]
    return tokens_of(Key(np.array(units, dtype="<u4").tobytes()), unit_tokens)


__all__ = ["UNIT_BYTES", "Event", "Step", "Stream", "background", "record", "sessions", "tokens_of"]
