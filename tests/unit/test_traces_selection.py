"""Which sessions a selection takes, what it leaves out, and what sessions share."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from penelope.runtime.traces import (
    Omitted,
    Selection,
    SharedPrefix,
    Trace,
    TraceError,
    assemble,
    load,
)


def session(
    name: str, inputs: list[int], agent_in: int = 0, tools: tuple[int, int] = (20, 10)
) -> dict[str, Any]:
    """Prompts of growing length over ids 1, 2, ...; a sub-agent after the second turn."""
    requests: list[dict[str, Any]] = []
    before = 0
    for tokens in inputs:
        blocks = tokens // 10
        requests.append(request(tokens, [before, [[before + 1, blocks - before]]]))
        before = blocks
    if agent_in:
        stream = [request(agent_in, [0, [[900, agent_in // 10]]])]
        stated = {"tool_tokens": 10, "system_tokens": 10}
        requests.insert(2, {"type": "subagent", "t": 0, "requests": stream, **stated})
    stated = {"tool_tokens": tools[0], "system_tokens": tools[1]}
    return {"id": name, "block_size": 10, "requests": requests, **stated}


def request(tokens: int, h: list[Any]) -> dict[str, Any]:
    return {"t": 0, "type": "n", "in": tokens, "out": 10, "h": h}


def read(tmp_path: Path, rows: list[dict[str, Any]], **selection: Any) -> Trace:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load(path, selection=Selection(**selection))


def first_prompt(trace: Trace, session: int, stream: int = 0) -> list[int]:
    return list(array("I", next(trace.sessions[session].streams[stream].requests()).prompt))


def common(trace: Trace, one: tuple[int, int], other: tuple[int, int]) -> int:
    """Leading units that two streams' first prompts have in common; they share no others."""
    a, b = first_prompt(trace, *one), first_prompt(trace, *other)
    same = [x == y for x, y in zip(a, b, strict=False)]
    length = same.index(False) if False in same else len(same)
    assert not set(a[length:]) & set(b[length:])
    return length


# --- how many -------------------------------------------------------------------------------------


def test_the_first_sessions_are_taken(tmp_path: Path) -> None:
    rows = [session(name, [50, 60]) for name in "abc"]
    assert [s.id for s in read(tmp_path, rows, sessions=2).sessions] == ["a", "b"]
    assert [s.id for s in read(tmp_path, rows).sessions] == ["a", "b", "c"]


def test_a_session_ends_before_its_first_request_that_does_not_fit(tmp_path: Path) -> None:
    """70 tokens are a prompt of 60 and its output of 10; what follows the cut goes too."""
    rows = [session("a", [50, 60, 70, 80]), session("b", [70]), session("c", [50])]
    trace = read(tmp_path, rows, max_context=70, sessions=2)
    assert [(s.id, s.requests) for s in trace.sessions] == [("a", 2), ("c", 1)]
    assert trace.omitted == Omitted(sessions=1, turns=2, streams=0)
    assert not trace.sessions[0].streams[0].turns[1].repeated, "the turn it went on with is gone"


def test_a_sub_agent_started_by_a_turn_that_was_cut_off_goes_with_it(tmp_path: Path) -> None:
    rows = [session("a", [50, 60, 70], agent_in=30)]
    assert len(read(tmp_path, rows, max_context=70).sessions[0].streams) == 2
    cut = read(tmp_path, rows, max_context=60)
    assert (len(cut.sessions[0].streams), cut.omitted.streams) == (1, 1)


def test_a_selection_that_cannot_be_met_says_why(tmp_path: Path) -> None:
    rows = [session("a", [50]), session("b", [90])]
    with pytest.raises(TraceError, match=r"holds 2 usable sessions; 3 wanted; lower --sessions$"):
        read(tmp_path, rows, sessions=3)
    with pytest.raises(TraceError, match="holds 1 usable sessions and 1 that --max-context 60"):
        read(tmp_path, rows, sessions=2, max_context=60)
    with pytest.raises(TraceError, match=r"holds 0 usable.*; at least 1 wanted"):
        read(tmp_path, rows, max_context=10)


def test_a_selection_of_nothing_is_refused() -> None:
    with pytest.raises(TraceError, match="--sessions 0 selects nothing"):
        Selection(sessions=0)
    with pytest.raises(TraceError, match="--max-context 0 selects nothing"):
        Selection(max_context=0)


def test_groups_are_disjoint_and_in_order(tmp_path: Path) -> None:
    trace = read(tmp_path, [session(name, [50, 60]) for name in "abcde"])
    groups = [trace.group(k, 2) for k in range(2)]
    assert [[s.id for s in group.sessions] for group in groups] == [["a", "b"], ["c", "d"]]
    assert groups[0].requests == 4
    with pytest.raises(TraceError, match="holds 5 usable sessions, 3 groups of 2 need 6"):
        trace.group(2, 2)
    for index, size in ((-1, 2), (0, 0)):
        with pytest.raises(TraceError, match="is not one"):
            trace.group(index, size)


