"""What the fuzzer feeds: traces of every format, whole and spoiled, configurations, options."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.unit.replaying import weka

NUMBERS = st.one_of(
    st.integers(-2, 70),
    st.sampled_from([64, 128, 512, 1 << 24, (1 << 24) + 1, 1 << 32, 1 << 64, -(1 << 63), 10**30]),
)
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        NUMBERS,
        st.floats(),
        st.text(max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)


@st.composite
def weka_rows(draw: st.DrawFn) -> tuple[list[Any], int]:
    """Sessions, and how many requests they have."""
    rows, count = [], 0
    for number in range(draw(st.integers(1, 4))):
        inputs = sorted(draw(st.lists(st.integers(64, 4000), min_size=1, max_size=4)))
        row = weka(f"s{number}", inputs, draw(st.integers(0, 40)))
        count += len(inputs)
        if draw(st.booleans()):
            inner = weka("x", [640], 3)["requests"]
            row["requests"].append({"type": "subagent", "t": 1, "requests": inner})
            count += 1
        rows.append(row)
    return rows, count


@st.composite
def mooncake_rows(draw: st.DrawFn) -> tuple[list[Any], int]:
    """Requests, and how many."""
    size = draw(st.sampled_from([512, 512, 16, 64]))
    rows: list[Any] = []
    for number in range(draw(st.integers(1, 5))):
        tokens = draw(st.integers(1, 4000))
        blocks = -(-tokens // size) if draw(st.booleans()) else tokens // size
        first = draw(st.integers(0, 50))
        row = {
            "timestamp": number * 10,
            "input_length": tokens,
            "output_length": draw(st.integers(0, 50)),
            "hash_ids": list(range(first, first + blocks)),
        }
        rows.append(row | ({"block_size": size} if size != 512 else {}))
    return rows, len(rows)


@st.composite
def agentic_rows(draw: st.DrawFn) -> tuple[list[Any], int]:
    """Increments of sessions, and how many requests."""
    rows, count = draw(mooncake_rows())
    known: set[str] = set()
    for row in rows:
        row["session_id"] = draw(st.sampled_from("ab"))
        if row["session_id"] in known:
            del row["timestamp"]
            row["delay"] = draw(st.floats(0, 1e6))
        known.add(row["session_id"])
    return rows, count


TRACES = st.one_of(weka_rows(), mooncake_rows(), agentic_rows())


def lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


WRAPPINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda content: content,
    "gzip": lambda content: gzip.compress(content, mtime=0),
    "two members": lambda content: gzip.compress(content[:50]) + gzip.compress(content[50:]),
    "mark": lambda content: b"\xef\xbb\xbf" + content,
    "carriage returns": lambda content: content.replace(b"\n", b"\r\n"),
    "blank lines": lambda content: content.replace(b"\n", b"\n\n \n"),
    "no last line end": lambda content: content.rstrip(b"\n"),
}
"""Ways to write a trace that lose nothing."""


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values inside one."""
    found = [at]
    if isinstance(value, dict):
        items: Any = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return found
    for key, inner in items:
        found += paths(inner, (*at, key))
    return found


def replaced(value: Any, at: tuple[Any, ...], by: Any) -> Any:
    """A copy with another value in one place; `...` removes it."""
    if not at:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(at) == 1 and by is ...:
        del copy[at[0]]
    else:
        copy[at[0]] = replaced(value[at[0]], at[1:], by)
    return copy


@st.composite
def spoiled_rows(draw: st.DrawFn) -> list[Any]:
    """A trace with a few values that do not belong there, or that are gone."""
    rows, _ = draw(TRACES)
    document: Any = rows
    for _ in range(draw(st.integers(1, 3))):
        places = [at for at in paths(document) if at]
        if not places:
            break
        by = draw(st.one_of(st.just(...), NUMBERS, JSON))
        document = replaced(document, draw(st.sampled_from(places)), by)
    return list(document)


@st.composite
def spoiled_bytes(draw: st.DrawFn) -> bytes:
    """A trace with bytes changed, inserted, repeated or cut off."""
    rows, _ = draw(TRACES)
    content = WRAPPINGS[draw(st.sampled_from(sorted(WRAPPINGS)))](lines(rows))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        length = draw(st.integers(0, 20))
        new = draw(
            st.one_of(
                st.binary(max_size=6),
                st.sampled_from([b"", b"\n", b"\r", b"\0", b'"', b"{", b"]", b"\xff", b"# x\n"]),
                st.just(content[at : at + 40]),
            )
        )
        content = content[:at] + new + content[at + length :]
    return content


# --- model configurations -------------------------------------------------------------------------

FIELDS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "num_experts", "num_local_experts", "n_routed_experts"),
    *("num_experts_per_tok", "moe_intermediate_size", "shared_intermediate_size", "moe_k"),
    *("moe_num_experts", "moe_top_k", "n_shared_experts", "num_shared_experts", "layer_types"),
    *("shared_expert_intermediate_size", "decoder_sparse_step", "first_k_dense_replace"),
    *("mlp_only_layers", "moe_layer_freq", "sliding_window", "max_position_embeddings"),
    *("text_config", "model_type", "architectures", "is_encoder_decoder", "kv_lora_rank"),
    *("n_embd", "n_layer", "n_head", "n_inner", "multi_query", "ffn_dim", "hidden_act"),
)
TYPES = ("llama", "qwen3", "qwen3_moe", "mixtral", "apertus", "gpt2", "bert", "mamba", "new", "")
DENSE = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 100,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
}


