"""The server model, step by step, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from penelope.policy.errors import InvalidConfigError
from penelope.runtime.replay.server import Job, Scheduler, Server, Timing
from tests.unit.replaying import TIMING, Ask, job, seconds, server, span


def run(engine: Server, *asks: Ask) -> list[float | None]:
    """Serve requests one after the other; how long each one's only prefill step takes."""
    durations = []
    for ask in asks:
        request = job(ask)
        engine.submit(request)
        durations.append(engine.start_step())
        assert engine.end_step() == [request]
        engine.end_request(request)
    return durations


def chunks(tokens: int) -> Timing:
    return Timing(
        TIMING.seconds_per_unit,
        TIMING.seconds_per_prefill,
        TIMING.seconds_per_output_token,
        chunk_tokens=tokens,
    )


A, B = range(5), range(100, 105)
"""Histories of four blocks of prompt and one of output."""

A_ASKS, B_ASKS = (Ask(h[:4], output=h[4:]) for h in (A, B))


def test_what_the_cache_holds_is_not_computed() -> None:
    engine = server()
    first = Ask([0, 1, 2], output=[3])
    second = Ask([0, 1, 2, 3, 4, 5])
    # [0, 30) costs 3,435; [40, 60) costs 2,990: the output of the first is in the cache.
    assert run(engine, first, second) == [1 + 3435 / 1024, 1 + 2990 / 1024]
    counters = engine.counters
    assert (counters.requests, counters.prompt_tokens, counters.computed_tokens) == (2, 90, 50)
    assert (counters.computed, counters.recomputed, counters.evicted_tokens) == (6425, 0, 0)


def test_a_prompt_that_is_cached_whole_computes_its_last_block() -> None:
    engine = server()
    assert run(engine, Ask([0, 1, 2]), Ask([0, 1, 2]))[1] == seconds(span(20, 30))
    assert engine.counters.recomputed == span(20, 30)


def test_the_part_of_a_block_at_the_end_is_computed_and_never_cached() -> None:
    engine = server()
    again = Ask([0, 1, 2], rest=4)
    assert run(engine, again, again) == [seconds(span(0, 34)), seconds(span(30, 34))]
    assert engine.counters.recomputed == 0


def test_eviction_makes_a_hole_that_is_computed_before_the_new_part() -> None:
    engine = server(10, timing=chunks(15))
    for ask in (A_ASKS, B_ASKS):
        serve_whole(engine, ask)
    # Ten units are full.  Two more evict the head of the only history that is not this one's own.
    serve_whole(engine, Ask([*A, 50], output=[51]))
    assert engine.counters.evicted_tokens == 20
    # B comes back with one block more: it recomputes [0, 20), in two steps, then [50, 60).
    request = job(Ask([*B, 150], output=[151]))
    engine.submit(request)
    assert engine.start_step() == seconds(span(0, 15))
    assert not engine.end_step()
    assert engine.start_step() == seconds(span(15, 20) + span(50, 60))
    assert engine.end_step() == [request]
    assert request.admission is not None
    assert request.admission.holes == ((0, 2),)
    assert engine.counters.holes == 1
    assert engine.counters.recomputed == span(0, 20)
    assert engine.counters.evicted_tokens == 20 + 40


def serve_whole(engine: Server, ask: Ask) -> None:
    request = job(ask)
    engine.submit(request)
    done: list[Job] = []
    while not done:
        assert engine.start_step() is not None
        done = engine.end_step()
    engine.end_request(request)


def test_an_arriving_hole_is_read_by_others_and_computed_once() -> None:
    engine = server(12, timing=chunks(20))
    for ask in (A_ASKS, B_ASKS, Ask([*A, 50, 51], output=[52])):
        serve_whole(engine, ask)
    assert engine.counters.evicted_tokens == 10  # the first block of B
    one, other = job(Ask([*B, 150], output=[151])), job(Ask([*B, 160], output=[161]))
    computed = engine.counters.computed_tokens
    engine.submit(one)
    engine.submit(other)
    # One refills [0, 10) and computes [50, 60); that fills the chunk.
    assert engine.start_step() == seconds(span(0, 10) + span(50, 60))
    assert engine.end_step() == [one]
    assert engine.start_step() == seconds(span(50, 60))
    assert engine.end_step() == [other]
    assert engine.counters.computed_tokens - computed == 30
    assert one.admission is not None
    assert other.admission is not None
    assert (one.admission.holes, other.admission.holes) == (((0, 1),), ())


def test_two_requests_of_one_step_share_a_refill() -> None:
    engine = server(12, timing=chunks(30))
    for ask in (A_ASKS, B_ASKS, Ask([*A, 50, 51], output=[52])):
        serve_whole(engine, ask)
    one, other = job(Ask([*B, 150], output=[151])), job(Ask([*B, 160], output=[161]))
    engine.submit(one)
    engine.submit(other)
    assert engine.start_step() == seconds(span(0, 10) + 2 * span(50, 60))
    assert engine.end_step() == [one, other]
    # What another request computes at the same time is a hit.
    found = engine.counters.device_hit_tokens
    assert found + engine.counters.computed_tokens == engine.counters.prompt_tokens


