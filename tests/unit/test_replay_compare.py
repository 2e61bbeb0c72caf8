"""What may and what may not depend on the policy; groups, ratios and refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penelope.policy import Key
from penelope.policy.errors import InvalidConfigError
from penelope.runtime.replay.compare import (
    COMPARED,
    Comparison,
    NothingFits,
    Setting,
    Summary,
    compare,
    fitting,
    largest_request,
)
from penelope.runtime.replay.server import Scheduler
from penelope.runtime.traces import GeneratorOptions, Trace, generate
from tests.unit.replaying import (
    NAMES,
    TIMING,
    TOY,
    UNIT,
    Ask,
    requests,
    setting,
    span,
    stream,
    trace,
    units_of,
)

# --- random traces --------------------------------------------------------------------------------


@st.composite
def streams(draw: st.DrawFn, base: int) -> list[Ask]:
    """Turns that append, rewrite or repeat; outputs that the next turn repeats or not."""
    prompt = [1, 2, 3, 4, 5, 6][: draw(st.integers(0, 6))]
    fresh = iter(range(base, base + 10_000))
    asks = []
    for _ in range(draw(st.integers(1, 5))):
        prompt = prompt[: draw(st.integers(0, len(prompt)))] if draw(st.booleans()) else prompt
        prompt = [*prompt, *(next(fresh) for _ in range(draw(st.integers(0, 5))))]
        prompt = prompt or [next(fresh)]
        rest, out_tokens = draw(st.integers(0, UNIT - 1)), draw(st.integers(0, 35))
        output = None
        if draw(st.booleans()):
            output = [next(fresh) for _ in range((rest + out_tokens) // UNIT)]
        think = draw(st.sampled_from([0.0, 0.5, 3.0]))
        asks.append(Ask(prompt, out_tokens, think, rest, output))
        if output:
            prompt = [*prompt, *output]
    return asks


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Sessions that share an opening; outputs stay within their stream."""
    sessions = []
    for index in range(draw(st.integers(2, 5))):
        base = 1000 * (1 + index * 3)
        made = [stream(draw(streams(base)))]
        if draw(st.booleans()):
            after = draw(st.integers(0, len(made[0].turns)))
            made.append(stream(draw(streams(base + 1000)), after, draw(st.sampled_from([0.0, 2]))))
        sessions.append(made)
    return trace(*sessions)


@st.composite
def tangled(draw: st.DrawFn) -> Trace:
    """Prompts and outputs of three different blocks: anything may be anything's prefix."""
    block = st.integers(0, 2)
    sessions = []
    for _ in range(draw(st.integers(2, 5))):
        asks = []
        for _ in range(draw(st.integers(1, 5))):
            output = draw(st.lists(block, max_size=3))
            prompt = draw(st.lists(block, min_size=1, max_size=5))
            asks.append(Ask(prompt, len(output) * UNIT, draw(st.integers(0, 3)), 0, output))
        sessions.append([stream(asks)])
    return trace(*sessions)


def naive_first_time_cost(replayed: Trace) -> int:
    """What prefills compute once, whatever is evicted: every block that no decode wrote."""
    prompts: set[tuple[int, ...]] = set()
    decoded: set[tuple[int, ...]] = set()
    ends = 0
    for request in requests(replayed):
        prompt, history = units_of(request.prompt), units_of(Key(request.prompt + request.output))
        prompts.update(prompt[:i] for i in range(1, len(prompt) + 1))
        decoded.update(history[:i] for i in range(len(prompt) + 1, len(history) + 1))
        ends += span(len(prompt) * UNIT, request.in_tokens)
    blocks = sum(span((len(p) - 1) * UNIT, len(p) * UNIT) for p in prompts - decoded)
    return blocks + ends


