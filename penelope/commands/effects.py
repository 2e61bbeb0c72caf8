"""Which options do nothing beside others: they are refused by name, not taken in silence.

Somebody who gives an option expects that it changes what comes out.  One rule a line, for
`penelope replay` and `penelope sweep` alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from penelope.policy import Granularity, Position
from penelope.policy.errors import InvalidConfigError
from penelope.runtime.inputs import require_read_once
from penelope.runtime.model_config import is_file
from penelope.runtime.replay.arms import switches
from penelope.runtime.replay.compare import Setting
from penelope.runtime.replay.routers import LISTENING
from penelope.runtime.sweep.grid import EVENTS_ONLY, FLEET_ONLY, HOST_ONLY

RECORDED_ONLY = ("format_name",)
GENERATED_ONLY = ("seed",)


class NoEffect(InvalidConfigError):
    """An option that changes nothing beside the others."""


def flag(name: str) -> str:
    """The flag of an option by its name in `Options` or `Workload`."""
    return {"path": "--trace", "format_name": "--format", "groups": "--replicates"}.get(
        name, f"--{name.replace('_', '-')}"
    )


def require_effect(given: Collection[str], axes: Mapping[str, Sequence[Any]]) -> None:
    """Raises `NoEffect` naming the first option that changes nothing.

    `given` are the names of all options that the user gave, `axes` the values of those in force;
    an option has an effect if it has one in any combination.
    """
    recorded = "path" in given
    host = max(axes.get("host_tokens", (0,))) > 0
    replicas = max(axes.get("replicas", (1,)))
    hears = not set(LISTENING).isdisjoint(axes.get("router", ()))
    kinds = [switches(name) for name in axes["policy"]]
    rules: tuple[tuple[bool, tuple[str, ...], str], ...] = (
        (not host, HOST_ONLY, "without a host: give --host-tokens too, or leave it out"),
        (replicas == 1, FLEET_ONLY, "with one replica: give --replicas too, or leave it out"),
        (
            replicas == 1 or not hears,
            EVENTS_ONLY,
            f"without a router that hears of them: choose --router {' or '.join(LISTENING)}",
        ),
        (recorded, GENERATED_ONLY, "with --trace, which generates nothing: leave one of them out"),
        (not recorded, RECORDED_ONLY, "without --trace: name the file, or leave it out"),
        (
            not recorded,
            ("subagents",),
            "without --trace: generated sessions have no sub-agents; leave it out",
        ),
        (
            "seconds_per_unit" in given,
            ("effective_tflops",),
            "with --seconds-per-unit, which replaces it: leave one of them out",
        ),
        (
            Position.PRIVATE_HEAD not in {position for position, _ in kinds},
            ("sticky_shared",),
            "on these policies: add penelope or private-head-node to --policy, or leave it out",
        ),
        (
            not host and Granularity.BLOCK not in {granularity for _, granularity in kinds},
            ("block_tokens",),
            "on policies that evict whole nodes: add one of blocks to --policy, or leave it out",
        ),
    )
    for useless, names, why in rules:
        for name in names:
            if useless and name in given:
                raise NoEffect(f"{flag(name)} has no effect {why}")


def require_inputs_once(
    trace: Path | None, models: Sequence[str], grid: Path | None = None
) -> None:
    """Raises `InputError` if two of these options would read the same pipe."""
    named = [] if grid is None else [("--grid", grid)]
    named += [] if trace is None else [("--trace", trace)]
    named += [("--model", Path(model)) for model in models if is_file(model)]
    require_read_once(named)


def require_sessions(concurrency: int, sessions: int) -> None:
    """Raises `NoEffect` for more sessions at a time than a group has."""
    if concurrency > sessions:
        raise NoEffect(
            f"--concurrency {concurrency} is more than the {sessions} "
            f"{'session' if sessions == 1 else 'sessions'} of a group, so no more would run: "
            "lower it, or raise --sessions"
        )


def require_host_room(setting: Setting, unit_tokens: int) -> None:
    """Raises `NoEffect` for a host that is all swap buffer: it behaves like none."""
    host, swap = setting.host_sizes(unit_tokens)
    if host and host == swap:
        raise NoEffect(
            f"--host-tokens {setting.host_tokens} has no effect with a swap buffer of {swap}, "
            "which leaves no room for KV: raise it, or lower --swap-tokens"
        )
