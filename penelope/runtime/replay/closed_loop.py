"""The clients: N sessions at a time, each thinking, asking and waiting for its answer."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from penelope.runtime.replay.fleet import Fleet
from penelope.runtime.replay.server import Counters, Job, Server, total
from penelope.runtime.replay.sharing import shared_units
from penelope.runtime.traces import Request, Session, Trace


@dataclass(slots=True)
class Replayed:
    """What one replay of one trace under one policy gave.  Times in seconds."""

    fleet: Fleet
    ttft: list[float] = field(default_factory=list)
    """From a request's arrival to its first token, request by request."""
    jct: list[float] = field(default_factory=list)
    """From a session's first request to its last token, think times included."""
    ended_s: float = 0.0
    """When the last answer was complete."""

    @property
    def counters(self) -> Counters:
        """Of all servers together."""
        return total([server.counters for server in self.fleet.servers])


def _ignore() -> None:
    pass


def replay(
    trace: Trace,
    server: Server | Fleet,
    concurrency: int,
    answered: Callable[[], None] = _ignore,
) -> Replayed:
    """Replay every session of a trace, `concurrency` at a time, on one server or a fleet.

    A session's requests follow one another: each is sent its think time after the answer to the
    one before.  When a session ends, the next one starts.  Every request must fit the device when
    nothing else runs.  `answered` is called after every request.
    """
    fleet = server if isinstance(server, Fleet) else Fleet([server])
    return _Loop(trace, fleet, concurrency, answered).run()


@dataclass(slots=True, eq=False)
class _Active:
    """A session in progress."""

    session: Session
    number: int
    began: float
    shared: tuple[int, ...]
    """Units that each stream begins with as others do."""
    answered: int = 0
    """Turns of the main stream."""
    open_streams: int = 0


class _Loop:
    def __init__(
        self, trace: Trace, fleet: Fleet, concurrency: int, on_answer: Callable[[], None]
    ) -> None:
        self.trace = trace
        self.fleet = fleet
        self.concurrency = concurrency
        self.on_answer = on_answer
        self.sessions = zip(count(), trace.sessions, shared_units(trace))
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.order = count()
        self.busy = [False] * len(fleet.servers)
        self.stirred: set[int] = set()
        """Servers to which something has happened: the others still compute, wait or rest."""
        self.result = Replayed(fleet)

    def run(self) -> Replayed:
        for failure in self.fleet.failures:
            self.at(failure.at_s, partial(self.fail, failure.replica))
        for _ in range(min(self.concurrency, len(self.trace.sessions))):
            self.next_session(0.0)
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                heapq.heappop(self.events)[2](now)
            self.start_steps(now)
        idle = (s.idle for n, s in enumerate(self.fleet.servers) if self.fleet.alive(n))
        assert all(idle), "a request waits and nothing will ever happen"
        return self.result

    def at(self, time: float, act: Callable[[float], None]) -> None:
        """Simultaneous events happen in the order in which they were foreseen."""
        heapq.heappush(self.events, (time, next(self.order), act))

    # Servers

    def start_steps(self, now: float) -> None:
        for number in sorted(self.stirred):
            if self.busy[number] or self.fleet.servers[number].idle:
                continue
            seconds = self.fleet.step(number, now)
            if seconds is not None:
                self.busy[number] = True
                self.at(now + seconds, partial(self.end_step, number))
        self.stirred.clear()

    def end_step(self, number: int, now: float) -> None:
        if not self.fleet.alive(number):
            return
        self.busy[number] = False
        self.stirred.add(number)
        per_token = self.fleet.servers[number].timing.seconds_per_output_token
        for job in self.fleet.end_step(number, now):
            if not job.again:
                self.result.ttft.append(now - job.arrival)
            # The prefill gave the first token.
            rest = max(0, job.request.out_tokens - 1) * per_token
            self.at(now + rest, partial(self.end_request, job))

    def end_request(self, job: Job, now: float) -> None:
        number = self.fleet.end_request(job, now)
        if number is not None:
            self.result.ended_s = now
            self.stirred.add(number)
            job.ended(now)

    def submit(self, job: Job, session: int, now: float) -> None:
        self.stirred.add(self.fleet.send(job, session, now))

    def fail(self, number: int, now: float) -> None:
        """What a replica was doing when it went down is asked for again, elsewhere."""
        for sent in self.fleet.fail(number):
            old = sent.job
            again = Job(old.request, old.arrival, old.ended, old.shared, again=sent.prefilled)
            self.submit(again, sent.session, now)

    # Clients

    def next_session(self, now: float) -> None:
        following = next(self.sessions, None)
        if following is not None:
            number, session, shared = following
            active = _Active(session, number, now, shared)
            self.start_streams(active, now)

    def start_streams(self, active: _Active, now: float) -> None:
        """Start the streams that begin after as many answers as the main stream has now."""
        for index, stream in enumerate(active.session.streams):
            if stream.starts_after == active.answered:
                active.open_streams += 1
                self.send(active, index, stream.requests(), now + stream.delay_s)

    def send(self, active: _Active, index: int, requests: Iterator[Request], now: float) -> None:
        """Send the stream's next request after its think time, or end the stream."""
        request = next(requests, None)
        if request is None:
            self.at(now, partial(self.end_stream, active))
            return

        def answered(now: float) -> None:
            self.on_answer()
            if index == 0:
                active.answered += 1
                self.start_streams(active, now)
            self.send(active, index, requests, now)

        def arrive(now: float) -> None:
            job = Job(request, now, answered, active.shared[index])
            self.submit(job, active.number, now)

        self.fleet.expect(request, now + request.think_s)
        self.at(now + request.think_s, arrive)

    def end_stream(self, active: _Active, now: float) -> None:
        """The session ends with its last open stream."""
        active.open_streams -= 1
        if active.open_streams == 0:
            self.result.jct.append(now - active.began)
            self.next_session(now)
