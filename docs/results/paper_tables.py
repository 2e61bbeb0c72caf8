"""The tables of paper.md, from paper.json and from the two older files of results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import make  # make.py, beside this file

Run = dict[str, Any]

PAPER_SINGLE = {8_192: 1.14, 131_072: 2.93}
"""Measured on an H100 with Qwen3-8B."""


def known() -> dict[str, Run]:
    """The runs of the two older files, by name."""
    of_files = (json.loads(path.read_text())["runs"] for path in (make.RESULTS, make.TIER_RESULTS))
    return {name: run for runs in of_files for name, run in runs.items()}


def found(kept: dict[str, Any], **options: Any) -> Run:
    """The one setting of the sweep with these options, `lpm` and one tier unless they say else."""
    wanted = {"scheduler": "lpm", "host_tokens": 0, **options}
    (cell,) = (c for c in kept["cells"] if all(c[name] == wanted[name] for name in wanted))
    return dict(cell)


KV = {"qwen3-8b": 262_144, "qwen3-32b": 196_608, "qwen3-235b-a22b": 393_216}
SPEED = {"qwen3-8b": 400.0, "qwen3-32b": 800.0, "qwen3-235b-a22b": 3200.0}


def means(run: Run, *policies: str) -> str:
    return " → ".join(f"{run['policies'][name]['ttft_mean_s']:.2f}" for name in policies)


def single_requests(kept: dict[str, Any]) -> str:
    header = (
        "model, context | paper, measured | predicted | replayed: cost | replayed: TTFT "
        "| TTFT, s: tail → head"
    )

    def row(one: dict[str, Any]) -> list[str]:
        tail, head = one["ttft_s"]
        paper = PAPER_SINGLE.get(one["context"]) if one["model"] == "qwen3-8b" else None
        return [
            f"{one['model']}, {one['context']:,}",
            f"{paper:.2f}" if paper else "",
            f"{one['predicted']:.2f}",
            f"{one['units'][0] / one['units'][1]:.2f}",
            f"{tail / head:.2f}",
            f"{tail:.2f} → {head:.2f}",
        ]

    return str(make.table(header, (row(one) for one in kept["single"])))


def gpu_runs(kept: dict[str, Any]) -> Iterator[tuple[str, str, Run]]:
    """Model and speed, sessions at a time, and the run."""
    for sessions in (2, 4, 6, 8):
        yield "qwen3-8b, 256K", str(sessions), known()[f"lpm-{sessions}"]
    for model, name in (("qwen3-32b", "192K"), ("qwen3-235b-a22b", "384K")):
        for sessions in (2, 4, 6, 8):
            cell = found(kept, model=model, effective_tflops=SPEED[model], concurrency=sessions)
            yield f"{model}, {name}", str(sessions), cell
    for sessions in (4, 8):
        cell = found(kept, model="qwen3-32b", effective_tflops=400.0, concurrency=sessions)
        yield "qwen3-32b, 192K, half the speed", str(sessions), cell


def again(run: Run, policy: str) -> float:
    """What is recomputed, of all that is computed: what no eviction at all would save."""
    figures = run["policies"][policy]
    return float(figures["recomputed_units"] / figures["computed_units"])


def gpu_only(kept: dict[str, Any]) -> str:
    header = (
        "model, KV | sessions at a time | computed again | mean TTFT, s | `penelope` "
        "| `tail-block` alone | recompute cost"
    )
    stock = "sglang-lru"
    rows = (
        [
            model,
            sessions,
            f"{100 * again(run, stock):.0f} %",
            means(run, stock, "penelope"),
            f"**{make.percent(run, 'ttft_mean_s', 'penelope', stock)}**",
            make.percent(run, "ttft_mean_s", "tail-block", stock),
            make.percent(run, "recomputed_units", "penelope", stock),
        ]
        for model, sessions, run in gpu_runs(kept)
    )
    return str(make.table(header, rows))


STOCK, BEST = "sglang-hicache", "sglang-hicache-write-back-block"


def tier_runs(kept: dict[str, Any]) -> Iterator[tuple[str, str, Run]]:
    """Model, sessions at a time, and the run with a host as large as the device."""
    for model, tokens in KV.items():
        for sessions in (4, 8):
            yield (
                model,
                str(sessions),
                found(
                    kept,
                    model=model,
                    host_tokens=tokens,
                    effective_tflops=SPEED[model],
                    concurrency=sessions,
                ),
            )
        if model == "qwen3-8b":
            yield model, "12", known()["host-equal"]


def two_tiers(kept: dict[str, Any]) -> str:
    header = (
        "model | sessions at a time | mean TTFT, s | `penelope` against `sglang-hicache` "
        "| against write-back by blocks | `tail-block` against `sglang-hicache`"
    )
    rows = (
        [
            model,
            sessions,
            means(run, STOCK, "penelope"),
            f"**{make.percent(run, 'ttft_mean_s', 'penelope', STOCK)}**",
            make.percent(run, "ttft_mean_s", "penelope", BEST),
            make.percent(run, "ttft_mean_s", "tail-block", STOCK),
        ]
        for model, sessions, run in tier_runs(kept)
    )
    return str(make.table(header, rows))


def ablation_runs(kept: dict[str, Any]) -> Iterator[tuple[int, Run]]:
    """Sessions at a time and the run, with what the other requests recompute as `rest`."""
    for sessions in (4, 8, 12):
        run = found(kept, model="qwen3-8b", concurrency=sessions)
        for figures in run["groups"].values():
            both = zip(figures["recomputed_units"], figures["mostly_lost_units"], strict=True)
            figures["rest"] = [every - lost for every, lost in both]
        yield sessions, run


def lost_share(run: Run, policy: str) -> float:
    """What requests recompute that lost nine tenths of their history, of all recomputation."""
    figures = run["policies"][policy]
    return float(figures["mostly_lost_units"] / figures["recomputed_units"])


def ablation(kept: dict[str, Any]) -> str:
    header = (
        "sessions at a time, policy | mean TTFT | recompute cost | of it after losing ≥ 90 % "
        "| such requests, of 1,000 | their cost | the others' cost, against `tail-block`"
    )

    def row(sessions: int, run: Run, policy: str) -> list[str]:
        figures = run["policies"][policy]
        stock = policy == "sglang-lru"
        mean, cost, lost = (
            "" if stock else make.percent(run, metric, policy)
            for metric in ("ttft_mean_s", "recomputed_units", "mostly_lost_units")
        )
        blocks = policy in {"leaf-head-block", "penelope"}
        return [
            f"{sessions}, `{policy}`",
            mean,
            cost,
            f"{100 * lost_share(run, policy):.0f} %",
            f"{1000 * figures['mostly_lost_requests'] / figures['requests']:.0f}",
            lost,
            make.percent(run, "rest", policy, "tail-block") if blocks else "",
        ]

    rows = (
        row(sessions, run, policy)
        for sessions, run in ablation_runs(kept)
        for policy in run["policies"]
    )
    return str(make.table(header, rows))


def scheduler_runs(kept: dict[str, Any]) -> Iterator[tuple[int, Run, Run]]:
    """Sessions at a time, with `lpm` and with `fcfs`."""
    runs = known()
    for sessions in (4, 8, 12):
        fcfs = (
            runs["fcfs-8"]
            if sessions == 8
            else found(kept, model="qwen3-8b", scheduler="fcfs", concurrency=sessions)
        )
        yield sessions, runs[f"lpm-{sessions}"], fcfs


def between(lpm: Run, fcfs: Run, policy: str) -> str:
    """What `lpm` changes for a policy."""
    both = {"groups": {"lpm": lpm["groups"][policy], "fcfs": fcfs["groups"][policy]}}
    return str(make.percent(both, "ttft_mean_s", "lpm", "fcfs"))


def schedulers(kept: dict[str, Any]) -> str:
    header = (
        "sessions at a time | `penelope` under `fcfs` | under `lpm` "
        "| `lpm` instead of `fcfs`: `sglang-lru` | `tail-block` | `penelope`"
    )
    rows = (
        [
            str(sessions),
            make.percent(fcfs, "ttft_mean_s", "penelope"),
            make.percent(lpm, "ttft_mean_s", "penelope"),
            *(between(lpm, fcfs, name) for name in ("sglang-lru", "tail-block", "penelope")),
        ]
        for sessions, lpm, fcfs in scheduler_runs(kept)
    )
    return str(make.table(header, rows))


def host_runs(kept: dict[str, Any]) -> Iterator[tuple[int, Run]]:
    """Host tokens and the run, at 12 sessions at a time."""
    runs = known()
    for tokens, name in (
        (65_536, None),
        (131_072, "host-half"),
        (262_144, "host-equal"),
        (524_288, None),
        (1_048_576, "host-four"),
    ):
        cell = name and runs[name]
        yield tokens, cell or found(kept, model="qwen3-8b", host_tokens=tokens, concurrency=12)


def hosts(kept: dict[str, Any]) -> str:
    header = (
        "host, tokens | mean TTFT, s | `penelope` against `sglang-hicache` "
        "| against write-back by blocks | recompute cost against `sglang-hicache`"
    )

    def rows() -> Iterator[list[str]]:
        alone = known()["lpm-12"]
        change = make.percent(alone, "ttft_mean_s", "penelope", "sglang-lru")
        cost = make.percent(alone, "recomputed_units", "penelope", "sglang-lru")
        yield ["none", means(alone, "sglang-lru", "penelope"), f"{change} ¹", "", f"{cost} ¹"]
        for tokens, run in host_runs(kept):
            yield [
                f"{tokens:,}",
                means(run, STOCK, "penelope"),
                make.percent(run, "ttft_mean_s", "penelope", STOCK),
                make.percent(run, "ttft_mean_s", "penelope", BEST),
                make.percent(run, "recomputed_units", "penelope", STOCK),
            ]

    return str(make.table(header, rows()))


def commands(kept: dict[str, Any]) -> str:
    return f"```sh\n{kept['made']['command']}\n```"


TABLES = {
    "single requests": single_requests,
    "gpu only": gpu_only,
    "two tiers": two_tiers,
    "ablation": ablation,
    "schedulers": schedulers,
    "hosts": hosts,
    "command": commands,
}


def rendered(text: str, kept: dict[str, Any]) -> str:
    """The page with its tables as the results have them."""
    return str(make.filled(text, {name: make_one(kept) for name, make_one in TABLES.items()}))
