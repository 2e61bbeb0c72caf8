"""Several servers behind a router: what it is told, how late, and what happens when one fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from penelope.policy import UNIT_BYTES, Effect, Key, State
from penelope.runtime.announcement import Announcement
from penelope.runtime.announcing import Announce, announcements
from penelope.runtime.replay.caches import CoreCache
from penelope.runtime.replay.routers import Asked, Replica, Routed, RoundRobin, Router, block_names
from penelope.runtime.replay.server import Job, Server
from penelope.runtime.traces import Request


@dataclass(frozen=True, slots=True)
class Failure:
    """A replica that goes down and stays down."""

    replica: int
    at_s: float


@dataclass(slots=True)
class _Told:
    """An event on its way to the router."""

    arrives: float
    replica: int
    stored: bool
    blocks: list[int]
    parent: int | None


@dataclass(slots=True, eq=False)
class Sent:
    """A request at a replica."""

    job: Job
    session: int
    routed: Routed
    tokens: int
    """Of its prompt and its output."""
    prefilled: bool = False
    """Whether its first token is out."""


@dataclass(slots=True, eq=False)
class Fleet:
    """Servers, and the router in front of them.

    `kv_events` says what the replicas announce and `lag_s` how many seconds later the router hears
    it; both only matter to a router that listens, whose caches must be of the core.
    """

    servers: Sequence[Server]
    router: Router = field(default_factory=RoundRobin)
    kv_events: Announce = Announce.STICKY
    lag_s: float = 0.0
    failures: Sequence[Failure] = ()
    replicas: list[Replica] = field(init=False)
    busy_s: list[float] = field(init=False)
    """Seconds that each server has computed."""
    rerouted: int = 0
    """Requests that were sent again because their replica failed."""
    _alive: list[Replica] = field(init=False)
    _sent: dict[Job, Sent] = field(default_factory=dict)
    _coming: deque[_Told] = field(default_factory=deque)
    _now: float = 0.0

    def __post_init__(self) -> None:
        self.replicas = [Replica(number) for number in range(len(self.servers))]
        self.busy_s = [0.0] * len(self.servers)
        self._alive = list(self.replicas)
        if self.router.listens:
            for number, server in enumerate(self.servers):
                assert isinstance(server.cache, CoreCache), "only the core announces what it holds"
                server.cache.heard = partial(self._hear, number)

    def alive(self, number: int) -> bool:
        return self.replicas[number] in self._alive

    def send(self, job: Job, session: int, now: float) -> int:
        """Give a request to a replica: which one."""
        self._listen(now)
        request = job.request
        blocks = block_names(request.prompt) if self.router.listens else []
        asked = Asked(session, request.prompt, request.in_tokens, blocks)
        routed = self.router.route(asked, self._alive)
        sent = Sent(job, session, routed, request.in_tokens + request.out_tokens)
        self._sent[job] = sent
        replica = routed.replica
        replica.open += 1
        replica.queued_tokens += routed.tokens
        replica.queued_cost += routed.cost
        replica.running_tokens += sent.tokens
        server = self.servers[replica.number]
        server.clock(now)
        server.submit(job)
        return replica.number

    def expect(self, request: Request, arrival: float) -> None:
        """A client will send this request then: only a single server may be clairvoyant."""
        if len(self.servers) == 1:
            self.servers[0].expect(request, arrival)

    def step(self, number: int, now: float) -> float | None:
        """Start a server's next step: its duration in seconds, None if it must wait."""
        self._now = now
        server = self.servers[number]
        server.clock(now)
        seconds = server.start_step()
        if seconds is not None:
            self.busy_s[number] += seconds
        return seconds

    def end_step(self, number: int, now: float) -> list[Job]:
        """The requests whose first token is out."""
        self._now = now
        self.servers[number].clock(now)
        done = self.servers[number].end_step()
        for job in done:
            sent = self._sent[job]
            sent.prefilled = True
            sent.routed.replica.queued_tokens -= sent.routed.tokens
            sent.routed.replica.queued_cost -= sent.routed.cost
        return done

    def end_request(self, job: Job, now: float) -> int | None:
        """An answer is complete: at which replica; None if that one had failed before."""
        sent = self._sent.pop(job, None)
        if sent is None:
            return None
        self._now = now
        replica = sent.routed.replica
        replica.open -= 1
        replica.running_tokens -= sent.tokens
        server = self.servers[replica.number]
        server.clock(now)
        server.end_request(job)
        return replica.number

    def fail(self, number: int) -> list[Sent]:
        """A replica goes down, with its KV and everything that it was doing, in order of arrival.

        Nothing happens to the last one that is alive, or to one that is down.
        """
        if not self.alive(number) or len(self._alive) == 1:
            return []
        self._alive.remove(self.replicas[number])
        lost = [s for s in self._sent.values() if s.routed.replica.number == number]
        for sent in lost:
            del self._sent[sent.job]
        self._coming = deque(told for told in self._coming if told.replica != number)
        self.router.cleared(number)
        self.rerouted += len(lost)
        return lost

    # What the router hears

    def _hear(
        self, number: int, before: State, after: State, effects: tuple[Effect, ...]
    ) -> None:
        for told in announcements(self.kv_events, before, after, effects):
            self._coming.append(self._event(number, told))

    def _event(self, number: int, told: Announcement) -> _Told:
        names = block_names(Key(told.key[: told.end * UNIT_BYTES]))
        parent = names[told.start - 1] if told.start else None
        arrives = self._now + self.lag_s
        return _Told(arrives, number, told.stored, names[told.start :], parent)

    def _listen(self, now: float) -> None:
        self._now = now
        while self._coming and self._coming[0].arrives <= now:
            told = self._coming.popleft()
            if told.stored:
                self.router.stored(told.replica, told.blocks, told.parent)
            else:
                self.router.removed(told.replica, told.blocks)
