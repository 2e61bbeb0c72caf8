"""Two tiers in the replay: moves and their time by hand, and what no size of the host changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penelope.policy import POLICIES, UNIT_BYTES, Config, Residency, match, pack
from penelope.policy.errors import InvalidConfigError
from penelope.runtime.replay.arms import ARMS, cache
from penelope.runtime.replay.caches import Admission, Ask, CoreCache, ReplayCache
from penelope.runtime.replay.compare import Setting, Summary, compare
from penelope.runtime.replay.server import Scheduler, Server, Timing
from penelope.runtime.traces import Trace
from tests.unit import replaying
from tests.unit.replaying import TIMING, TOY, UNIT, job, seconds, setting, span, stream, trace
from tests.unit.test_replay_compare import naive_first_time_cost, tight, traces

MOVED = ("device_hit_tokens", "host_hit_tokens", "demoted_tokens", "swapped_tokens")


def tiered(cell: Setting, host_units: int, swap_units: int = 1) -> Setting:
    return replace(cell, host_tokens=host_units * UNIT, swap_tokens=swap_units * UNIT)


def measured(summary: Summary) -> dict[str, Any]:
    values = asdict(summary)
    del values["policy_seconds"]
    return values


# --- by hand --------------------------------------------------------------------------------------


def engine_of(device: int, host: int, swap: int, timing: Timing = TIMING) -> Server:
    config = tiered(setting(device), host, swap).config("penelope", UNIT)
    return Server(CoreCache(config), TOY, timing, Scheduler.LPM, UNIT)


def serve(engine: Server, ask: replaying.Ask) -> float | None:
    """Serve a request that one step computes; how long the step takes."""
    request = job(ask)
    engine.submit(request)
    duration = engine.start_step()
    assert engine.end_step() == [request]
    engine.end_request(request)
    return duration


def moved(engine: Server) -> tuple[int, ...]:
    """Since the last call: hits on the device and on the host, demoted, swapped.  Tokens."""
    now = tuple(getattr(engine.counters, name) for name in MOVED)
    for name in MOVED:
        setattr(engine.counters, name, 0)
    return now


A, B = range(5), range(100, 105)
FULL = [replaying.Ask(h[:4], output=h[4:]) for h in (A, B)]
"""Two histories of five blocks, which fill a device of ten."""

COPIES = replace(TIMING, seconds_per_copied_token=1.0)


def test_what_the_device_cannot_hold_goes_to_the_host_and_comes_back() -> None:
    engine = engine_of(10, host=4, swap=2)
    for ask in FULL:
        serve(engine, ask)
    moved(engine)
    # Two blocks more: nothing is dropped while the host has room for two of the other history.
    serve(engine, replaying.Ask([*A, 50], output=[51]))
    assert moved(engine) == (50, 0, 20, 0)
    assert engine.counters.evicted_tokens == 0
    # Two more: the logical cache, twelve blocks, loses the head of A.  That makes room on the
    # device to promote into; two blocks of A make room for what is new.
    duration = serve(engine, replaying.Ask([*B, 150], output=[151]))
    assert moved(engine) == (30, 20, 20, 0)
    assert engine.counters.evicted_tokens == 20
    assert duration == seconds(span(50, 60))
    assert engine.counters.recomputed == 0


def exchanged(timing: Timing) -> tuple[float | None, Server]:
    """A device of ten blocks in use, a host of three: B has three there and wants them back."""
    engine = engine_of(10, host=4, swap=1, timing=timing)
    for ask in (*FULL, replaying.Ask([*A, 50], output=[51, 52], rest=9, out_tokens=11)):
        serve(engine, ask)
    assert engine.counters.demoted_tokens == 30
    moved(engine)
    # Its own last block is computed again, and one unit holds the token that follows.
    return serve(engine, replaying.Ask(B, rest=1, out_tokens=0)), engine


def test_full_tiers_exchange_through_the_buffer() -> None:
    _, engine = exchanged(TIMING)
    # One block of the thirteen is dropped for the new one, from the head of A, and leaves a block
    # free, which B's first takes without the buffer.  Two of A go out, one to where that was and
    # one into the buffer; two of B take their place; then one more of A makes room for the new one.
    device, host, demoted, swapped = moved(engine)
    assert (device, host) == (20, 30)
    assert engine.counters.evicted_tokens == 10
    assert (demoted, swapped) == (30, 20)
    assert isinstance(engine.cache, CoreCache)
    assert engine.cache.state.staged == 0


@pytest.mark.parametrize(
    ("overlapped", "expected"),
    # The step computes one token at position 50 and copies thirty each way.
    [(True, 1 + max(150 / 1024, 30.0)), (False, 1 + 150 / 1024 + 30.0)],
)
def test_copies_take_the_time_of_their_step(overlapped: bool, expected: float) -> None:
    assert exchanged(replace(COPIES, overlapped=overlapped))[0] == expected


def test_copies_shorter_than_the_computation_hide_behind_it() -> None:
    short = replace(COPIES, seconds_per_copied_token=1 / 1024)
    assert exchanged(short)[0] == 1 + 150 / 1024
    assert exchanged(replace(short, overlapped=False))[0] == 1 + 180 / 1024


def test_a_step_without_moves_takes_the_time_of_its_computation_only() -> None:
    engine = engine_of(10, host=4, swap=1, timing=replace(COPIES, overlapped=False))
    assert serve(engine, FULL[0]) == seconds(span(0, 40))


# --- the order that tiers of their own disturb ----------------------------------------------------

HISTORY = range(8)


def request(under_test: ReplayCache, units: Iterable[int]) -> Admission:
    """Serve a request for these units, all of which may be found."""
    key = pack(units)
    found = under_test.admit(Ask(key, len(key) // UNIT_BYTES, 0))
    assert found is not None
    under_test.computed(found, key)
    under_test.finished(found, key)
    return found


def lost_of_history(name: str) -> set[int]:
    """What is lost of a history whose head has come back to the device, its rest on the host."""
    position, granularity = POLICIES["penelope"]
    config = Config(8, 1, 1, position, granularity, host_capacity=9, swap_buffer=1)
    under_test = cache(name, config)
    assert isinstance(under_test, CoreCache)
    request(under_test, HISTORY)
    request(under_test, range(100, 104))  # sends the head to the host,
    request(under_test, HISTORY[:4])  # and this exchanges it for the rest.
    request(under_test, range(300, 304))  # The second history follows, and the host is full.
    spans = match(under_test.state, pack(HISTORY), at_most=8).spans
    assert [(s.end, s.residency) for s in spans] == [(4, Residency.DEVICE), (8, Residency.HOST)]
    assert (under_test.state.host_used, under_test.state.free) == (config.host_resident, 0)
    request(under_test, range(200, 202))
    left = match(under_test.state, pack(HISTORY), at_most=8).spans
    kept = {p for s in left if s.residency is not Residency.HOLE for p in range(s.start, s.end)}
    return set(HISTORY) - kept


def test_a_demotion_into_a_full_host_drops_no_later_part_of_the_history() -> None:
    """The head was used later than the rest, so the rest goes first, in one order or in two."""
    assert lost_of_history("penelope") == {4, 5}
    assert lost_of_history("independent-tiers") == {4, 5}


@pytest.mark.parametrize(("name", "dropped"), [("penelope", 0), ("independent-tiers", 4)])
def test_a_tier_of_its_own_drops_for_room_that_the_promotion_leaves(
    name: str, dropped: int
) -> None:
    position, granularity = POLICIES["penelope"]
    under_test = cache(name, Config(8, 1, 1, position, granularity, host_capacity=9, swap_buffer=1))
    for others in (HISTORY, range(100, 104), range(300, 304)):
        request(under_test, others)
    back = request(under_test, HISTORY[:4])  # All of it is on the host, which is full.
    assert (back.host, back.demoted) == (4, 4)
    assert (back.dropped, back.excess) == (dropped, dropped)


# --- whatever the sizes ---------------------------------------------------------------------------

NAMES = [*POLICIES, *ARMS]


@given(traces(), st.integers(0, 12), st.integers(1, 25), st.integers(1, 3), st.data())
def test_the_host_changes_where_hits_are_not_what_is_computed_first(
    replayed: Trace, slack: int, host: int, concurrency: int, data: st.DataObject
) -> None:
    swap = data.draw(st.integers(1, host))
    one = setting(tight(replayed, slack), concurrency=concurrency)
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=4, unique=True))
    result = compare([replayed], tiered(one, host, swap), names)
    prompts = sum(r.in_tokens for r in replaying.requests(replayed))
    for name, s in result.policies.items():
        assert s.computed_units - s.recomputed_units == naive_first_time_cost(replayed), name
        assert s.device_hit_tokens + s.host_hit_tokens + s.computed_tokens == prompts, name
        assert s.promoted_tokens == s.host_hit_tokens
        assert s.swapped_tokens <= s.promoted_tokens
        if name in POLICIES:
            # What is promoted was demoted, and what was demoted leaves the host once.
            assert s.promoted_tokens <= s.demoted_tokens, name


@given(traces(), st.integers(0, 8), st.integers(1, 3), st.sampled_from([0, 1, 3]))
def test_no_host_or_one_that_is_all_buffer_is_one_tier(
    replayed: Trace, slack: int, concurrency: int, host: int
) -> None:
    one = setting(tight(replayed, slack), concurrency=concurrency)
    two = replace(tiered(one, host, host), timing=replace(COPIES, overlapped=False))
    alone, together = (compare([replayed], cell, list(POLICIES)) for cell in (one, two))
    for name in POLICIES:
        assert measured(alone.policies[name]) == measured(together.policies[name]), name
        assert together.policies[name].demoted_tokens == 0


def test_a_host_as_large_as_all_histories_loses_nothing() -> None:
    sessions = [
        [stream([replaying.Ask([*range(100 * s, 100 * s + n)]) for n in (8, 12, 16)])]
        for s in range(6)
    ]
    replayed = trace(*sessions)
    cell = tiered(setting(40, concurrency=3), 200, 2)
    result = compare([replayed], cell, [*POLICIES, *ARMS])
    for name, s in result.policies.items():
        assert (s.recomputed_units, s.evicted_tokens) == (0, 0), name
        assert s.host_hit_tokens > 0, name


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "swap", "says"),
    [
        (100, 0, "--swap-tokens 0 is not a whole number of blocks of 20"),
        (100, -20, "--swap-tokens -20 is not a whole number of blocks of 20"),
        (100, 30, "--swap-tokens 30 is not a whole number of blocks of 20"),
        (30, 40, "--host-tokens 30 does not hold its swap buffer of 40: raise it"),
        (47, 60, "--host-tokens 47 does not hold its swap buffer of 60"),
    ],
)
def test_a_host_that_does_not_go_with_its_buffer_is_refused(
    host: int, swap: int, says: str
) -> None:
    cell = replace(setting(20, block_tokens=20), host_tokens=host, swap_tokens=swap)
    with pytest.raises(InvalidConfigError, match=says):
        compare([trace([stream([replaying.Ask([0])])])], cell, ["penelope"])


@pytest.mark.parametrize("name", ARMS)
def test_a_baseline_of_two_tiers_needs_a_host(name: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"policy '{name}' has two tiers"):
        compare([trace([stream([replaying.Ask([0])])])], setting(20), [name])


def test_every_name_says_what_it_is() -> None:
    assert len(set(ARMS)) == len(ARMS) == 9
    assert not set(ARMS) & set(POLICIES)