# --- what sessions share --------------------------------------------------------------------------


def test_all_shares_the_first_tokens_of_main_streams(tmp_path: Path) -> None:
    rows = [session("a", [60]), session("b", [80, 90]), session("c", [30])]
    trace = read(tmp_path, rows, shared_prefix=SharedPrefix.parse("all:45"))
    assert common(trace, (0, 0), (1, 0)) == 4  # rounded down to blocks of 10
    assert common(trace, (1, 0), (2, 0)) == 3  # a first prompt shorter than the prefix


def test_sub_agents_share_their_own_prefix(tmp_path: Path) -> None:
    rows = [session(name, [60, 70], agent_in=50) for name in "ab"]
    trace = read(tmp_path, rows, shared_prefix=SharedPrefix.parse("all:40"))
    assert common(trace, (0, 0), (1, 0)) == 4
    assert common(trace, (0, 1), (1, 1)) == 2  # as long as the trace states it
    assert common(trace, (0, 0), (0, 1)) == 0


def test_by_tools_shares_between_equal_pairs_only(tmp_path: Path) -> None:
    rows = [
        session(n, [60], tools=t) for n, t in (("a", (20, 10)), ("b", (10, 20)), ("c", (20, 10)))
    ]
    trace = read(tmp_path, rows, shared_prefix=SharedPrefix.parse("by-tools"))
    assert common(trace, (0, 0), (2, 0)) == 3
    assert common(trace, (0, 0), (1, 0)) == 0


def test_none_shares_nothing(tmp_path: Path) -> None:
    trace = read(tmp_path, [session("a", [60]), session("b", [60])])
    assert common(trace, (0, 0), (1, 0)) == 0


def test_sharing_survives_a_rewrite_that_comes_back(tmp_path: Path) -> None:
    """A prefix is known by its ids: a turn that names them again is in the shared prefix again."""
    row = session("a", [60])
    row["requests"] += [request(40, [0, [[500, 4]]]), request(60, [0, [[1, 6]]])]
    trace = read(tmp_path, [row, session("b", [60])], shared_prefix=SharedPrefix("all", 30))
    first, other, again = (r.prompt for r in trace.sessions[0].streams[0].requests())
    assert first == again
    assert not set(array("I", other)) & set(array("I", first))


@pytest.mark.parametrize(
    "text", ["", "all", "all:", "all:-1", "all:1e3", "all:²", "tools", "none:1"]
)
def test_other_sharing_is_refused(text: str) -> None:
    with pytest.raises(TraceError, match=r"--shared-prefix .* give none, all:N"):
        SharedPrefix.parse(text)


def test_global_ids_cannot_be_shared_again(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}
    with pytest.raises(TraceError, match=r"ids are global.*use --shared-prefix none"):
        read(tmp_path, [row], shared_prefix=SharedPrefix("by-tools"))


def test_the_digest_sees_every_field_a_replay_depends_on(tmp_path: Path) -> None:
    def rows() -> list[dict[str, Any]]:
        return [session("a", [60, 80], agent_in=30), session("b", [60])]

    base = read(tmp_path, rows()).digest()
    assert read(tmp_path, rows()).digest() == base
    changes: list[tuple[str, Any]] = [("out", 33), ("think_time", 5), ("in", 85)]
    for field, value in changes:
        changed = rows()
        changed[0]["requests"][1][field] = value
        assert read(tmp_path, changed).digest() != base, field
    changed = rows()
    changed[0]["requests"][2]["t"] = 50
    assert read(tmp_path, changed).digest() != base, "delay"
    assert read(tmp_path, rows(), shared_prefix=SharedPrefix("all", 30)).digest() != base


def test_the_part_of_a_block_at_the_end_of_an_opening_is_not_shared(tmp_path: Path) -> None:
    """Its block goes on with what is the session's own, and is whole in the second prompt only."""
    rows = [
        session(name, []) | {"requests": [request(35, [0, [[1, 4]]]), request(60, [4, [[5, 2]]])]}
        for name in "ab"
    ]
    trace = read(tmp_path, rows, shared_prefix=SharedPrefix("all", 60))
    one, other = (
        [array("I", r.prompt) for r in s.streams[0].requests()][1] for s in trace.sessions
    )
    assert one[:3] == other[:3]
    assert not set(one[3:]) & set(other[3:])


def test_more_blocks_than_ids_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [session(name, [60]) for name in "ab"]  # 6 blocks and 1 of output each
    monkeypatch.setattr(assemble, "_MAX_UNITS", 14)
    assert read(tmp_path, rows).units == 14
    monkeypatch.setattr(assemble, "_MAX_UNITS", 13)
    with pytest.raises(TraceError, match="more than 13 distinct blocks; lower --sessions"):
        read(tmp_path, rows)
    monkeypatch.setattr(assemble, "_MAX_UNITS", 12)
    with pytest.raises(TraceError, match="more than 12 distinct blocks"):
        read(tmp_path, rows)
