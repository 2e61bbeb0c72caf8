"""Replicas with Penelope's cache under agent-like traffic, and routers that listen to them.

Who serves a request is decided by chance, not by a router: every router and mode sees the same
histories.  Deterministic: a seed and the sizes say all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import NamedTuple

from penelope.policy import Config, Effect, PenelopeError, Reset, Residency, State, match, pack
from penelope.runtime.announcing import Announce, Announcement, announcements
from penelope.runtime.cache import Cache, Request
from penelope.runtime.symbolic import SymbolicStore
from tests.routers.indexes import Event, Index


class Blocks:
    """Names for blocks: one integer for each history of whole pages."""

    def __init__(self, page: int, width: int) -> None:
        self.page = page
        self._step = page * width
        self._names: dict[bytes, int] = {}

    def of(self, key: bytes) -> list[int]:
        """The blocks of a history, from its beginning."""
        ends = range(self._step, len(key) + 1, self._step)
        return [self._names.setdefault(key[:end], len(self._names) + 1) for end in ends]

    def event(self, replica: int, told: Announcement) -> Event:
        """What is announced, as events name it."""
        end = told.end * self._step // self.page
        chain = self.of(told.key[:end])
        first = told.start // self.page
        above = chain[first - 1] if first else None
        return Event(replica, told.stored, tuple(chain[first:]), above)


class Listener(NamedTuple):
    mode: Announce
    router: Index


class Sizes(NamedTuple):
    replicas: int = 4
    sessions: int = 30
    page: int = 1
    block: int = 4
    capacity: int = 350
    """Units of each replica."""
    shared: int = 12
    """Units of the system prompt that all sessions begin with."""
    turn: int = 9
    """A session grows by up to so many units a turn."""
    longest: int = 150
    moved: float = 0.2
    """How often a session is served elsewhere than before."""
    resets: float = 0.0
    host: int = 0
    """Units of a second tier of each replica."""
    swap: int = 0


class Fleet:
    def __init__(self, seed: int, sizes: Sizes, listeners: list[Listener]) -> None:
        self.random = Random(seed)
        self.sizes = sizes
        self.listeners = listeners
        config = Config(
            sizes.capacity,
            sizes.page,
            sizes.block,
            host_capacity=sizes.host,
            swap_buffer=sizes.swap,
        )
        self.blocks = Blocks(sizes.page, config.unit_bytes)
        self.seen: Counter[str] = Counter()
        self.told: Counter[Announce] = Counter()
        """Stored blocks by mode."""
        self.caches = [
            Cache(config, SymbolicStore(sizes.capacity, sizes.host), self._observer(replica))
            for replica in range(sizes.replicas)
        ]
        self.states = [cache.state for cache in self.caches]
        """As of the last operation, which may be about to be committed."""
        self.after: Callable[[int], None] = lambda replica: None
        """Called after every operation, with the replica, once all routers have heard of it."""
        self.running: list[tuple[int, Request]] = []
        self._next = 0
        self._prompt = self._fresh(sizes.shared)
        self.sessions = [self._session() for _ in range(sizes.sessions)]

    def _session(self) -> tuple[int, list[int]]:
        """Where it was served last, and its history."""
        return self.random.randrange(self.sizes.replicas), [*self._prompt]

    def _fresh(self, units: int) -> list[int]:
        self._next += units
        return [*range(self._next - units, self._next)]

    def _observer(self, replica: int) -> Callable[[State, str, State, tuple[Effect, ...]], None]:
        def observe(before: State, name: str, after: State, effects: tuple[Effect, ...]) -> None:
            self.seen.update(type(effect).__name__ for effect in effects)
            if any(isinstance(effect, Reset) for effect in effects):
                for listener in self.listeners:
                    listener.router.clear(replica)
            for mode in dict.fromkeys(listener.mode for listener in self.listeners):
                for told in announcements(mode, before, after, effects):
                    # Tier by tier, these routers follow the device.
                    if mode is Announce.EXACT and told.tier is Residency.HOST:
                        continue
                    event = self.blocks.event(replica, told)
                    self.told[mode] += len(event.blocks) if event.stored else 0
                    for listener in self.listeners:
                        if listener.mode is mode:
                            listener.router.apply(event)
            self.states[replica] = after
            self.after(replica)

        return observe

    def requests(self, number: int) -> Iterator[list[int]]:
        """Requests one after another: each is yielded before it is served."""
        for _ in range(number):
            which = self.random.randrange(len(self.sessions))
            home, history = self.sessions[which]
            if self.random.random() < self.sizes.moved:
                home = self.random.randrange(self.sizes.replicas)
            if self.random.random() < 0.1:  # a retry, or a branch of an agent
                history = history[: self.random.randrange(len(self._prompt), len(history) + 1)]
            units = history + self._fresh(1 + self.random.randrange(self.sizes.turn))
            yield units
            self._serve(home, units)
            done = len(units) > self.sizes.longest
            self.sessions[which] = self._session() if done else (home, units)
            if self.random.random() < self.sizes.resets:
                self._flush(home)

    def resident(self, replica: int, units: list[int]) -> list[tuple[int, int]]:
        """Spans of the request, in units, that the replica has: what is true."""
        found: list[tuple[int, int]] = []
        for span in match(self.states[replica], pack(units), at_most=len(units)).spans:
            if span.residency is not Residency.HOLE:
                if found and found[-1][1] == span.start:
                    found[-1] = found[-1][0], span.end
                else:
                    found.append((span.start, span.end))
        return found

    def _serve(self, replica: int, units: list[int]) -> None:
        cache = self.caches[replica]
        with suppress(PenelopeError):
            plan = cache.plan(pack(units))
            request = cache.admit(plan)
            self.running.append((replica, request))
            self.seen["holes"] += len(plan.holes)
            for start, end in plan.holes:
                cache.refill(request, start, end)
            cache.checkpoint(request, pack(units))
        if len(self.running) > self.sizes.replicas:
            where, ended = self.running.pop(0)
            self.caches[where].release(ended)

    def _flush(self, replica: int) -> None:
        for where, request in self.running:
            self.caches[where].release(request)
        self.running = []
        self.caches[replica].reset()