def tight(replayed: Trace, slack: int) -> int:
    """Units of a device that holds the largest request and a little more."""
    largest = max(largest_request(session) for session in replayed.sessions)
    return -(-largest // UNIT) + slack


@given(traces(), st.integers(0, 20), st.integers(1, 3), st.sampled_from(Scheduler), st.data())
def test_what_is_computed_for_the_first_time_is_the_workloads(
    replayed: Trace, slack: int, concurrency: int, scheduler: Scheduler, data: st.DataObject
) -> None:
    chunk = data.draw(st.sampled_from([7, 40, 1000]))
    cell = setting(
        tight(replayed, slack),
        concurrency=concurrency,
        scheduler=scheduler,
        timing=replace(TIMING, chunk_tokens=chunk),
        block_tokens=data.draw(st.sampled_from([UNIT, 3 * UNIT])),
    )
    result = compare([replayed], cell, NAMES)
    expected = naive_first_time_cost(replayed)
    for name, s in result.policies.items():
        assert s.computed_units - s.recomputed_units == expected, name
        assert s.requests == replayed.requests
        assert 0 <= s.hit_rate <= 1


@given(tangled(), st.integers(0, 3), st.integers(1, 4))
def test_a_block_that_is_prompt_here_and_output_there_is_counted_once(
    replayed: Trace, slack: int, concurrency: int
) -> None:
    """`compare` asserts that policies did the same work, which must hold for any trace."""
    cell = setting(tight(replayed, slack), concurrency=concurrency)
    result = compare([replayed], cell, NAMES)
    assert {s.requests for s in result.policies.values()} == {replayed.requests}


def test_who_computes_a_shared_output_first_may_depend_on_the_policy() -> None:
    """One session's prompt is another's prompt and output: here a prefill and a decode race."""
    opening, answer = [500], [600, 601, 602, 603]
    slow = [Ask(range(8)), Ask(range(100, 108)), Ask(range(9)), Ask([*opening, *answer, 700])]
    decoding = Ask(opening, len(answer) * UNIT, 16.5, output=answer)
    race = trace([stream(slow)], [stream([decoding])])
    result = compare([race], setting(22, concurrency=2), NAMES)
    first = {s.computed_units - s.recomputed_units for s in result.policies.values()}
    assert first == {26755, 26755 + sum(span(10 * i, 10 * i + 10) for i in range(1, 5))}


@given(traces(), st.integers(1, 4), st.sampled_from(Scheduler))
def test_with_room_for_everything_all_policies_are_one(
    replayed: Trace, concurrency: int, scheduler: Scheduler
) -> None:
    result = compare([replayed], setting(concurrency=concurrency, scheduler=scheduler), NAMES)
    shown = [measured(s) for s in result.policies.values()]
    assert all(other == shown[0] for other in shown)
    assert shown[0]["evicted_tokens"] == shown[0]["holes_per_request"] == 0


def measured(summary: Summary) -> dict[str, Any]:
    """Without the machine's time, and the nodes, which policies keep as they need them."""
    values = asdict(summary)
    del values["policy_seconds"], values["nodes_max"]
    return values


@given(traces(), st.integers(0, 8))
def test_a_replay_is_a_function_of_its_input(replayed: Trace, slack: int) -> None:
    cell = setting(tight(replayed, slack), concurrency=2)
    one, other = (compare([replayed], cell, ["penelope"]).policies["penelope"] for _ in range(2))
    assert measured(one) == measured(other)
    assert one.nodes_max == other.nodes_max


def test_pages_of_several_blocks_compute_what_fills_none() -> None:
    """Pages of two blocks: of a cached prompt of three only two are found again."""
    again = [Ask([0, 1, 2], out_tokens=0), Ask([0, 1, 2, 3], out_tokens=0)]
    cell = setting(page_tokens=2 * UNIT, block_tokens=4 * UNIT)
    result = compare([trace([stream(again)])], cell, ["penelope"]).policies["penelope"]
    assert result.computed_tokens == 30 + 20
    assert result.recomputed_units == span(20, 30)


# --- what a summary says --------------------------------------------------------------------------


def test_summary_of_two_requests() -> None:
    asks = [Ask([0, 1, 2], output=[3]), Ask([0, 1, 2, 3, 4, 5], think_s=2.0)]
    result = compare([trace([stream(asks)])], setting(), ["penelope"]).policies["penelope"]
    ttft = [1 + 3435 / 1024, 1 + 2990 / 1024]
    assert (result.requests, result.computed_tokens) == (2, 50)
    assert result.hit_rate == 1 - 50 / 90
    assert (result.computed_units, result.recomputed_units) == (6425, 0)
    assert result.ttft_mean_s == result.ttft_p50_s == sum(ttft) / 2
    assert result.ttft_p99_s == pytest.approx(ttft[1] + 0.99 * (ttft[0] - ttft[1]))
    assert result.jct_mean_s == sum(ttft) + 9 * 0.5 * 2 + 2.0
    assert (result.evicted_tokens, result.holes_per_request, result.over_evicted_tokens) == (0,) * 3


# --- groups ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def groups() -> list[Trace]:
    options = GeneratorOptions(sessions=12, max_context=40_000, median_requests=12)
    return [generate(options).group(index, 4) for index in range(3)]


CELL = Setting(TOY, TIMING, device_tokens=64_000, concurrency=3)


@pytest.fixture(scope="module")
def compared(groups: list[Trace]) -> Comparison:
    return compare(groups, CELL, NAMES)


def test_groups_are_replayed_apart(groups: list[Trace], compared: Comparison) -> None:
    for group, replicate in zip(groups, compared.replicates, strict=True):
        alone = compare([group], CELL, NAMES)
        assert list(map(measured, alone.policies.values())) == list(
            map(measured, replicate.values())
        )


def test_the_whole_adds_the_groups_up(compared: Comparison) -> None:
    for name, whole in compared.policies.items():
        parts = [replicate[name] for replicate in compared.replicates]
        for field in ("requests", "computed_tokens", "recomputed_units", "evicted_tokens"):
            assert getattr(whole, field) == sum(getattr(part, field) for part in parts)
        weights = sum(part.ttft_mean_s * part.requests for part in parts)
        assert whole.ttft_mean_s == pytest.approx(weights / whole.requests)
        assert whole.nodes_max == max(part.nodes_max for part in parts)
        assert min(p.ttft_p99_s for p in parts) <= whole.ttft_p99_s
        assert whole.evicted_tokens > 0, "nothing is compared where nothing is evicted"


def test_ratios_are_geometric_means_over_groups(compared: Comparison) -> None:
    better = set()
    for name, ratios in compared.ratios.items():
        assert set(ratios) == set(COMPARED)
        for metric, ratio in ratios.items():
            values = [
                getattr(replicate[name], metric) / getattr(replicate[NAMES[0]], metric)
                for replicate in compared.replicates
            ]
            naive = math.exp(sum(map(math.log, values)) / len(values))
            assert ratio.geometric_mean == pytest.approx(naive)
            assert ratio.groups_better == sum(value < 1 for value in values)
            assert ratio.groups == 3
            better.add(ratio.groups_better)
    assert len(better) > 1, "the counts must be able to differ"


def test_the_first_policy_is_compared_with_itself(compared: Comparison) -> None:
    assert {r.geometric_mean for r in compared.ratios[NAMES[0]].values()} == {1.0}
    assert {r.groups_better for r in compared.ratios[NAMES[0]].values()} == {0}


def test_a_ratio_to_nothing_is_none() -> None:
    result = compare([trace([stream([Ask([0])])])], setting(), NAMES)
    assert result.ratios["penelope"]["recomputed_units"].geometric_mean is None
    assert result.ratios["penelope"]["ttft_mean_s"].geometric_mean == 1.0


def test_answers_are_told_policy_by_policy() -> None:
    told: list[str] = []
    compare([trace([stream([Ask([0]), Ask([0, 1])])])] * 2, setting(), NAMES[:2], told.append)
    assert told == [NAMES[0], NAMES[0], NAMES[1], NAMES[1]] * 2


# --- what does not fit ----------------------------------------------------------------------------


def session_of(units: int, first: int) -> Sequence[Any]:
    return [stream([Ask([first]), Ask(range(first, first + units), out_tokens=5)])]


def test_a_session_that_the_device_cannot_hold_is_left_out_and_counted() -> None:
    # The largest request: 50 tokens in and 5 out.
    whole = trace(session_of(5, 0), session_of(9, 100), session_of(5, 200))
    result = compare([whole], setting(6), NAMES)
    assert result.refused_sessions == 1
    assert {s.requests for s in result.policies.values()} == {4}
    assert [s.id for s in fitting([whole], setting(6))[0].sessions] == ["s0", "s2"]
    # One token less than six blocks is not enough for 55: the block is the unit of capacity.
    with pytest.raises(NothingFits):
        compare([whole], replace(setting(), device_tokens=59), NAMES)


def test_a_sub_agent_that_does_not_fit_refuses_its_session() -> None:
    whole = trace([stream([Ask([0])]), stream([Ask(range(50, 90))], 1)], session_of(2, 100))
    assert compare([whole], setting(4), NAMES).refused_sessions == 1


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (1, "no session fits a device of 20 tokens, the smallest needs 55: raise"),
        (2, "no session of group 2 fits a device of 20 tokens, the smallest needs 55: raise"),
    ],
)
def test_a_group_of_which_nothing_fits_is_refused(count: int, says: str) -> None:
    fits = trace(session_of(1, 0))
    with pytest.raises(NothingFits, match=says):
        compare([*[fits] * (count - 1), trace(session_of(5, 0))], setting(2), NAMES)


