"""The closed loop: who sends what when, and what the loop holds on to."""

from __future__ import annotations

import gc
from collections import defaultdict
from itertools import count, pairwise

import pytest

from penelope.runtime.replay.caches import CoreCache
from penelope.runtime.replay.closed_loop import Replayed, replay
from penelope.runtime.replay.server import Job, Scheduler, Server
from penelope.runtime.traces import GeneratorOptions, Request, Trace, generate
from tests.unit.replaying import (
    TIMING,
    TOY,
    UNIT,
    Ask,
    seconds,
    setting,
    span,
    stream,
    trace,
    units_of,
)


class Watched(Server):
    """A server that notes when each request arrives and when its answer is complete.

    Requests are told apart by the last unit of their prompt.
    """

    def __init__(self, unit_tokens: int = UNIT, device_units: int = 1 << 20) -> None:
        config = setting(device_units).config("penelope", UNIT)
        self.core = CoreCache(config)
        super().__init__(self.core, TOY, TIMING, Scheduler.LPM, unit_tokens)
        self.arrived: dict[int, float] = {}
        self.answered: dict[int, float] = {}
        self.running = 0
        self.most_running = 0

    def submit(self, job: Job) -> None:
        name = units_of(job.request.prompt)[-1]
        self.arrived[name] = job.arrival
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        ended = job.ended

        def noted(now: float) -> None:
            self.answered[name] = now
            self.running -= 1
            ended(now)

        job.ended = noted
        super().submit(job)


def watch(replayed: Trace, concurrency: int) -> tuple[Watched, Replayed]:
    engine = Watched()
    return engine, replay(replayed, engine, concurrency)


def test_one_session_to_the_second() -> None:
    first = Ask([0, 1, 2], output=[3])
    second = Ask([0, 1, 2, 3, 4, 5], think_s=2.0)
    engine, result = watch(trace([stream([first, second])]), 1)
    ttft = [seconds(span(0, 30)), seconds(span(40, 60))]
    # The prefill gives the first of ten tokens.
    ended = ttft[0] + 9 * 0.5
    assert result.ttft == ttft
    assert engine.arrived == {2: 0.0, 5: ended + 2.0}
    assert result.jct == [ended + 2.0 + ttft[1] + 9 * 0.5]


def test_a_request_waits_for_the_step_that_runs_when_it_arrives() -> None:
    one, other = [stream([Ask([0])])], [stream([Ask([10], think_s=0.25)])]
    _, result = watch(trace(one, other), 2)
    step = seconds(span(0, 10))
    assert result.ttft == [step, 2 * step - 0.25]


def test_requests_that_arrive_together_share_a_step() -> None:
    _, result = watch(trace([stream([Ask([0])])], [stream([Ask([10])])]), 2)
    assert result.ttft == [seconds(2 * span(0, 10))] * 2


def test_an_answer_without_tokens_ends_with_its_prefill() -> None:
    _, result = watch(trace([stream([Ask([0], out_tokens=0)])]), 1)
    assert result.jct == result.ttft == [seconds(span(0, 10))]


def test_the_next_session_starts_when_one_ends_and_thinks_first() -> None:
    sessions = [[stream([Ask([i * 10], think_s=i)])] for i in range(4)]
    engine, result = watch(trace(*sessions), 1)
    ends = [0.0, *(engine.answered[i * 10] for i in range(4))]
    assert result.jct == [end - began for began, end in pairwise(ends)]
    assert [engine.arrived[i * 10] for i in range(4)] == [ends[i] + i for i in range(4)]


@pytest.mark.parametrize("concurrency", [1, 2, 3, 10, 10**9])
def test_no_more_sessions_run_than_are_allowed(concurrency: int) -> None:
    sessions = [[stream([Ask([i * 10, 1]), Ask([i * 10, 2])])] for i in range(6)]
    engine, result = watch(trace(*sessions), concurrency)
    assert engine.most_running == min(concurrency, 6)
    assert len(result.jct) == 6


def test_a_sub_agent_starts_after_the_stated_answers_and_nobody_waits_for_it() -> None:
    main = [Ask([0]), Ask([0, 1], think_s=1.0), Ask([0, 2], think_s=1.0)]
    agent = [Ask([50], think_s=0.5, out_tokens=1000), Ask([50, 51], think_s=3.0)]
    whole = trace([stream(main), stream(agent, starts_after=1, delay_s=4.0)], [stream([Ask([90])])])
    engine, result = watch(whole, 1)
    assert engine.arrived[50] == engine.answered[0] + 4.0 + 0.5
    assert engine.arrived[51] == engine.answered[50] + 3.0
    # The main stream went on: each request a second after the answer before.
    assert engine.arrived[1] == engine.answered[0] + 1.0
    assert engine.arrived[2] == engine.answered[1] + 1.0
    assert engine.answered[2] < engine.answered[50]
    # The session ends with its last stream, and only then the next begins.
    assert engine.arrived[90] == engine.answered[51]
    assert result.jct[0] == engine.answered[51]


def test_answers_of_a_sub_agent_start_nobody() -> None:
    early = stream([Ask([40]), Ask([40, 41])])
    late = stream([Ask([60])], starts_after=1)
    engine, _ = watch(trace([stream([Ask([0], out_tokens=500)]), early, late]), 1)
    assert engine.answered[41] < engine.answered[0] == engine.arrived[60]


def test_sub_agents_may_start_with_the_session_and_after_its_last_answer() -> None:
    first = stream([Ask([40])], starts_after=0, delay_s=2.0)
    last = stream([Ask([60])], starts_after=1, delay_s=2.0)
    engine, result = watch(trace([stream([Ask([0])]), first, last]), 1)
    assert engine.arrived[40] == 2.0
    assert engine.arrived[60] == engine.answered[0] + 2.0
    assert result.jct == [engine.answered[60]]


def test_every_request_is_answered_once_and_told() -> None:
    sessions = [[stream([Ask([i, 50 + i]), Ask([i, 70 + i])])] for i in range(5)]
    told = []
    engine = Watched()
    replay(trace(*sessions), engine, 2, lambda: told.append(len(engine.answered)))
    assert told == list(range(1, 11))
    assert engine.idle
    assert not engine.core.state.leases
    assert engine.core.state.totals.reserved == 0


def test_finished_requests_are_forgotten() -> None:
    """A long replay holds the requests in progress, not those that it has answered."""
    generated = generate(GeneratorOptions(sessions=4, max_context=40_000, median_requests=30))
    config = setting().config("penelope", UNIT)
    engine = Server(CoreCache(config), TOY, TIMING, Scheduler.LPM, generated.unit_tokens)
    most: dict[type, int] = defaultdict(int)
    answers = count()

    def answered() -> None:
        if next(answers) % 8:
            return  # To look at every object there is takes a second where all tests run.
        for kind in (Job, Request):
            # No closure or generator may keep one: the collector is not asked to help.
            live = sum(type(thing) is kind for thing in gc.get_objects())
            most[kind] = max(most[kind], live)

    gc.collect()
    replay(generated, engine, 2, answered)
    assert engine.counters.requests > 60
    # Two sessions of one stream: no more than their two requests at a time.
    assert 1 <= most[Job] <= 2
    assert 1 <= most[Request] <= 2
