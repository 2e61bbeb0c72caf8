"""`penelope replay` and `penelope demo`: one workload under several policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path, PurePath

import click
from click.core import ParameterSource

from penelope.commands.effects import (
    require_effect,
    require_host_room,
    require_inputs_once,
    require_sessions,
)
from penelope.commands.progress import progress_bar
from penelope.commands.replay_outcome import Shown, check_outputs, counted, show, write
from penelope.commands.workload import Workload
from penelope.cost import PRESET_CONFIGS
from penelope.policy import ORDERS, POLICIES
from penelope.policy.errors import InvalidConfigError
from penelope.runtime.model_config import is_file
from penelope.runtime.outputs import is_standard_output
from penelope.runtime.replay.arms import ARMS, OTHERS, check_tiers, switches
from penelope.runtime.replay.compare import Comparison, Setting, compare, fitting
from penelope.runtime.replay.options import MODES, TRANSFERS, Options
from penelope.runtime.replay.plot import SUFFIXES as PLOT_SUFFIXES
from penelope.runtime.replay.routers import LISTENING, ROUTERS
from penelope.runtime.traces import FORMATS, Trace

DEFAULT = Options()

TIERED = (
    "sglang-hicache",
    "sglang-hicache-write-back-block",
    "independent-tiers",
    "tail-block",
    "penelope",
)
"""What is compared with a host tier if nothing else is said."""


@click.command()
@click.option(
    "--trace",
    "path",
    type=click.Path(path_type=Path),
    help="A trace file, plain or .gz; -: standard input.  Without it, sessions are generated "
    "from --seed.",
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
@click.option(
    "--max-think", type=float, metavar="SECONDS", help="Longest time a client waits to ask again."
)
@click.option("--seed", default=0, show_default=True, type=int, help="Of the generator.")
@click.option(
    "--concurrency",
    default=DEFAULT.concurrency,
    show_default=True,
    type=int,
    help="Sessions at a time.",
)
@click.option(
    "--device-tokens",
    default=DEFAULT.device_tokens,
    show_default=True,
    type=int,
    help="KV capacity.",
)
@click.option(
    "--host-tokens",
    default=DEFAULT.host_tokens,
    show_default=True,
    type=int,
    help="KV capacity of a second tier.",
)
@click.option(
    "--swap-tokens",
    default=DEFAULT.swap_tokens,
    show_default=True,
    type=int,
    help="Of the host's, for exchanges only.",
)
@click.option("--block-tokens", type=int, help="Eviction granularity.  [default: 64]")
@click.option("--page-tokens", type=int, help="Match granularity.  [default: the trace's block]")
@click.option(
    "--model",
    default=DEFAULT.model,
    show_default=True,
    metavar="NAME|PATH",
    help=f"{', '.join(PRESET_CONFIGS)}, or a Hugging Face config.json; -: standard input.",
)
@click.option("--scheduler", default=DEFAULT.scheduler, show_default=True, metavar="lpm|fcfs")
@click.option(
    "--policy",
    "policies",
    help=f"Comma-separated; the first is the one compared with: "
    f"{', '.join((*POLICIES, *ORDERS))}; without a host also {', '.join(OTHERS)}; with one "
    f"also {', '.join(ARMS)}; or yours, as module:function.  "
    f"[default: {', '.join(POLICIES)}; with a host {', '.join(TIERED)}]",
)
@click.option("--sticky-shared", is_flag=True, help="A prefix once shared stays shared.")
@click.option(
    "--effective-tflops",
    default=DEFAULT.effective_tflops,
    show_default=True,
    type=float,
    help="Prefill speed, from which the seconds per cost unit follow.",
)
@click.option("--seconds-per-unit", type=float, help="Instead: seconds per cost unit.")
@click.option(
    "--seconds-per-prefill", default=DEFAULT.seconds_per_prefill, show_default=True, type=float
)
@click.option(
    "--seconds-per-output-token",
    default=DEFAULT.seconds_per_output_token,
    show_default=True,
    type=float,
)
@click.option(
    "--chunk-tokens",
    default=DEFAULT.chunk_tokens,
    show_default=True,
    type=int,
    help="A prefill step.",
)
@click.option(
    "--host-gbps",
    default=DEFAULT.host_gbps,
    show_default=True,
    type=float,
    help="10⁹ bytes a second between the tiers, each way.",
)
@click.option(
    "--transfers",
    default=DEFAULT.transfers,
    show_default=True,
    metavar="|".join(TRANSFERS),
    help="Copies during the computation of their step, or before it.",
)
@click.option(
    "--replicas",
    default=DEFAULT.replicas,
    show_default=True,
    type=int,
    help="Servers behind a router, each with this capacity.",
)
@click.option(
    "--router",
    default=DEFAULT.router,
    show_default=True,
    metavar="NAME",
    help=f"In front of them: {', '.join(ROUTERS)}.",
)
@click.option(
    "--kv-events",
    default=DEFAULT.kv_events,
    show_default=True,
    metavar="|".join(MODES),
    help="What they tell a router that listens.",
)
@click.option(
    "--event-lag",
    default=DEFAULT.event_lag,
    show_default=True,
    type=float,
    metavar="SECONDS",
    help="Until it hears of it.",
)
@click.option(
    "--fail",
    default=DEFAULT.fail,
    metavar="REPLICA@SECONDS,…",
    help="Replicas that go down, from 0.  [default: none]",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path),
    help="Write results here; -: to standard output, and the tables to standard error.",
)
@click.option(
    "--plot",
    "plot_path",
    type=click.Path(path_type=Path),
    help=f"Draw them here: {', '.join(PLOT_SUFFIXES)}.",
)
@click.pass_context
def replay(
    context: click.Context,
    path: Path | None,
    format_name: str,
    sessions: int | None,
    replicates: int,
    max_context: int | None,
    shared_prefix: str | None,
    subagents: bool,
    max_think: float | None,
    seed: int,
    concurrency: int,
    device_tokens: int,
    host_tokens: int,
    swap_tokens: int,
    block_tokens: int | None,
    page_tokens: int | None,
    model: str,
    scheduler: str,
    policies: str | None,
    sticky_shared: bool,
    effective_tflops: float,
    seconds_per_unit: float | None,
    seconds_per_prefill: float,
    seconds_per_output_token: float,
    chunk_tokens: int,
    host_gbps: float,
    transfers: str,
    replicas: int,
    router: str,
    kv_events: str,
    event_lag: float,
    fail: str,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Replay agent sessions in a closed loop and compare eviction policies.

    CONCURRENCY sessions are active; each sends its next request after the answer to the one
    before and its recorded think time; when one ends the next begins.  Time comes from the cost
    model, decisions from the policy core that also runs in the engine.
    """
    workload = Workload(
        path,
        format_name,
        sessions,
        replicates,
        max_context,
        shared_prefix,
        subagents,
        seed,
        max_think,
    )
    workload.check()
    given = {name for name in context.params if _is_given(context, name)}
    names = policy_names(
        ",".join(TIERED if host_tokens else POLICIES) if policies is None else policies
    )
    require_effect(
        given,
        {
            "policy": names,
            "host_tokens": (host_tokens,),
            "replicas": (replicas,),
            "router": (router,),
        },
    )
    require_inputs_once(path, [model])
    setting = Options(
        model=model,
        device_tokens=device_tokens,
        host_tokens=host_tokens,
        swap_tokens=swap_tokens,
        concurrency=concurrency,
        scheduler=scheduler,
        block_tokens=block_tokens,
        page_tokens=page_tokens,
        sticky_shared=sticky_shared,
        chunk_tokens=chunk_tokens,
        effective_tflops=effective_tflops,
        seconds_per_unit=seconds_per_unit,
        seconds_per_prefill=seconds_per_prefill,
        seconds_per_output_token=seconds_per_output_token,
        host_gbps=host_gbps,
        transfers=transfers,
        replicas=replicas,
        router=router,
        kv_events=kv_events,
        event_lag=event_lag,
        fail=fail,
    ).setting()
    for name in names:
        check_tiers(name, host_tokens)
    read = [] if path is None else [path]
    check_outputs(json_path, plot_path, [*read, *([Path(model)] if is_file(model) else [])])
    trace = workload.trace()
    groups = workload.split(trace)
    require_host_room(setting, trace.unit_tokens)
    if "concurrency" in given:
        require_sessions(concurrency, len(groups[0].sessions))
    at_a_time = min(concurrency, max(len(g.sessions) for g in fitting(groups, setting)))
    result = _compare(groups, setting, names)
    title = (
        f"{PurePath(trace.name).name}: {counted(result.policies[names[0]].requests, 'request')}, "
        f"{counted(at_a_time, 'session')} at a time, {device_tokens:,} tokens of KV"
        f"{f' and {host_tokens:,} on the host' if host_tokens else ''}"
        f"{f' on each of {replicas} replicas behind {router}' if replicas > 1 else ''}, "
        f"{setting.cost.name}{' (layout assumed)' if setting.cost.assumed else ''}, {scheduler}"
    )
    config = {
        "trace": trace.name,
        "format": trace.format,
        "digest": [group.digest() for group in groups],
        "sessions": len(groups[0].sessions),
        "replicates": replicates,
        "max_context": max_context,
        "omitted": asdict(trace.omitted),
        "shared_prefix": shared_prefix,
        "subagents": subagents,
        "max_think_s": max_think,
        "seed": seed if path is None else None,
        "concurrency": concurrency,
        "device_tokens": device_tokens,
        "host_tokens": host_tokens,
        "swap_tokens": swap_tokens,
        "host_gbps": host_gbps,
        "block_tokens": block_tokens,
        "page_tokens": page_tokens,
        "unit_tokens": trace.unit_tokens,
        "model": setting.cost.name,
        "scheduler": scheduler,
        "sticky_shared": sticky_shared,
        "timing": asdict(setting.timing),
        "replicas": replicas,
        "router": router if replicas > 1 else None,
        "kv_events": kv_events if router in LISTENING and replicas > 1 else None,
        "event_lag_s": event_lag if router in LISTENING and replicas > 1 else None,
        "failures": [asdict(failure) for failure in setting.fleet.failures],
    }
    try:
        write(result, config, title, json_path, plot_path)
    finally:
        # Last, so that a reader who leaves (`| head`) costs no file; and in any case, so that a
        # full disk costs no table.
        left_over = len(trace.sessions) - sum(len(group.sessions) for group in groups)
        elsewhere = json_path is not None and is_standard_output(json_path)
        show(result, Shown(title, trace, setting, left_over, elsewhere))


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


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
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if "" in names:
        known = ", ".join((*POLICIES, *ORDERS, *OTHERS, *ARMS))
        raise InvalidConfigError(f"--policy {text!r} names nothing at a comma: choose from {known}")
    for name in names:
        switches(name)
    return names


def _compare(groups: Sequence[Trace], setting: Setting, names: Sequence[str]) -> Comparison:
    """Compare, with a progress bar on a terminal."""
    with progress_bar() as progress:
        total = sum(group.requests for group in fitting(groups, setting))
        tasks = {name: progress.add_task(name, total=total) for name in names}
        return compare(groups, setting, names, lambda name: progress.advance(tasks[name]))