def sized(
    device_tokens: int = 1000, page_tokens: int | None = None, block_tokens: int | None = None
) -> Setting:
    return Setting(
        TOY, TIMING, device_tokens, 1, page_tokens=page_tokens, block_tokens=block_tokens
    )


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"page_tokens": 15}, "--page-tokens 15 is not a multiple of the trace's hashed"),
        ({"page_tokens": 0}, "--page-tokens 0 is not a multiple"),
        ({"page_tokens": -UNIT}, "--page-tokens -10 is not a multiple"),
        ({"block_tokens": 15}, "--block-tokens 15 is not a multiple of the page size, 10"),
        ({"block_tokens": 0}, "--block-tokens 0 is not a multiple"),
        ({"page_tokens": 20, "block_tokens": 30}, "--block-tokens 30 is not a multiple"),
        ({"page_tokens": 20, "block_tokens": 10}, "--block-tokens 10 is not a multiple"),
        ({"device_tokens": 9}, "--device-tokens 9 holds no page of 10: give it more"),
        ({"device_tokens": -5}, "--device-tokens -5 holds no page"),
        ({"device_tokens": 39, "page_tokens": 40}, "--device-tokens 39 holds no page of 40"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(sizes: dict[str, int], says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says):
        compare([trace(session_of(1, 0))], sized(**sizes), NAMES)


@pytest.mark.parametrize(
    ("unit", "page", "block"),
    [
        (64, None, (64, 64)),
        (512, None, (512, 512)),
        (10, None, (10, 70)),
        (48, 96, (96, 96)),
        (1, None, (1, 64)),
    ],
)
def test_a_block_is_64_tokens_or_the_next_whole_number_of_pages(
    unit: int, page: int | None, block: tuple[int, int]
) -> None:
    cell = sized(1000, page)
    assert cell.sizes(unit) == (1000 // block[0] * block[0], *block)
    config = cell.config("penelope", unit)
    assert (config.page_size * unit, config.block_size * unit) == block
