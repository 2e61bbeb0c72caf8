"""Random sessions against a naive reading of them, and random damage to a good file."""

from __future__ import annotations

import gzip
import json
import tempfile
from array import array
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penelope.runtime.traces import Selection, SharedPrefix, Trace, TraceError, load

BLOCK = 4


@st.composite
def sessions(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Sessions whose turns keep any part of the prompt before them, with ids of any kind."""
    rows = []
    for name in range(draw(st.integers(1, 3))):
        length = 0
        requests = []
        for _ in range(draw(st.integers(1, 5))):
            keep = draw(st.integers(0, length))
            runs = draw(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), max_size=3))
            length = keep + sum(size for _, size in runs)
            # The last block may be a part: then the tokens end inside it.
            short = draw(st.integers(0, BLOCK - 1)) if length else 0
            tokens = max(1, length * BLOCK - short)
            request = {"t": 0, "in": tokens, "out": draw(st.integers(0, 20))}
            requests.append({**request, "h": [keep, runs]})
        rows.append({"id": str(name), "block_size": BLOCK, "requests": requests})
    return rows


def naive_prompts(row: dict[str, Any]) -> list[list[int]]:
    """Block ids of the whole blocks of each prompt."""
    prompts: list[list[int]] = []
    ids: list[int] = []
    for request in row["requests"]:
        keep, runs = request["h"]
        ids = ids[:keep] + [i for start, size in runs for i in range(start, start + size)]
        prompts.append(ids[: request["in"] // BLOCK])
    return prompts


def read(content: bytes, selection: Selection | None = None) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        path.write_bytes(content)
        return load(path, selection=selection)


def dump(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@given(sessions())
def test_prompts_equal_a_naive_reading_up_to_renaming(rows: list[dict[str, Any]]) -> None:
    trace = read(dump(rows))
    units: dict[tuple[int, int], int] = {}  # (session, id in the file) -> unit
    dead: list[int] = []
    for number, (row, session) in enumerate(zip(rows, trace.sessions, strict=True)):
        requests = list(session.streams[0].requests())
        prompts = naive_prompts(row)
        for i, (request, turn) in enumerate(zip(requests, session.streams[0].turns, strict=True)):
            got = array("I", request.prompt)
            for unit, block in zip(got, prompts[i], strict=True):
                assert units.setdefault((number, block), unit) == unit
            whole = (request.in_tokens + request.out_tokens) // BLOCK
            assert len(request.prompt + request.output) == 4 * whole
            repeats = (
                i + 1 < len(requests)
                and requests[i + 1].in_tokens >= request.in_tokens + request.out_tokens
                and requests[i + 1].prompt.startswith(request.prompt)
            )
            if turn.repeated:
                assert repeats
                assert requests[i + 1].prompt.startswith(request.prompt + request.output)
            else:
                dead.extend(array("I", request.output))
    used = list(units.values())
    assert len(set(used)) == len(used), "different blocks are different units"
    assert len(set(dead)) == len(dead)
    assert not set(dead) & set(used)
    assert max([*used, *dead], default=-1) < trace.units


@given(sessions(), st.integers(0, 40))
def test_sharing_changes_nothing_inside_a_session(rows: list[dict[str, Any]], tokens: int) -> None:
    """Prompts of one session agree where they agreed before, whatever other sessions share."""
    apart, shared = (
        read(dump(rows)),
        read(dump(rows), Selection(shared_prefix=SharedPrefix("all", tokens))),
    )
    for one, other in zip(apart.sessions, shared.sessions, strict=True):
        before = [u for r in one.streams[0].requests() for u in array("I", r.prompt + r.output)]
        after = [u for r in other.streams[0].requests() for u in array("I", r.prompt + r.output)]
        assert len(before) == len(after)
        assert len(set(zip(before, after, strict=True))) == len(set(before)) == len(set(after))


GOOD = dump(
    [
        {
            "id": "a",
            "block_size": BLOCK,
            "requests": [
                {"t": 0, "in": 9, "out": 5, "h": [0, [[1, 2]]]},
                {
                    "type": "subagent",
                    "t": 9,
                    "requests": [{"t": 0, "in": 8, "out": 1, "h": [0, [[7, 2]]]}],
                },
                {"t": 3, "in": 17, "out": 5, "h": [2, [[3, 2]]]},
            ],
        }
    ]
)
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2**70,
    0.5,
    float("nan"),
    "",
    "x",
    [],
    [[]],
    {},
    [1, [[1, 1]]],
]


@settings(max_examples=400, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.binary(max_size=3), st.integers(0, 3), st.booleans())
@example(0, b"", 0, True)
def test_damaged_bytes_are_refused_by_name_or_read(
    at: int, inserted: bytes, removed: int, packed: bool
) -> None:
    content = gzip.compress(GOOD, mtime=0) if packed else GOOD
    at = min(at, len(content))
    assert_read_or_refused(content[:at] + inserted + content[at + removed :])


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_wrong_values_anywhere_are_refused_by_name_or_read(data: st.DataObject) -> None:
    row = json.loads(GOOD)
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        keys = (
            value
            if isinstance(value, dict)
            else range(len(value))
            if isinstance(value, list)
            else ()
        )
        for key in keys:
            places.append((value, key))
            visit(value[key])

    visit(row)
    holder, key = data.draw(st.sampled_from(places), label="place")
    holder[key] = data.draw(st.sampled_from(VALUES), label="value")
    assert_read_or_refused(dump([row]))


def assert_read_or_refused(content: bytes) -> None:
    """Any other exception than `TraceError` passes through, and fails the test."""
    try:
        text = f"{read(content).requests} requests"
    except TraceError as error:
        text = str(error)
    assert text.isprintable()
    assert 0 < len(text) < 500
    assert text != "0 requests"
