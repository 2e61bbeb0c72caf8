"""Penelope against stock SGLang on the real engine, on the CPU.

A slice of a trace of coding agents is scaled down (one block of 64 tokens becomes a few) and
served by the server of each arm in turn, each with the same model, attention backend, pool and
scheduler; with `--host`, each with a second tier of the same size.  The model is shaped so that its
linear work is worth as many positions as that of Qwen3-8B is at the trace's own scale: attention
over position weighs as it does there.
Every replicate is a group of sessions of its own, and what is compared is a ratio within it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import socket
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine
from benchmarks.sglang_cpu import hicache_on_cpu
from benchmarks.sglang_cpu.cobatching import CoBatching, measure
from benchmarks.sglang_cpu.playing import Outcome, Scale, play_group
from benchmarks.sglang_cpu.servers import STOCK, Server
from penelope.policy import PenelopeError
from penelope.runtime.outputs import check_writable, write_whole
from penelope.runtime.traces import (
    GeneratorOptions,
    Selection,
    SharedPrefix,
    Trace,
    generate,
    load,
)
from penelope.sglang_adapter import random_model

QWEN3_8B_LINEAR_UNITS = 23_552
BLOCK = 64
HEADS, HEAD_DIM, KV_HEADS, LAYERS = 4, 16, 2, 4
HIDDEN = HEADS * HEAD_DIM
SHARED_PREFIX = 15_616
SWAP_BLOCKS = 16
"""1,024 tokens of the trace."""

ARMS: dict[str, dict[str, str]] = {
    "penelope": {},
    "penelope-queue": {"PENELOPE_QUEUE_IN_VIEW": "1"},
    "expected-cost-blind": {"PENELOPE_ORDER": "expected-cost", "PENELOPE_QUEUE_IN_VIEW": "0"},
    "expected-cost": {"PENELOPE_ORDER": "expected-cost"},
}
"""Named policies of the core, as options of the adapter."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="a recorded trace; without it one is generated")
    parser.add_argument("--replicates", type=int, default=4, help="disjoint groups of sessions")
    parser.add_argument("--sessions", type=int, default=4, help="sessions of a group")
    parser.add_argument("--turns", type=int, default=14, help="turns of a session, at most")
    parser.add_argument("--concurrency", type=int, default=4, help="sessions active at a time")
    parser.add_argument("--max-context", type=int, default=131_072, help="in the trace's tokens")
    parser.add_argument("--unit", type=int, default=2, help="tokens that stand for 64")
    parser.add_argument("--pool", type=int, default=6144, help="tokens of KV, after scaling")
    parser.add_argument("--host", type=int, default=0, help="tokens of a host tier, of both")
    parser.add_argument(
        "--write-policy",
        choices=("write_through", "write_through_selective", "write_back"),
        default="write_through",
        help="of SGLang's hierarchical cache, where there is a host tier",
    )
    parser.add_argument(
        "--policies",
        type=lambda text: tuple(text.split(",")),
        default=("penelope",),
        metavar="NAME,…",
        help=f"what stock SGLang is compared with, of {', '.join(ARMS)}; by default penelope",
    )
    parser.add_argument("--scheduler", choices=("lpm", "fcfs"), default="lpm")
    parser.add_argument("--think", type=float, default=0.02, help="factor on think times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    given = parser.parse_args()
    if unknown := [name for name in given.policies if name not in ARMS]:
        parser.error(f"unknown policy '{unknown[0]}': choose from {', '.join(ARMS)}")
    return given


def sessions_of(given: argparse.Namespace) -> Trace:
    count = given.replicates * given.sessions
    shared = SharedPrefix("all", SHARED_PREFIX)
    if given.trace is not None:
        selection = Selection(count, given.max_context, shared, subagents=False)
        return load(given.trace, "auto", selection)
    return generate(
        GeneratorOptions(sessions=count, max_context=given.max_context, shared_prefix=shared)
    )


def intermediate_size(unit: int) -> int:
    """MLP width at which a layer's linear work equals that of Qwen3-8B at this scale."""
    wanted = QWEN3_8B_LINEAR_UNITS * unit / BLOCK * 2 * HEADS * HEAD_DIM
    projections = HIDDEN * (2 * HEADS + 2 * KV_HEADS) * HEAD_DIM
    return max(16, round((wanted - projections) / (3 * HIDDEN)))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


def cut(trace: Trace, turns: int) -> Trace:
    """The first turns of each session: later ones look alike and take long."""
    return replace(
        trace,
        sessions=tuple(
            replace(s, streams=(replace(s.streams[0], turns=s.streams[0].turns[:turns]),))
            for s in trace.sessions
        ),
    )


def arms_of(given: argparse.Namespace, folder: Path) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Flags and variables of each arm: its block, its order, and its second tier."""
    ours = {"PENELOPE_BLOCK_SIZE": str(given.unit)}
    stock: tuple[list[str], dict[str, str]] = ([], {})
    if given.host:
        ours["PENELOPE_HOST_TOKENS"] = str(given.host)
        ours["PENELOPE_SWAP_TOKENS"] = str(SWAP_BLOCKS * given.unit)
        ratio = ["--hicache-ratio", str(given.host / given.pool)]
        policy = ["--hicache-write-policy", given.write_policy]
        path = {"PYTHONPATH": hicache_on_cpu.python_path(folder)}
        stock = ([*hicache_on_cpu.FLAGS, *ratio, *policy], path)
    return {STOCK: stock, **{name: ([], {**ours, **ARMS[name]}) for name in given.policies}}


async def compare(
    servers: list[Server], trace: Trace, given: argparse.Namespace
) -> list[dict[str, Outcome]]:
    scale = Scale(given.unit, given.think, given.concurrency, output=16)
    found = []
    for index in range(given.replicates):
        group = trace.group(index, given.sessions)
        # Who goes first changes every time.
        first = index % len(servers)
        order = servers[first:] + servers[:first]
        outcomes = {}
        for server in order:
            server.flush()
            outcomes[server.name] = await play_group(server, group, scale)
        found.append(outcomes)
        print(line(f"group {index + 1}", outcomes), flush=True)
    return found


def line(title: str, outcomes: dict[str, Outcome]) -> str:
    parts = [
        f"{name}: TTFT {o.ttft_mean_s:.3f} (p50 {o.ttft_p50_s:.3f}, p99 {o.ttft_p99_s:.3f}) s, "
        f"JCT {o.jct_mean_s:.2f} s, hits {o.hit_rate:.3f}, recomputed {o.recomputed_tokens}, "
        f"CPU {o.cpu_s:.1f} s"
        for name, o in outcomes.items()
    ]
    return f"{title}\n  " + "\n  ".join(parts)


def ratios(found: list[dict[str, Outcome]], arm: str, over: str) -> dict[str, dict[str, float]]:
    """One arm over another: geometric mean over groups, and in how many groups it is lower."""
    table = {}
    for name in ("ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "jct_mean_s", "cpu_s"):
        each = [getattr(o[arm], name) / getattr(o[over], name) for o in found]
        table[name] = {
            "ratio": math.exp(sum(map(math.log, each)) / len(each)),
            "lower_in": sum(r < 1 for r in each),
            "groups": len(each),
        }
    return table


def main() -> int:
    given = options()
    if given.json is not None:
        check_writable(given.json)
    trace = cut(sessions_of(given), given.turns)
    with contextlib.ExitStack() as up:
        folder = Path(up.enter_context(tempfile.TemporaryDirectory(prefix="penelope-bench-")))
        model = random_model.build(
            folder / "model",
            layers=LAYERS,
            hidden=HIDDEN,
            heads=HEADS,
            kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            intermediate=intermediate_size(given.unit),
            context=32_768,
        )
        flags = [
            "--max-total-tokens",
            str(given.pool),
            "--page-size",
            str(given.unit),
            "--chunked-prefill-size",
            "4096",
            "--max-running-requests",
            "16",
            "--schedule-policy",
            given.scheduler,
        ]
        logs = Path(tempfile.mkdtemp(prefix="penelope-bench-logs-"))
        arms = arms_of(given, folder)
        servers = [
            up.enter_context(
                Server(arm, model, free_port(), flags + extra, logs / f"{arm}.log", variables)
            )
            for arm, (extra, variables) in arms.items()
        ]
        for server in servers:
            server.wait()
        print(f"{trace.name}: {given.replicates} groups of {given.sessions} sessions", flush=True)
        found = asyncio.run(compare(servers, trace, given))
        # With a host tier what is pressed out of the pool leaves no hole.
        beside = (
            None
            if given.host
            else asyncio.run(measure(servers[1], given.pool, given.pool // 2, rounds=5))
        )
    report(given, found, beside)
    return 0


def report(
    given: argparse.Namespace, found: list[dict[str, Outcome]], beside: CoBatching | None
) -> None:
    pairs = [(arm, STOCK) for arm in given.policies]
    pairs += [(arm, given.policies[0]) for arm in given.policies[1:]]
    tables = {f"{arm} / {over}": ratios(found, arm, over) for arm, over in pairs}
    for title, table in tables.items():
        print(f"\n{title}, geometric mean over groups")
        for name, row in table.items():
            print(f"  {name:12} {row['ratio']:.3f}   lower in {row['lower_in']} of {row['groups']}")
    if beside is not None:
        print(
            f"\nPhantom and request in one batch: {beside.phantom_and_request_s:.3f} s; the same "
            f"work as two requests: {beside.two_requests_s:.3f} s; ratio {beside.ratio:.3f} "
            f"(hole of {beside.hole_tokens} tokens)"
        )
    on = machine()
    print("\n" + ", ".join(f"{key} {value}" for key, value in on.items()))
    if given.json is not None:
        document: dict[str, Any] = {
            "machine": on,
            "config": {key: str(value) for key, value in vars(given).items()},
            "groups": [{arm: o.as_dict() for arm, o in outcomes.items()} for outcomes in found],
            "ratios": tables,
            "co_batching": None if beside is None else asdict(beside),
        }
        text = json.dumps(document, indent=2) + "\n"
        write_whole(given.json, lambda path: _put(path, text))


def _put(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except PenelopeError as error:
        raise SystemExit(f"sglang_cpu: {error}") from None
