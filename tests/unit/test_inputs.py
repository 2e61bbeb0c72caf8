"""Whatever a user names as input is read once, from front to back, and never without a bound."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penelope import cli
from penelope.runtime import inputs
from penelope.runtime.model_config import load_model
from penelope.runtime.traces import TraceError, load

ROWS = [
    {"timestamp": i, "input_length": 600, "output_length": 1, "hash_ids": [2 * i, 2 * i + 1]}
    for i in range(4000)
]
TRACE = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
SMALL = "--policy penelope --concurrency 1".split()
PENELOPE = f"{sys.executable} -m penelope"


@contextmanager
def fifo(path: Path, content: bytes) -> Iterator[Path]:
    """A pipe with a name, that somebody writes to once."""
    os.mkfifo(path)

    def write() -> None:
        with path.open("wb") as file:
            file.write(content)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    yield path
    writer.join(10)


def bash(command: str, content: bytes = b"", timeout: float = 60) -> tuple[int, str, str]:
    done = subprocess.run(
        ["bash", "-c", command], input=content, capture_output=True, timeout=timeout, check=False
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_a_fifo_is_read_whole(pack: Any, tmp_path: Path) -> None:
    with fifo(tmp_path / "pipe", pack(TRACE)) as pipe:
        trace = load(pipe)
    assert (trace.requests, trace.name) == (4000, "a pipe")
    (tmp_path / "file").write_bytes(TRACE)
    assert trace.digest() == load(tmp_path / "file").digest()


@pytest.mark.parametrize("named", ["-", "/dev/stdin", "<(cat)"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_a_trace_through_a_pipe_loses_nothing(named: str, pack: Any, tmp_path: Path) -> None:
    count = (
        "import sys; from penelope.runtime.traces import load; print(load(sys.argv[1]).requests)"
    )
    status, shown, complaint = bash(f"{sys.executable} -c '{count}' {named}", pack(TRACE))
    assert (status, shown, complaint) == (0, "4000\n", "")


def test_replay_reads_standard_input(tmp_path: Path) -> None:
    content = b"".join(TRACE.splitlines(keepends=True)[:30])
    status, shown, complaint = bash(f"{PENELOPE} replay --trace - {' '.join(SMALL)}", content)
    assert (status, complaint) == (0, "")
    assert shown.startswith("standard input: 30 requests, 1 session at a time")


@pytest.mark.parametrize("named", ["-", "/dev/stdin", "<(cat)"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_a_model_comes_through_a_pipe(named: str, pack: Any) -> None:
    content = pack(json.dumps(CONFIG).encode())
    status, shown, complaint = bash(f"{PENELOPE} cost --context 131072 --model {named}", content)
    assert (status, complaint) == (0, "")
    assert shown.endswith("speed-up of the next request: 2.90\n")


def test_a_sweep_reads_its_model_and_its_grid_once(tmp_path: Path) -> None:
    """Every setting uses the model: read for each of them, a pipe would be empty at the second."""
    grid = b"concurrency = [1, 2]\nsessions = 2\nmax-context = 34000\npolicy = 'penelope'\n"
    command = (
        f"{PENELOPE} sweep --out {tmp_path / 'out'} --processes 1 --grid <(cat) "
        f"--model <(echo '{json.dumps(CONFIG)}')"
    )
    status, shown, complaint = bash(command, grid)
    assert (status, complaint) == (0, "")
    assert len((tmp_path / "out" / "finished.jsonl").read_text().splitlines()) == 3
    # The same sweep goes on, though its pipes have other names and the trace is none of them.
    assert bash(command.replace("<(cat)", "<(cat) 9< <(echo)"), grid)[0] == 0
    assert "2 replays" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("replay --trace - --model -", "--trace and --model both read standard input"),
        ("replay --trace - --model /dev/stdin", "--trace and --model both read standard input"),
        ("sweep --out o --trace /dev/stdin --grid -", "--grid and --trace both read standard in"),
        ("sweep --out o --model -,/dev/stdin", "--model and --model both read standard input"),
    ],
)
def test_two_options_cannot_share_a_pipe(arguments: str, says: str, tmp_path: Path) -> None:
    status, shown, complaint = bash(f"cd {tmp_path}; {PENELOPE} {arguments}", TRACE)
    assert (status, shown) == (cli.USER_ERROR, "")
    assert says in complaint
    assert complaint.count("\n") == 1


# --- input without an end -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("--trace /dev/zero", "/dev/zero: line 1: holds zero bytes, so it is no text"),
        ("--trace <(yes 'no trace')", "line 1: is not JSON"),
        ("--trace <(gzip -c /dev/zero)", "line 1: holds zero bytes"),
        ("--trace <(tr '\\0' ' ' < /dev/zero)", "line 1: has a line of more than 67,108,864 bytes"),
        ("--model /dev/zero", "/dev/zero holds zero bytes"),
        ("--model <(yes)", "is larger than 16,777,216 bytes"),
    ],
)
def test_endless_input_ends(source: str, says: str) -> None:
    """In 1.5 GB of address space: that nothing is collected without a bound."""
    command = f"ulimit -v 1500000; OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 {PENELOPE} replay"
    status, shown, complaint = bash(f"{command} {source}")
    assert (status, shown) == (cli.USER_ERROR, "")
    assert says in complaint
    assert complaint.count("\n") == 1


@pytest.mark.parametrize("line", [b"\n", TRACE.splitlines(keepends=True)[0]])
def test_lines_without_end_are_refused(
    line: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MAX_LINES", 1000)
    path = tmp_path / "t.jsonl"
    path.write_bytes(line * 1000)
    if line.strip():
        assert load(path).requests == 1000
    path.write_bytes(line * 1001)
    with pytest.raises(TraceError, match=r"line 1001: has more than 1,000 lines; give a part"):
        load(path)


# --- files of another kind ------------------------------------------------------------------------


def tar(content: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        info = tarfile.TarInfo("trace.jsonl")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


PRETTY = json.dumps(ROWS[:3], indent=2).encode()
LINE = json.dumps(ROWS[0]).encode()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (LINE.replace(b"}", b"}\r") * 3, "ends lines with CR alone; convert the file: tr"),
        (PRETTY, "begins an array of many lines; write one object a line: jq -c '.[]'"),
        (json.dumps(ROWS[:3]).encode(), "one object a line, as jq -c '.[]' writes them"),
        (json.dumps(ROWS[0], indent=2).encode(), "begins an object of many lines; write one"),
        (LINE + LINE, "is more than one JSON value"),
        (b"# a trace\n" + LINE, "is a comment, which JSON lines do not have; remove the line"),
        (LINE + b"\n// the rest\n", "line 2: is a comment, which JSON lines do not have"),
        (tar(TRACE), "is a tar archive; unpack it"),
        (gzip.compress(tar(TRACE)), "is a tar archive; unpack it"),
        (gzip.compress(gzip.compress(TRACE)), "is compressed twice; decompress it once"),
        (b"\x28\xb5\x2f\xfd....", "is compressed with zstd; decompress it"),
        (b"BZh91AY&SY", "is compressed with bzip2"),
        (b"PK\x03\x04....", "is a zip archive; unpack it"),
        (b"PAR1....", "is a Parquet file; convert it to JSON lines"),
        (LINE.decode().encode("utf-16"), "is UTF-16 text; convert it: iconv"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "is a Git LFS pointer; fetch"),
        (b"<!DOCTYPE html>\n<html>", "is markup: a page about the trace?; fetch the file itself"),
        (b"timestamp,input_length\n1,2\n", "is not JSON"),
        (LINE + b"\n" + LINE[:-9], "line 2: is not JSON"),
        (b'{"id": "a", "requests": [], "id": "b"}', "gives the field 'id' twice; keep one of them"),
    ],
)
def test_the_remedy_is_the_one_that_helps(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(TraceError) as refused:
        load(path)
    text = str(refused.value)
    assert says in text
    # Only what is cut off would be mended by fetching it again.
    assert ("fetch it again" in text) == content.endswith(LINE[:-9])


def test_a_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    for content in (b"\xef\xbb\xbf" + TRACE, gzip.compress(b"\xef\xbb\xbf" + TRACE)):
        (tmp_path / "t").write_bytes(content)
        assert load(tmp_path / "t").requests == 4000
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(CONFIG).encode())
    assert load_model(str(tmp_path)).linear == 23552


@pytest.mark.parametrize("size", [16, 64, 1024])
def test_other_blocks_are_read_when_the_file_says_so(size: int, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    ids = list(range(-(-5000 // size)))
    row = {"timestamp": 0, "input_length": 5000, "output_length": 1, "hash_ids": ids}
    path.write_text(json.dumps(row))
    with pytest.raises(TraceError, match=f"5000 tokens are 10 of 512.*jq -c '.block_size = {size}"):
        load(path)
    for fields in ({}, {"session_id": "s"}):
        path.write_text(json.dumps({**row, **fields, "block_size": size}))
        assert load(path).unit_tokens == size
    path.write_text(f"{json.dumps({**row, 'block_size': size})}\n{json.dumps(row)}\n")
    with pytest.raises(TraceError, match=f"line 2: field block_size: is 512, but {size} on line 1"):
        load(path)
