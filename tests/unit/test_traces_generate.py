"""The built-in generator: same in every process, within its limits, like recorded sessions."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penelope.runtime.traces import (
    GeneratorOptions,
    SharedPrefix,
    Trace,
    TraceError,
    generate,
    summarise,
)


def first_prompts(trace: Trace) -> list[list[int]]:
    return [list(array("I", next(s.streams[0].requests()).prompt)) for s in trace.sessions]


def test_the_same_seed_is_the_same_trace_in_every_process() -> None:
    code = (
        "from penelope.runtime.traces import *;"
        "print(generate(GeneratorOptions(sessions=3, seed=7, tool_sets=3)).digest())"
    )
    seen = set()
    for hash_seed in ("0", "1"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        seen.add(run.stdout.strip())
    assert seen == {generate(GeneratorOptions(sessions=3, seed=7, tool_sets=3)).digest()}


def test_seeds_differ_and_sessions_do_not_depend_on_their_number() -> None:
    few, more, other = (
        generate(GeneratorOptions(sessions=n, seed=s)) for n, s in ((2, 1), (4, 1), (2, 2))
    )
    assert few.sessions == more.group(0, 2).sessions
    assert few.digest() != other.digest()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 6000),
    st.integers(0, 60_000),
    st.integers(0, 2**32),
    st.integers(1, 5),
    st.sampled_from([1, 16, 64, 500]),
)
def test_every_request_stays_within_the_options(
    prefix: int, room: int, seed: int, tool_sets: int, unit: int
) -> None:
    limit = 2 * prefix + 1024 + room
    tool_sets = min(tool_sets, 1 + prefix // 2)
    options = GeneratorOptions(
        sessions=2,
        max_context=limit,
        seed=seed,
        prefix_tokens=prefix,
        tool_sets=tool_sets,
        median_requests=8,
        unit_tokens=unit,
    )
    trace = generate(options)
    assert len(trace.sessions) == 2
    for session in trace.sessions:
        opening = None
        for request in session.streams[0].requests():
            units = array("I", request.prompt + request.output)
            assert prefix < request.in_tokens
            assert request.in_tokens + request.out_tokens <= limit
            assert len(request.prompt) // 4 == request.in_tokens // unit
            assert len(units) == (request.in_tokens + request.out_tokens) // unit
            assert len(set(units)) == len(units)
            assert not units or max(units) < trace.units
            opening = opening or request.prompt[: prefix // unit * 4]
            assert request.prompt.startswith(opening), (
                "no turn rewrites the tools and system prompt"
            )


def test_sessions_of_one_tool_set_share_exactly_their_prefix() -> None:
    one, other, *_ = first_prompts(generate(GeneratorOptions(sessions=2)))
    assert one[:244] == other[:244]  # 15,616 tokens of 64
    assert not set(one[244:]) & set(other[244:])
    alone = first_prompts(generate(GeneratorOptions(sessions=2, shared_prefix=SharedPrefix())))
    assert not set(alone[0]) & set(alone[1])


def test_tool_sets_share_nothing_with_each_other() -> None:
    openings = [p[0] for p in first_prompts(generate(GeneratorOptions(sessions=60, tool_sets=3)))]
    uses = sorted((openings.count(o) for o in set(openings)), reverse=True)
    assert len(uses) == 3
    assert openings.count(openings[0]) in uses
    assert uses[0] > 60 / 3, "one tool set is used most"


def test_a_large_trace_resembles_recorded_sessions() -> None:
    """Recorded: input p50 104,000 to 114,000, output 216 to 235, think 9 to 12 s, 97 % pure."""
    got = summarise(generate(GeneratorOptions(sessions=300, seed=3)))
    assert 85_000 < got.input_p50 < 130_000
    assert got.input_max <= 200_000
    assert 200 <= got.output_p50 <= 235
    assert 36 <= got.requests_per_session_p50 <= 56
    assert 9 <= got.think_p50_s <= 13
    assert 0.96 <= got.pure_appends <= 0.98
    assert 0.01 <= got.deeper_rewrites + got.last_block_rewrites <= 0.04
    assert 0.85 <= got.outputs_repeated <= 0.95
    assert 0.95 <= got.block_hits <= 0.98


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sessions": 0}, "--sessions times --replicates 0 is out of range"),
        ({"seed": -1}, "--seed -1"),
        ({"tool_sets": 0}, "tool_sets 0"),
        ({"unit_tokens": 0}, "unit_tokens 0"),
        ({"median_requests": 0}, "median_requests 0"),
        ({"prefix_tokens": -1}, "prefix_tokens -1"),
        ({"max_context": 32_000}, "--max-context 32000 leaves .* no room.*at least 32256"),
        ({"tool_sets": 5, "prefix_tokens": 6}, "5 tool sets need more than 6 tokens"),
    ],
)
def test_an_option_out_of_range_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(TraceError, match=named):
        GeneratorOptions(**change)
