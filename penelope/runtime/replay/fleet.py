"""Several servers behind a router: what it is told, how late, and what happens when one fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from penelope.cost import CostModel
from penelope.policy import ORDERS, POLICIES, UNIT_BYTES, Effect, Key, State
from penelope.policy.errors import InvalidConfigError
from penelope.runtime.announcing import Announce, announcements
from penelope.runtime.replay.caches import CoreCache
from penelope.runtime.replay.routers import (
    LISTENING,
    ROUTERS,
    Asked,
    ListeningRouter,
    Replica,
    RoundRobin,
    Routed,
    Router,
    block_names,
    router,
)
from penelope.runtime.replay.server import LONGEST, Job, Server
from penelope.runtime.traces import Request


@dataclass(frozen=True, slots=True)
class Failure:
    """A replica that goes down and stays down."""

    replica: int
    at_s: float


MOST_REPLICAS: Final = 1024


@dataclass(frozen=True, slots=True)
class FleetSetting:
    """Several servers, and what is in front of them; one server needs no router."""

    replicas: int = 1
    router: str = "round-robin"
    kv_events: Announce = Announce.STICKY
    """What the replicas announce to a router that listens."""
    event_lag_s: float = 0.0
    """Seconds until it hears of it."""
    failures: tuple[Failure, ...] = ()

    def check(self, policies: Sequence[str], host_tokens: int) -> None:
        """Raises `InvalidConfigError` for what cannot be, or not under one of these policies."""
        if not 1 <= self.replicas <= MOST_REPLICAS:
            raise InvalidConfigError(f"--replicas is {self.replicas}: give 1 to {MOST_REPLICAS}")
        if not 0 <= self.event_lag_s <= LONGEST:  # "not a number" is neither
            raise InvalidConfigError(
                f"--event-lag is {self.event_lag_s}: give a number from 0 to {LONGEST:.0f} seconds"
            )
        if self.router not in ROUTERS:
            raise InvalidConfigError(
                f"--router {self.router} is not known: choose from {', '.join(ROUTERS)}"
            )
        self._check_failures()
        if self.replicas == 1:
            return
        if "clairvoyant" in policies:
            raise InvalidConfigError(
                "policy 'clairvoyant' knows the future of one server: leave it or --replicas out"
            )
        if self.router not in LISTENING:
            return
        for name in policies:
            if name not in POLICIES and name not in ORDERS:
                raise InvalidConfigError(
                    f"policy '{name}' tells no router what it holds: choose --router round-robin "
                    "or session with it"
                )
        if host_tokens and self.kv_events is Announce.EXACT:
            raise InvalidConfigError(
                "--kv-events exact tells tier by tier, which no router here weighs: choose sticky "
                "or prefix, or leave --host-tokens out"
            )

    def _check_failures(self) -> None:
        down = {failure.replica for failure in self.failures}
        for failure in self.failures:
            if not 0 <= failure.replica < self.replicas or not 0 <= failure.at_s <= LONGEST:
                raise InvalidConfigError(
                    f"--fail {failure.replica}@{failure.at_s:g} cannot be: give replica@seconds, a "
                    f"replica from 0 to {self.replicas - 1}"
                )
        if len(down) < len(self.failures) or len(down) >= self.replicas > 1:
            raise InvalidConfigError(
                "--fail names every replica, or one of them twice: leave one alive, and let each "
                "fail once"
            )

    def fleet(self, servers: Sequence[Server], cost: CostModel, unit_tokens: int) -> Fleet:
        """These servers behind a new router.  Raises `InvalidConfigError` as `check` does."""
        made = router(self.router, len(servers), cost, unit_tokens)
        return Fleet(servers, made, self.kv_events, self.event_lag_s, self.failures)


ALONE: Final = FleetSetting()
"""One server."""


class _Told(NamedTuple):
    """An event on its way to the router."""

    arrives: float
    replica: int
    tell: Callable[[], None]


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
        if isinstance(self.router, ListeningRouter):
            for number, server in enumerate(self.servers):
                assert isinstance(server.cache, CoreCache), "only the core announces what it holds"
                server.cache.heard = partial(self._hear, number, self.router)

    def alive(self, number: int) -> bool:
        return self.replicas[number] in self._alive

    def send(self, job: Job, session: int, now: float) -> int:
        """Give a request to a replica: which one."""
        self._listen(now)
        request = job.request
        listens = isinstance(self.router, ListeningRouter)
        blocks = block_names(request.prompt) if listens else []
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
        if isinstance(self.router, ListeningRouter):
            self.router.cleared(number)
        self.rerouted += len(lost)
        return lost

    # What the router hears

    def _hear(
        self,
        number: int,
        router: ListeningRouter,
        before: State,
        after: State,
        effects: tuple[Effect, ...],
    ) -> None:
        for told in announcements(self.kv_events, before, after, effects):
            names = block_names(Key(told.key[: told.end * UNIT_BYTES]))
            blocks = names[told.start :]
            if told.stored:
                parent = names[told.start - 1] if told.start else None
                tell = partial(router.stored, number, blocks, parent)
            else:
                tell = partial(router.removed, number, blocks)
            self._coming.append(_Told(self._now + self.lag_s, number, tell))

    def _listen(self, now: float) -> None:
        self._now = now
        while self._coming and self._coming[0].arrives <= now:
            self._coming.popleft().tell()
