"""`penelope replay` and `penelope demo`: one workload under several policies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from penelope.policy import POLICIES, policy
from penelope.policy.cost import PRESET_CONFIGS
from penelope.policy.errors import InvalidConfigError
from penelope.runtime.model_config import load_model
from penelope.runtime.outputs import check_writable, write_whole
from penelope.runtime.replay.compare import Comparison, Setting, as_json, compare
from penelope.runtime.replay.server import Scheduler, Timing
from penelope.runtime.replay.table import legend, table
from penelope.runtime.traces import (
    FORMATS,
    GeneratorOptions,
    Selection,
    SharedPrefix,
    Trace,
    generate,
    load,
)

EFFECTIVE_TFLOPS = 400.0
"""What a prefill gets out of an H100 (989 TFLOP/s dense bf16) at some 40 % utilisation."""


@click.command()
@click.option(
    "--trace",
    "path",
    type=click.Path(path_type=Path),
    help="A trace file, plain or .gz.  Without it, sessions are generated from --seed.",
)
@click.option(
    "--format",
    "format_name",
    default="auto",
    show_default=True,
    help=f"auto, {', '.join(FORMATS)}.",
)
@click.option("--sessions", type=int, help="Sessions in a group.  [default: all; 24 generated]")
@click.option("--replicates", default=1, show_default=True, type=int, help="Disjoint groups.")
@click.option("--max-context", type=int, help="Tokens of the largest request that is replayed.")
@click.option(
    "--shared-prefix",
    default=None,
    metavar="none|all:N|by-tools",
    help="Which opening tokens sessions share.  [default: none; by-tools generated]",
)
@click.option("--subagents/--no-subagents", default=True, show_default=True, help="Run sub-agents.")
@click.option("--seed", default=0, show_default=True, type=int, help="Of the generator.")
@click.option("--concurrency", default=4, show_default=True, type=int, help="Sessions at a time.")
@click.option("--device-tokens", default=262_144, show_default=True, type=int, help="KV capacity.")
@click.option("--block-tokens", type=int, help="Eviction granularity.  [default: 64]")
@click.option("--page-tokens", type=int, help="Match granularity.  [default: the trace's block]")
@click.option(
    "--model",
    default="qwen3-8b",
    show_default=True,
    metavar="NAME|PATH",
    help=f"{', '.join(PRESET_CONFIGS)}, or a Hugging Face config.json.",
)
@click.option("--scheduler", default="lpm", show_default=True, metavar="lpm|fcfs")
@click.option(
    "--policy",
    "policies",
    default=",".join(POLICIES),
    show_default=True,
    help="Comma-separated; the first is the one compared with.",
)
@click.option("--sticky-shared", is_flag=True, help="A prefix once shared stays shared.")
@click.option(
    "--effective-tflops",
    default=EFFECTIVE_TFLOPS,
    show_default=True,
    type=float,
    help="Prefill speed, from which the seconds per cost unit follow.",
)
@click.option("--seconds-per-unit", type=float, help="Instead: seconds per cost unit.")
@click.option("--seconds-per-prefill", default=0.02, show_default=True, type=float)
@click.option("--seconds-per-output-token", default=0.02, show_default=True, type=float)
@click.option("--chunk-tokens", default=8192, show_default=True, type=int, help="A prefill step.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write results here.")
@click.option("--plot", "plot_path", type=click.Path(path_type=Path), help="Draw them (PNG).")
def replay(
    path: Path | None,
    format_name: str,
    sessions: int | None,
    replicates: int,
    max_context: int | None,
    shared_prefix: str | None,
    subagents: bool,
    seed: int,
    concurrency: int,
    device_tokens: int,
    block_tokens: int | None,
    page_tokens: int | None,
    model: str,
    scheduler: str,
    policies: str,
    sticky_shared: bool,
    effective_tflops: float,
    seconds_per_unit: float | None,
    seconds_per_prefill: float,
    seconds_per_output_token: float,
    chunk_tokens: int,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Replay agent sessions in a closed loop and compare eviction policies.

    CONCURRENCY sessions are active; each sends its next request after the answer to the one
    before and its recorded think time; when one ends the next begins.  Time comes from the cost
    model, decisions from the policy core that also runs in the engine.
    """
    for value, flag in ((replicates, "--replicates"), (concurrency, "--concurrency")):
        if value < 1:
            raise InvalidConfigError(f"{flag} is {value}: give 1 or more")
    names = policy_names(policies)
    for output in (json_path, plot_path):
        if output is not None:
            check_writable(output)
    cost = load_model(model)
    if effective_tflops <= 0:
        raise InvalidConfigError(f"--effective-tflops is {effective_tflops}: give more than 0")
    if seconds_per_unit is None:
        seconds_per_unit = cost.flops_per_unit / (effective_tflops * 1e12)
    setting = Setting(
        cost,
        Timing(seconds_per_unit, seconds_per_prefill, seconds_per_output_token, chunk_tokens),
        device_tokens,
        concurrency,
        _scheduler(scheduler),
        block_tokens,
        page_tokens,
        sticky_shared,
    )
    wanted = None if sessions is None else sessions * replicates
    if path is None:
        trace = _generated(wanted, replicates, max_context, seed, shared_prefix)
    else:
        prefix = SharedPrefix.parse(shared_prefix or "none")
        trace = load(path, format_name, Selection(wanted, max_context, prefix, subagents))
    size = sessions or max(1, len(trace.sessions) // replicates)
    groups = [trace.group(index, size) for index in range(replicates)]
    result = _compare(groups, setting, names)
    title = (
        f"{trace.name}: {result.policies[names[0]].requests:,} requests, {concurrency} sessions "
        f"at a time, {device_tokens:,} tokens of KV, {cost.name}, {scheduler}"
    )
    _show(result, title, trace)
    config = {
        "trace": trace.name,
        "format": trace.format,
        "digest": [group.digest() for group in groups],
        "sessions": size,
        "replicates": replicates,
        "max_context": max_context,
        "omitted": asdict(trace.omitted),
        "shared_prefix": shared_prefix,
        "subagents": subagents,
        "seed": seed if path is None else None,
        "concurrency": concurrency,
        "device_tokens": device_tokens,
        "block_tokens": block_tokens,
        "page_tokens": page_tokens,
        "unit_tokens": trace.unit_tokens,
        "model": cost.name,
        "scheduler": scheduler,
        "sticky_shared": sticky_shared,
        "timing": asdict(setting.timing),
    }
    _write(result, config, title, json_path, plot_path)


def _write(
    result: Comparison,
    config: dict[str, object],
    title: str,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    if json_path is not None:
        document = json.dumps(as_json(result, config), indent=2) + "\n"
        write_whole(json_path, lambda beside: _text(beside, document))
    if plot_path is not None:
        from penelope.runtime.replay.plot import plot

        write_whole(plot_path, lambda beside: plot(result, title, beside))


def _text(path: Path, document: str) -> None:
    path.write_text(document, encoding="utf-8")


@click.command()
@click.option(
    "--plot",
    "plot_path",
    default="penelope-demo.png",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where to draw the result.",
)
@click.pass_context
def demo(context: click.Context, plot_path: Path) -> None:
    """Replay generated agent sessions under five policies: a table, and a picture."""
    context.invoke(
        replay, sessions=24, replicates=4, max_context=131_072, concurrency=12, plot_path=plot_path
    )
    click.echo(f"\nDrawn in {plot_path}.  `penelope replay --help` has every setting.")


def policy_names(text: str) -> list[str]:
    """The names in a comma-separated list.  Raises `InvalidConfigError` for an unknown one."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InvalidConfigError(f"no policy is named: choose from {', '.join(POLICIES)}")
    for name in names:
        policy(name)
    return names


def _scheduler(name: str) -> Scheduler:
    try:
        return Scheduler(name)
    except ValueError:
        known = ", ".join(s.value for s in Scheduler)
        raise InvalidConfigError(f"unknown scheduler '{name}': choose from {known}") from None


def _generated(
    sessions: int | None,
    replicates: int,
    max_context: int | None,
    seed: int,
    shared_prefix: str | None,
) -> Trace:
    return generate(
        GeneratorOptions(
            sessions=sessions or 24 * replicates,
            max_context=max_context or 131_072,
            seed=seed,
            shared_prefix=SharedPrefix.parse(shared_prefix or "by-tools"),
        )
    )


def _compare(groups: Sequence[Trace], setting: Setting, names: Sequence[str]) -> Comparison:
    """Compare, with a progress bar on a terminal."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description:<18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        total = sum(group.requests for group in groups)
        tasks = {name: progress.add_task(name, total=total) for name in names}
        return compare(groups, setting, names, lambda name: progress.advance(tasks[name]))


def _show(result: Comparison, title: str, trace: Trace) -> None:
    console = Console(highlight=False)
    console.print(title, soft_wrap=True)
    omitted = trace.omitted
    for count, what in (
        (omitted.sessions, "sessions begin with a request beyond --max-context: left out"),
        (omitted.turns, "later requests are beyond --max-context: cut off"),
        (omitted.streams, "sub-agents: left out with the requests that started them"),
        (result.refused_sessions, "sessions have a request larger than the device: refused"),
    ):
        if count:
            console.print(f"{count:,} {what}", soft_wrap=True)
    console.print(table(result))
    console.print(legend(result), soft_wrap=True)
