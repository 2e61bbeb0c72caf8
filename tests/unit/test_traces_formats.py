"""Every trace format, read into prompts, outputs and times."""

from __future__ import annotations

import gzip
import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penelope.runtime.traces import Request, Selection, SharedPrefix, Stream, Trace, load

Write = Callable[[list[dict[str, Any]]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(rows: list[dict[str, Any]]) -> Path:
        path = tmp_path / "trace.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return to_file


def request(tokens: tuple[int, int], h: list[Any], **more: Any) -> dict[str, Any]:
    fields = {"t": 0.0, "type": "n", "in": tokens[0], "out": tokens[1], "think_time": 0.0}
    return {**fields, "h": h, **more}


def session(name: str, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": name, "block_size": 10, "requests": list(requests), **more}


def units(key: bytes) -> list[int]:
    return list(array("I", key))


def prompts(stream: Stream) -> list[list[int]]:
    return [units(r.prompt) for r in stream.requests()]


def renamed(*lists: list[int]) -> list[list[int]]:
    """The same lists with ids numbered by first occurrence: equality up to renaming."""
    names: dict[int, int] = {}
    return [[names.setdefault(i, len(names)) for i in one] for one in lists]


# --- weka -----------------------------------------------------------------------------------------


def test_weka_prompts_keep_and_append(write: Write) -> None:
    path = write(
        [
            session(
                "a",
                request((35, 5), [0, [[100, 3]]]),
                request((50, 5), [3, [[103, 2]]]),
                request((60, 5), [2, [[500, 1], [700, 3]]]),
                request((50, 5), [2, [[102, 3]]]),  # back to the second prompt
            )
        ]
    )
    trace = load(path)
    (stream,) = trace.sessions[0].streams
    assert (trace.format, trace.unit_tokens, trace.requests) == ("weka", 10, 4)
    expected = [[0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 5, 6, 7, 8], [0, 1, 2, 3, 4]]
    assert renamed(*prompts(stream)) == expected
    assert stream.pure_appends == 1


def test_units_are_dense(write: Write) -> None:
    """Replays index by unit: huge or sparse ids of a file must not cost anything."""
    trace = load(write([session("a", request((20, 0), [0, [[2**60, 2]]]))]))
    assert prompts(trace.sessions[0].streams[0]) == [[0, 1]]
    assert trace.units == 2


def test_the_part_of_a_block_at_the_end_has_no_unit_until_it_is_whole(write: Write) -> None:
    first = request((25, 0), [0, [[1, 3]]])
    trace = load(write([session("a", first, request((39, 0), [3, [[4, 1]]]))]))
    (stream,) = trace.sessions[0].streams
    assert prompts(stream) == [[0, 1], [0, 1, 2]]
    assert stream.pure_appends == 1


def test_local_ids_of_sessions_are_disjoint(write: Write) -> None:
    rows = [session(name, request((30, 4), [0, [[1, 3]]])) for name in "ab"]
    one, other = (prompts(s.streams[0])[0] for s in load(write(rows)).sessions)
    assert not set(one) & set(other)


def test_times_and_lengths_are_kept(write: Write) -> None:
    row = session(
        "a",
        request((20, 7), [0, [[1, 2]]], api_time=4.0),
        request((30, 8), [2, [[3, 1]]], t=10.0, think_time=2.5),
        request((30, 9), [3, []], t=40.0, think_time=None, api_time=1.0),
    )
    stream = load(write([row])).sessions[0].streams[0]
    got = [(r.in_tokens, r.out_tokens, r.think_s) for r in stream.requests()]
    # The third has no think time: the clock says 30 s after the second, whose API time is unknown.
    assert got == [(20, 7, 0.0), (30, 8, 2.5), (30, 9, 30.0)]


# --- outputs --------------------------------------------------------------------------------------


def outputs(trace: Trace) -> list[Request]:
    return list(trace.sessions[0].streams[0].requests())


def test_an_output_is_what_the_next_prompt_goes_on_with(write: Write) -> None:
    row = session("a", request((25, 20), [0, [[1, 2]]]), request((60, 0), [2, [[3, 4]]]))
    first, second = outputs(load(write([row])))
    # 25 + 20 tokens are 4 whole blocks: 2 of the prompt, 2 more with the output.
    assert units(first.prompt + first.output) == units(second.prompt)[:4]
    assert units(second.output) == []


@pytest.mark.parametrize(
    "following",
    [request((60, 0), [1, [[9, 5]]]), request((44, 0), [2, [[3, 2]]]), None],
    ids=["history rewritten", "shorter than prompt and output", "last turn"],
)
def test_an_output_that_is_not_repeated_is_a_dead_branch(
    write: Write, following: dict[str, Any] | None
) -> None:
    turns = [request((25, 20), [0, [[1, 2]]])] + ([following] if following else [])
    trace = load(write([session("a", *turns), session("b", request((30, 0), [0, [[1, 3]]]))]))
    first, *_ = outputs(trace)
    dead = units(first.output)
    assert len(dead) == 2
    elsewhere = [u for s in trace.sessions for p in prompts(s.streams[0]) for u in p]
    assert not set(dead) & set(elsewhere)
    assert not trace.sessions[0].streams[0].turns[0].repeated
    assert max(dead) < trace.units


# --- sub-agents -----------------------------------------------------------------------------------


def agent(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "subagent", "t": 100.0, "requests": list(requests), **more}


def with_agent(**more: Any) -> dict[str, Any]:
    return session(
        "a",
        request((20, 0), [0, [[1, 2]]], api_time=6.0),
        agent(request((30, 0), [0, [[51, 3]]], api_time=2.0), **more),
        request((30, 0), [2, [[3, 1]]], t=120.0),
    )


def test_sub_agents_run_beside_the_main_stream(write: Write) -> None:
    trace = load(write([with_agent(duration_ms=90_000)]))
    main, beside = trace.sessions[0].streams
    assert (len(main.turns), len(beside.turns), trace.requests) == (2, 1, 3)
    # It ended at 100 s after 90 s; the main stream had its first answer at 6 s.
    assert (beside.starts_after, beside.delay_s) == (1, 4.0)
    assert not set(prompts(main)[-1]) & set(prompts(beside)[0])


def test_a_sub_agent_without_a_duration_ran_as_long_as_its_requests(write: Write) -> None:
    assert load(write([with_agent()])).sessions[0].streams[1].delay_s == 100.0 - 2.0 - 6.0


def test_sub_agents_can_be_left_out(write: Write) -> None:
    trace = load(write([with_agent()]), selection=Selection(subagents=False))
    assert (trace.requests, trace.omitted.streams) == (2, 1)


# --- mooncake and agentic -------------------------------------------------------------------------


def mooncake(timestamp: int, tokens: int, ids: list[int]) -> dict[str, Any]:
    return {
        "timestamp": timestamp,
        "input_length": tokens,
        "output_length": 600,
        "hash_ids": ids,
    }


def test_mooncake_requests_are_sessions_in_order_of_arrival(write: Write) -> None:
    rows = [mooncake(2000, 1024, [5, 6]), mooncake(0, 1025, [5, 7, 8]), mooncake(2000, 512, [5])]
    trace = load(write(rows))
    assert (trace.format, trace.unit_tokens) == ("mooncake", 512)
    assert [s.id for s in trace.sessions] == ["line-2", "line-1", "line-3"]
    assert [s.arrival_s for s in trace.sessions] == [0.0, 2.0, 2.0]
    first, second, third = (prompts(s.streams[0])[0] for s in trace.sessions)
    # Global ids are shared; the id of the part of a block (8) is not used.
    assert renamed(first, second, third) == [[0, 1], [0, 2], [0]]
    assert [len(units(s.streams[0].turns[0].output)) for s in trace.sessions] == [1, 1, 1]


def gain(name: str, tokens: int, ids: list[int], out: int = 5, **more: Any) -> dict[str, Any]:
    fields = {"session_id": name, "input_length": tokens, "output_length": out, "hash_ids": ids}
    return {**fields, **more}


def test_agentic_lines_are_increments(write: Write) -> None:
    rows = [
        gain("a", 1000, [0, 1], timestamp=500, group_id=3),
        gain("b", 1024, [0, 9], timestamp=0),  # sessions may be interleaved
        gain("a", 700, [4, 5], out=600, delay=1500.0),
        gain("a", 1024, [6, 7], delay=0.0),
    ]
    trace = load(write(rows))
    assert (trace.format, [s.id for s in trace.sessions]) == ("agentic", ["a", "b"])
    a, b = (s.streams[0] for s in trace.sessions)
    # The part at the end of a gain is filled up by the next one.
    want = [[0], [0, 1, 2], [0, 1, 2, 3, 4, 5], [0, 6]]
    assert renamed(*prompts(a), *prompts(b)) == want
    assert [t.in_tokens for t in a.turns] == [1000, 1024 + 700, 2048 + 1024]
    assert [t.think_s for t in a.turns] == [0.0, 1.5, 0.0]
    assert trace.sessions[0].arrival_s == 0.5
    assert a.pure_appends == 2
    assert [t.repeated for t in a.turns] == [True, True, False]


# --- files ----------------------------------------------------------------------------------------


def test_gzip_is_told_by_content_and_blank_lines_pass(tmp_path: Path) -> None:
    row = json.dumps(mooncake(0, 512, [1]))
    packed = tmp_path / "no-suffix"
    packed.write_bytes(gzip.compress(f"\n{row}\n\n{row}".encode()))
    plain = tmp_path / "plain.gz"
    plain.write_text(f"{row}\n{row}\n")
    assert load(packed).digest() == load(plain).digest()
    assert [s.id for s in load(packed).sessions] == ["line-2", "line-4"]


def test_a_format_can_be_named(write: Write) -> None:
    assert load(write([mooncake(0, 512, [1])]), "mooncake").format == "mooncake"


def test_shared_prefix_text_round_trips() -> None:
    for text in ("none", "all:15616", "by-tools"):
        assert str(SharedPrefix.parse(text)) == text
