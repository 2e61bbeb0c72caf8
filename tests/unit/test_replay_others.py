"""The orders of victims that others propose, and the clairvoyant: small histories, by hand."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penelope import cli
from penelope.policy import POLICIES, UNIT_BYTES, Config, Residency, match, pack
from penelope.policy.errors import InvalidConfigError
from penelope.runtime.replay.arms import OTHERS, cache, check_tiers, switches
from penelope.runtime.replay.caches import Ask, Waiter
from penelope.runtime.replay.compare import compare
from penelope.runtime.replay.others import (
    ChoosingCache,
    Clairvoyant,
    Retention,
    RoundRobinTails,
    TailLatencyLru,
)
from penelope.runtime.replay.server import Scheduler
from penelope.runtime.traces import Trace
from tests.unit import replaying
from tests.unit.replaying import setting
from tests.unit.test_replay_compare import naive_first_time_cost, tight, traces

A, B, C = range(10, 14), range(20, 24), range(30, 34)
"""Histories of four units."""


def config(capacity: int, policy: str = "tail-block", linear: int = 0) -> Config:
    return Config(capacity, 1, 1, *POLICIES[policy], linear_cost=linear)


def serve(under_test: ChoosingCache, units: Iterable[int]) -> int:
    """Serve a request for these units: how many were lost for it."""
    key = pack(units)
    found = under_test.admit(Ask(key, len(key) // UNIT_BYTES, 0))
    assert found is not None
    under_test.computed(found, key)
    under_test.finished(found, key)
    return found.dropped


def kept(under_test: ChoosingCache, units: Iterable[int]) -> list[int]:
    """Which positions of a history are cached."""
    key = pack(units)
    spans = match(under_test.state, key, at_most=len(key) // UNIT_BYTES).spans
    return [p for s in spans if s.residency is not Residency.HOLE for p in range(s.start, s.end)]


def test_in_round_robin_everybody_gives_a_little_of_the_end() -> None:
    under_test = RoundRobinTails(config(12))
    for history in (A, B, C):
        serve(under_test, history)
    for unit, left in ((90, (3, 4, 4)), (91, (3, 3, 4)), (92, (3, 3, 3))):
        assert serve(under_test, [unit]) == 1
        assert tuple(len(kept(under_test, history)) for history in (A, B, C)) == left
    assert kept(under_test, A) == [0, 1, 2]
    # The three short ones give the one unit that they have, and it is A's turn again.
    assert serve(under_test, range(93, 97)) == 4
    assert [len(kept(under_test, history)) for history in (A, B, C)] == [2, 3, 3]


def test_lru_would_take_it_all_from_the_first() -> None:
    """That the example above tells the two apart."""
    state = cache("tail-block", config(12))
    for units in (A, B, C, [90], [91], [92]):
        key = pack(units)
        found = state.admit(Ask(key, len(key) // UNIT_BYTES, 0))
        assert found is not None
        state.computed(found, key)
        state.finished(found, key)
    assert state.reusable(Ask(pack(A), 4, 0)) == 1


def test_t_lru_takes_first_what_the_next_turn_can_do_without() -> None:
    under_test = TailLatencyLru(config(8), slack=1)
    serve(under_test, A)
    serve(under_test, B)
    assert serve(under_test, [90, 91]) == 2
    # Each may lack one.  LRU alone would have taken both from A.
    assert (kept(under_test, A), kept(under_test, B)) == ([0, 1, 2], [0, 1, 2])
    assert serve(under_test, [92, 93]) == 2
    # The last one can spare its end as well; after that the least recently used pays.
    assert kept(under_test, [90, 91]) == [0]
    assert (len(kept(under_test, A)), len(kept(under_test, B))) == (2, 3)


def test_t_lru_with_a_threshold_above_every_history_is_lru() -> None:
    under_test = TailLatencyLru(config(8), slack=8)
    serve(under_test, A)
    serve(under_test, B)
    serve(under_test, [90, 91, 92])
    assert (len(kept(under_test, A)), len(kept(under_test, B))) == (1, 4)


def retaining(first_s: float, second_s: float, now: float) -> tuple[int, int]:
    """What is kept of two histories used at these times when one unit is needed later."""
    under_test = Retention(config(8), seconds=30.0)
    for history, at in ((A, first_s), (B, second_s)):
        under_test.clock(at)
        serve(under_test, history)
    under_test.clock(now)
    serve(under_test, [90])
    return len(kept(under_test, A)), len(kept(under_test, B))


def test_what_has_expired_goes_first() -> None:
    assert retaining(0.0, 20.0, 31.0) == (3, 4)
    assert retaining(0.0, 20.0, 30.0) == (3, 4)  # a time to live of 30 s ends after 30 s
    assert retaining(0.0, 20.0, 60.0) == (3, 4)  # of two, the one that expired first


def test_while_all_is_retained_the_last_promise_is_broken() -> None:
    assert retaining(0.0, 20.0, 29.0) == (4, 3)


def clairvoyant(
    arrivals: dict[range, float], linear: int = 10, waits: Iterable[range] = ()
) -> Clairvoyant:
    """Histories A, B and C on a device that is full, and when each will be asked for again."""
    under_test = Clairvoyant(config(12, "penelope", linear))
    for history in (A, B, C):
        serve(under_test, history)
    under_test.clock(10.0)
    for history, arrival in arrivals.items():
        under_test.expect(pack([*history, history[0] + 50]), arrival)
    queue = [Waiter(n, pack([*one, one[0] + 50])) for n, one in enumerate(waits, 1)]
    under_test.line_up(queue)
    return under_test


def left(under_test: Clairvoyant, need: int) -> list[int]:
    serve(under_test, range(90, 90 + need))
    return [len(kept(under_test, history)) for history in (A, B, C)]


def test_a_history_that_nobody_will_use_goes_first() -> None:
    assert left(clairvoyant({A: 20.0, C: 1e6}), 2) == [4, 2, 4]


def test_then_the_one_that_is_wanted_last() -> None:
    assert left(clairvoyant({A: 20.0, B: 30.0, C: 40.0}), 2) == [4, 4, 2]
    assert left(clairvoyant({A: 40.0, B: 30.0, C: 20.0}), 2) == [2, 4, 4]


def test_a_dear_head_stays_though_it_is_wanted_later() -> None:
    """Without linear cost the first unit is free; after it A costs 1 and C still nothing."""
    under_test = clairvoyant({A: 40.0, B: 30.0, C: 20.0}, linear=0)
    serve(under_test, [90])
    serve(under_test, [91])
    assert len(kept(under_test, A)) == 3


def test_who_waits_is_served_before_who_is_still_to_come() -> None:
    assert left(clairvoyant({C: 10.5, B: 11.0}, waits=[A]), 2) == [4, 2, 4]
    assert left(clairvoyant({B: 11.0}, waits=[C, A]), 2) == [4, 2, 4]


def test_a_request_that_arrives_is_no_longer_to_come() -> None:
    under_test = clairvoyant({A: 20.0, B: 30.0, C: 40.0})
    under_test.line_up([Waiter(1, pack([*C, C[0] + 50]))])
    assert left(under_test, 2) == [4, 2, 4]


# --- whatever the sizes ---------------------------------------------------------------------------


@settings(max_examples=12)
@given(
    traces(), st.integers(0, 12), st.integers(1, 4), st.sampled_from(Scheduler), st.integers(1, 3)
)
def test_they_do_the_same_work_and_free_no_more_than_a_block_too_much(
    replayed: Trace, slack: int, concurrency: int, scheduler: Scheduler, block: int
) -> None:
    cell = setting(
        tight(replayed, slack),
        concurrency=concurrency,
        scheduler=scheduler,
        block_tokens=block * replaying.UNIT,
    )
    result = compare([replayed], cell, ["penelope", *OTHERS])
    prompts = sum(r.in_tokens for r in replaying.requests(replayed))
    for name, s in result.policies.items():
        assert s.computed_units - s.recomputed_units == naive_first_time_cost(replayed), name
        assert s.device_hit_tokens + s.computed_tokens == prompts, name
        evictions = s.requests  # at most one an admission, rounded up to a block
        assert s.over_evicted_tokens < evictions * block * replaying.UNIT, name


# --- names and refusals ---------------------------------------------------------------------------


def test_every_name_is_an_arm_with_one_tier() -> None:
    assert OTHERS == ("round-robin-tails", "t-lru", "ttl", "clairvoyant")
    for name in OTHERS:
        assert switches(name) == POLICIES["penelope" if name == "clairvoyant" else "tail-block"]
        under_test = cache(name, config(8, "penelope" if name == "clairvoyant" else "tail-block"))
        assert isinstance(under_test, ChoosingCache)
        check_tiers(name, 0)
        with pytest.raises(InvalidConfigError, match=f"policy '{name}' has one tier: leave"):
            check_tiers(name, 1024)
    two = Config(8, 1, 1, *POLICIES["tail-block"], host_capacity=8, swap_buffer=1)
    with pytest.raises(InvalidConfigError, match="has one tier"):
        cache("ttl", two)
    with pytest.raises(InvalidConfigError, match="has one tier"):
        Retention(two, 1.0)


@pytest.mark.parametrize("command", ["replay", "sweep --out OUT"])
def test_an_arm_with_one_tier_refuses_a_host(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    words = command.replace("OUT", f"{tmp_path}/out").split()
    options = "--sessions 1 --max-context 34000 --host-tokens 65536 --policy penelope,t-lru"
    assert cli.main([*words, *options.split()]) == cli.USER_ERROR
    assert "policy 't-lru' has one tier: leave --host-tokens out" in capsys.readouterr().err
