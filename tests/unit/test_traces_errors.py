"""Every way a trace can be bad is one line that names the file, the line and the field."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from penelope.runtime.traces import TraceError, load

WEKA: dict[str, Any] = {
    "id": "a",
    "block_size": 10,
    "requests": [
        {"t": 0, "type": "n", "in": 35, "out": 5, "h": [0, [[1, 3]]]},
        {"t": 1, "type": "n", "in": 50, "out": 5, "h": [3, [[4, 2]]]},
    ],
}
MOONCAKE: dict[str, Any] = {
    "timestamp": 0,
    "input_length": 600,
    "output_length": 1,
    "hash_ids": [1, 2],
}
AGENTIC: dict[str, Any] = {**MOONCAKE, "session_id": "s"}
MORE: dict[str, Any] = {"session_id": "s", "input_length": 5, "output_length": 1, "hash_ids": [3]}


def refusal(tmp_path: Path, content: bytes | list[Any], format_name: str = "auto") -> TraceError:
    path = tmp_path / "bad.jsonl"
    if isinstance(content, list):
        content = "".join(json.dumps(row) + "\n" for row in content).encode()
    path.write_bytes(content)
    with pytest.raises(TraceError) as refused:
        load(path, format_name)
    error = refused.value
    text = str(error)
    assert text.startswith(f"{path}: ")
    assert text.isprintable(), "one line, nothing that a terminal would obey"
    assert text.endswith(f"; {error.remedy}")
    return error


def with_request(**change: Any) -> list[Any]:
    """A good line, then a session whose second request has the change (None removes a field)."""
    requests = [WEKA["requests"][0], {**WEKA["requests"][1], **change}]
    requests[1] = {k: v for k, v in requests[1].items() if v is not None}
    return [WEKA, {**WEKA, "id": "b", "requests": requests}]


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        ({"in": None}, "in", "is missing"),
        ({"in": "50"}, "in", "'50' is not a whole number"),
        ({"in": 50.0}, "in", "50.0 is not a whole number"),
        ({"in": True}, "in", "True is not a whole number"),
        ({"in": 0}, "in", "0 is not between 1 and"),
        ({"in": 10**12}, "in", "is not between"),
        ({"out": -1}, "out", "-1 is not between 0"),
        ({"out": 10**12}, "out", "is not between"),
        ({"t": None}, "t", "is missing"),
        ({"t": "soon"}, "t", "'soon' is not a number"),
        ({"think_time": -1}, "think_time", "-1 is not between"),
        ({"think_time": float("nan")}, "think_time", "nan is not between"),
        ({"api_time": float("inf")}, "api_time", "inf is not between"),
        ({"h": None}, "h", "is missing"),
        ({"h": 7}, "h", "7 is not a list"),
        ({"h": [3]}, "h", "is not [kept ids"),
        ({"h": [3, 4]}, "h", "is not [kept ids"),
        ({"h": [4, [[4, 1]]]}, "h", "4 is not between 0 and 3"),
        ({"h": [-1, [[4, 6]]]}, "h", "-1 is not between 0 and 3"),
        ({"h": [3, [[4]]]}, "h", "run that is not [start, length]"),
        ({"h": [3, [[4, 0]]]}, "h", "0 is not between 1"),
        ({"h": [3, [[-4, 2]]]}, "h", "-4 is not between 0"),
        ({"h": [3, [[4, 10**12]]]}, "h", "is not between 1"),
        ({"h": [3, [[4, 1]]]}, "h", "names 4 blocks, but 50 tokens in hold 5 whole ones"),
        ({"h": [3, [[4, 3]]]}, "h", "names 6 blocks, but 50 tokens in hold 5 whole ones"),
        ({"type": "subagent", "requests": 3}, "requests", "3 is not a list"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_bad_request_field_is_named(
    tmp_path: Path, change: dict[str, Any], field: str, problem: str
) -> None:
    error = refusal(tmp_path, with_request(**change))
    assert (error.line, error.field) == (2, f"requests[1].{field}")
    assert problem in error.problem


@pytest.mark.parametrize(
    ("rows", "line", "field", "problem"),
    [
        ([WEKA, WEKA], 2, "id", "'a' is already on line 1"),
        ([{**WEKA, "id": ""}], 1, "id", "'' is not a name"),
        ([{**WEKA, "id": None}], 1, "id", "is missing"),
        ([{**WEKA, "block_size": 0}], 1, "block_size", "0 is not between"),
        ([WEKA, {**WEKA, "id": "b", "block_size": 5}], 2, "block_size", "is 5, but 10 on line 1"),
        ([{**WEKA, "requests": []}], 1, "requests", "holds no request"),
        ([{**WEKA, "requests": [7]}], 1, "requests[0]", "7 is not an object"),
        ([{**WEKA, "tool_tokens": -5}], 1, "tool_tokens", "-5 is not between"),
        ([{**MOONCAKE, "hash_ids": []}], 1, "hash_ids", "names 0 blocks, but 600 tokens are 2"),
        ([{**MOONCAKE, "hash_ids": [1, -2]}], 1, "hash_ids", "-2 is not between"),
        ([{**MOONCAKE, "hash_ids": "12"}], 1, "hash_ids", "'12' is not a list"),
        ([MOONCAKE, {**MOONCAKE, "timestamp": None}], 2, "timestamp", "is missing"),
        ([{**MOONCAKE, "input_length": 0}], 1, "input_length", "0 is not between"),
        ([AGENTIC, MORE], 2, "delay", "is missing"),
        ([AGENTIC, AGENTIC], 2, "timestamp", "starts session 's' a second time"),
        ([{**AGENTIC, "session_id": 4}], 1, "session_id", "4 is not a name"),
        ([WEKA, MOONCAKE], 2, None, "is of format mooncake in a trace read as weka"),
        ([MOONCAKE, AGENTIC], 2, None, "is of format agentic in a trace read as mooncake"),
        ([AGENTIC, WEKA], 2, None, "is of format weka in a trace read as agentic"),
        ([{"prompt": "x"}], 1, None, "is of no known format (its fields: prompt)"),
        ([{}], 1, None, "its fields: none"),
        ([WEKA, {"prompt": "x"}], 2, "id", "is missing"),
        ([[1, 2]], 1, None, "[1, 2] is not a JSON object"),
    ],
    ids=lambda value: value.split(",")[0] if isinstance(value, str) else "",
)
def test_a_bad_record_is_named(
    tmp_path: Path, rows: list[Any], line: int, field: str | None, problem: str
) -> None:
    error = refusal(tmp_path, rows)
    assert (error.line, error.field) == (line, field)
    assert problem in error.problem


def test_a_sub_agent_inside_a_sub_agent_is_refused(tmp_path: Path) -> None:
    nested = {"type": "subagent", "t": 0, "requests": []}
    outer = {"type": "subagent", "t": 0, "requests": [nested]}
    error = refusal(tmp_path, [{**WEKA, "requests": [*WEKA["requests"], outer]}])
    assert error.field == "requests[2].requests[0].type"


def test_an_agentic_prompt_that_grows_without_bound_is_refused(tmp_path: Path) -> None:
    blocks = list(range(1 << 15))
    big = {**MORE, "input_length": 1 << 24, "hash_ids": blocks, "delay": 0}
    first = {**AGENTIC, "input_length": 1 << 24, "hash_ids": blocks}
    assert refusal(tmp_path, [first, big]).field == "input_length"


def test_the_format_that_was_named_is_held_to(tmp_path: Path) -> None:
    error = refusal(tmp_path, [MOONCAKE], "weka")
    assert error.problem == "is of format mooncake in a trace read as weka"
    assert error.remedy.endswith("--format mooncake")


def test_an_unknown_format_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="--format 'wiki' is not known; give auto, weka, mooncake"):
        load(tmp_path / "absent", "wiki")


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"\n \n", gzip.compress(b"")], ids=["", "blank", "gz"])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    assert refusal(tmp_path, content).problem == "is empty"


def lines(count: int) -> bytes:
    rows = ({**MOONCAKE, "timestamp": i, "hash_ids": [i * i, i * i + 1]} for i in range(count))
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.mark.parametrize("kept", [0.999, 0.5, 0.01])
def test_truncated_gzip_is_refused(tmp_path: Path, kept: float) -> None:
    packed = gzip.compress(lines(5000), mtime=0)
    error = refusal(tmp_path, packed[: int(len(packed) * kept)])
    assert error.problem == "the compressed data ends early"
    assert error.line is not None
    assert 1 <= error.line <= 5001


def test_corrupt_gzip_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(lines(500), mtime=0))
    packed[-6] ^= 0xFF  # the checksum
    assert "corrupt" in refusal(tmp_path, bytes(packed)).problem
    packed[10:40] = b"\xff" * 30  # the data
    assert "corrupt" in refusal(tmp_path, bytes(packed)).problem


def test_a_line_cut_short_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, lines(3)[:-20])
    assert error.line == 3
    assert error.problem.startswith("is not JSON")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"a": "\xff"}\n', "is not UTF-8"),
        (b"[" * 100_000, "is not JSON"),
        (b"9" * 5000, "is not JSON"),
        (b"\x00\x01", "holds zero bytes"),
        (b'"a\\u001b[2Jb"', "is not a JSON object"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    assert problem in refusal(tmp_path, content).problem


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "absent\n.gz", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(TraceError, match=why) as refused:
            load(path)
        assert str(refused.value).isprintable()
        assert "--trace" in refused.value.remedy
