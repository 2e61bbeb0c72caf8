"""The recorded traces that developers may have beside the checkout; skipped without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penelope.runtime.traces import Selection, SharedPrefix, load, summarise

TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "traces"


def recorded(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        pytest.skip(
            f"needs the recorded trace ../shared/traces/{name}, which is not published here"
        )
    return path


def test_weka_sessions_have_the_stated_shape() -> None:
    got = summarise(load(recorded("weka-500.jsonl.gz")))
    assert (got.sessions, got.streams, got.requests) == (500, 563, 31_505)
    assert (got.input_p50, got.output_p50) == (113_133, 235)
    assert round(got.block_hits, 2) == 0.96
    assert round(got.pure_appends + got.last_block_rewrites, 2) == 0.97


def test_weka_sessions_within_a_limit() -> None:
    selection = Selection(max_context=131_072, shared_prefix=SharedPrefix("all", 15_616))
    trace = load(recorded("weka-500.jsonl.gz"), "weka", selection)
    assert len(trace.sessions) + trace.omitted.sessions == 500
    longest = max(
        turn.in_tokens + turn.out_tokens
        for session in trace.sessions
        for stream in session.streams
        for turn in stream.turns
    )
    assert 120_000 < longest <= 131_072
    openings = {next(s.streams[0].requests()).prompt[: 100 * 4] for s in trace.sessions}
    assert len(openings) == 1


def test_mooncake_requests() -> None:
    got = summarise(load(recorded("mooncake-conversation.jsonl.gz")))
    assert (got.sessions, got.requests, got.input_p50) == (12_031, 12_031, 6_909)


def test_agentic_sessions() -> None:
    trace = load(recorded("agentic-synthetic.jsonl.gz"))
    got = summarise(trace)
    assert (got.sessions, got.requests) == (1_205, 14_056)
    assert got.pure_appends == 1.0
    assert len({next(s.streams[0].requests()).prompt[: 62 * 4] for s in trace.sessions}) == 1