@st.composite
def configurations(draw: st.DrawFn) -> Any:
    """Something like a `config.json`."""
    if draw(st.integers(0, 9)) == 0:
        return draw(JSON)
    config: dict[str, Any] = {**DENSE, "model_type": draw(st.sampled_from(TYPES))}
    for name in draw(st.lists(st.sampled_from(FIELDS), max_size=6)):
        value = draw(st.one_of(NUMBERS, st.integers(1, 16), JSON, st.just(DENSE)))
        config[name] = value
    for name in draw(st.lists(st.sampled_from(sorted(config)), max_size=1)):
        del config[name]
    return config


# --- options --------------------------------------------------------------------------------------

WHOLE = ["-1", "0", "1", "2", "3", "63", "64", "65", "128", "1024", "4096", "65536", "9" * 19]
WHOLE += ["", "x", "1.5", " 5", "1_000", "٣", "1,2", ",", "0x10"]
REAL = ["-1", "0", "1", "400", "1e-9", "1e400", "-0.0", "nan", "inf", "", "x", "1e-320", "1,5"]
POLICY = ["penelope", "sglang-lru", "tail-block", "penelope,sglang-lru", "lru", "", ",", "a,,b"]
POLICY += ["independent-tiers", "sglang-hicache", "private-head-node,penelope", "penelope,penelope"]
FILES = [
    "TRACE",
    "CONFIG",
    "BAD",
    "EMPTY",
    "absent",
    ".",
    "",
    "/dev/null",
    "/proc/self/mem",
    "a\nb",
]
OPTIONS: dict[str, list[str]] = {
    "--trace": ["TRACE", "TRACE", "TRACE", *FILES],
    "--model": ["qwen3-8b", "qwen3", "CONFIG", "CONFIG", "x" * 300, *FILES],
    "--format": ["auto", "weka", "mooncake", "wiki", ""],
    "--sessions": WHOLE,
    "--replicates": ["1", "2", "0", "99", "x"],
    "--max-context": [*WHOLE, "40000"],
    "--shared-prefix": ["none", "by-tools", "all:64", "all:", "all:" + "9" * 30, "all:x", ""],
    "--seed": ["0", "7", "-1", "9" * 30],
    "--concurrency": WHOLE,
    "--device-tokens": [*WHOLE, "100000"],
    "--host-tokens": [*WHOLE, "100000"],
    "--swap-tokens": WHOLE,
    "--block-tokens": WHOLE,
    "--page-tokens": WHOLE,
    "--scheduler": ["lpm", "fcfs", "sjf", ""],
    "--policy": POLICY,
    "--effective-tflops": REAL,
    "--seconds-per-unit": REAL,
    "--seconds-per-prefill": REAL,
    "--seconds-per-output-token": REAL,
    "--chunk-tokens": WHOLE,
    "--host-gbps": REAL,
    "--transfers": ["overlapped", "serial", "never"],
    "--json": ["out.json", ".", "absent/o.json", "-", "/dev/stdout", "/dev/null", "TRACE", "BAD"],
    "--plot": ["out.png", "out.bmp", "out", "absent/o.svg"],
}
COST_OPTIONS: dict[str, list[str]] = {
    "--model": OPTIONS["--model"],
    "--context": [*WHOLE, "131072", "9" * 400],
    "--fraction": [*REAL, "0.3", "0.5"],
    "--start": WHOLE,
    "--append": WHOLE,
}


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Arguments of `replay`, `sweep` or `cost`, mostly near to what can be run."""
    command = draw(st.sampled_from(["replay", "replay", "sweep", "cost"]))
    if command == "cost":
        arguments = ["cost", "--model", "qwen3-8b", "--context", "9000"]
        table = COST_OPTIONS
    else:
        arguments = [command, "--trace", "TRACE", "--policy", "penelope"]
        arguments += ["--out", "OUT", "--processes", "1"] if command == "sweep" else []
        table = OPTIONS
    for name in draw(st.lists(st.sampled_from(sorted(table)), max_size=4)):
        if command == "sweep" and name in {"--json", "--plot"}:
            continue
        arguments += [name, draw(st.sampled_from(table[name]))]
    if command == "replay" and draw(st.integers(0, 5)) == 0:
        arguments += [draw(st.sampled_from(["--no-subagents", "--sticky-shared", "--x", "y"]))]
    return arguments


GRID_LINES = st.one_of(
    st.sampled_from(
        [
            "concurrency = [1, 2]",
            "concurrency = 1",
            "policy = 'penelope'",
            "policy = ['penelope', 'sglang-lru']",
            "device-tokens = [20000, 40000]",
            "trace = 'absent'",
            "[[grid]]",
            "grid = []",
            "model = 'qwen3-8b'",
            "model = ''",
            "host-tokens = 8192",
            "seed = 3",
            "seed = -1",
            "sessions = 1",
            "max-context = nan",
            "sticky-shared = true",
            "colour = 'red'",
            "[a.b]",
            'trace = "a\\u0000b"',
            'model = "a\\u0000/b"',
        ]
    ),
    st.text(max_size=20),
)