def test_a_large_prompt_takes_several_steps_and_small_ones_share_one() -> None:
    engine = server(timing=chunks(25))
    large, small, third = job(Ask(range(6))), job(Ask([10])), job(Ask([20, 21, 22]))
    for request in (large, small, third):
        engine.submit(request)
    expected = [
        (span(0, 25), []),
        (span(25, 50), []),
        # The end of the large one, the small one, and what still fits of the third.
        (span(50, 60) + span(0, 10) + span(0, 5), [large, small]),
        (span(5, 30), [third]),
    ]
    for cost, done in expected:
        assert engine.start_step() == seconds(cost)
        assert engine.end_step() == done
    assert engine.idle


def order(scheduler: Scheduler, *asks: Ask) -> list[int]:
    """In which order a step completes requests, given that A's history is cached."""
    engine = server(scheduler=scheduler)
    run(engine, A_ASKS)
    jobs = [job(ask) for ask in asks]
    for request in jobs:
        engine.submit(request)
    engine.start_step()
    return [jobs.index(request) for request in engine.end_step()]


@pytest.mark.parametrize(
    ("scheduler", "expected"), [(Scheduler.FCFS, [0, 1, 2, 3]), (Scheduler.LPM, [2, 1, 0, 3])]
)
def test_lpm_takes_the_longest_cached_prefix_first_and_then_the_oldest(
    scheduler: Scheduler, expected: list[int]
) -> None:
    cold, part, whole, late = Ask([7]), Ask([*A[:2], 8, 9]), Ask([*A, 5]), Ask([6])
    assert order(scheduler, cold, part, whole, late) == expected


def test_lpm_counts_what_lies_behind_a_hole() -> None:
    engine = server(14)
    for ask in (A_ASKS, B_ASKS, Ask([200, 201, 202])):
        serve_whole(engine, ask)
    serve_whole(engine, Ask([300]))  # takes two blocks of the head of A
    holed, prefix = job(Ask([*A, 5])), job(Ask([200, 201, 6]))
    for request in (prefix, holed):
        engine.submit(request)
    engine.start_step()
    assert engine.end_step() == [holed, prefix]
    assert holed.admission is not None
    assert holed.admission.holes == ((0, 2),)


def test_a_request_without_room_waits_until_a_running_one_ends() -> None:
    engine = server(6)
    running, waiting = job(Ask(range(4))), job(Ask(range(10, 14)))
    engine.submit(running)
    engine.submit(waiting)
    assert engine.start_step() == seconds(span(0, 40))
    assert engine.end_step() == [running]
    assert not engine.idle
    assert engine.start_step() is None
    engine.end_request(running)
    assert engine.start_step() == seconds(span(0, 40))
    assert engine.end_step() == [waiting]
    # Five units were used by the first, five are needed where one is free.
    assert engine.counters.evicted_tokens == 40


def test_nobody_overtakes_a_request_that_waits_for_room() -> None:
    engine = server(6, scheduler=Scheduler.FCFS)
    running, blocked, small = job(Ask(range(3))), job(Ask(range(10, 14))), job(Ask([20]))
    engine.submit(running)
    engine.start_step()
    engine.end_step()
    engine.submit(blocked)
    engine.submit(small)
    assert engine.start_step() is None


def test_over_eviction_is_what_a_whole_node_gives_beyond_the_need() -> None:
    counted = {}
    for name in ("tail-block", "sglang-lru"):
        engine = server(6, name)
        # The history is two nodes, of four blocks and of one; the second request needs two.
        run(engine, A_ASKS, Ask([20, 21]))
        counted[name] = engine.counters.evicted_tokens, engine.counters.over_evicted_tokens
    assert counted == {"tail-block": (20, 0), "sglang-lru": (50, 30)}


def test_the_largest_request_that_the_device_holds_runs_alone() -> None:
    engine = server(5)
    run(engine, B_ASKS, A_ASKS)
    assert engine.counters.evicted_tokens == 50


def test_peak_of_nodes_and_time_in_the_core_are_counted() -> None:
    engine = server(10)
    run(engine, A_ASKS, B_ASKS, Ask(range(200, 209)))
    # The root and two histories; then only the root and one, for which the others went.
    assert (engine.counters.nodes_max, engine.cache.nodes) == (3, 2)
    assert engine.counters.policy_seconds > 0


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e7])
@pytest.mark.parametrize(
    "field", ["seconds_per_unit", "seconds_per_prefill", "seconds_per_output_token"]
)
def test_a_time_that_is_none_is_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidConfigError, match=f"{field} is .*: give a number from 0 to 1000000"):
        Timing(**{**asdict(TIMING), field: value})


def test_a_chunk_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="a chunk of 0 tokens computes nothing"):
        Timing(1.0, chunk_tokens=0)
