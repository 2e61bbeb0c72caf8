"""What `penelope sweep` may be told, on its command line and in a file: values and lists."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from penelope.commands.effects import require_effect
from penelope.commands.replay import TIERED
from penelope.commands.workload import Workload
from penelope.cost import PRESET_CONFIGS
from penelope.policy import POLICIES
from penelope.policy.errors import PenelopeError
from penelope.runtime import inputs
from penelope.runtime.replay.options import MODES, TRANSFERS
from penelope.runtime.replay.routers import ROUTERS
from penelope.runtime.sweep.grid import Axes
from penelope.runtime.traces import FORMATS


class GridFileError(PenelopeError):
    """A file that describes no sweep."""


class Kind(NamedTuple):
    """What the values of an option are."""

    of: type
    one: str
    plural: str


INTEGER = Kind(int, "INTEGER", "whole numbers")
NUMBER = Kind(float, "NUMBER", "numbers")
WORD = Kind(str, "NAME", "a name in quotes")
SWITCH = Kind(bool, "true|false", "true or false")


class Told(NamedTuple):
    """One option: its flags, of which a file may use any, without the dashes."""

    flags: tuple[str, ...]
    kind: Kind
    help: str


AXES: dict[str, Told] = {
    "policy": Told(("--policy",), WORD, "See `penelope replay --help`."),
    "model": Told(
        ("--model",), WORD, f"{', '.join(PRESET_CONFIGS)}, or Hugging Face config.json files."
    ),
    "device_tokens": Told(("--device-tokens", "--capacity"), INTEGER, "KV capacity."),
    "host_tokens": Told(("--host-tokens",), INTEGER, "KV capacity of a second tier; 0: none."),
    "swap_tokens": Told(("--swap-tokens",), INTEGER, "Of the host's, for exchanges only."),
    "concurrency": Told(("--concurrency",), INTEGER, "Sessions at a time."),
    "scheduler": Told(("--scheduler",), WORD, "lpm, fcfs."),
    "block_tokens": Told(("--block-tokens",), INTEGER, "Eviction granularity."),
    "page_tokens": Told(("--page-tokens",), INTEGER, "Match granularity."),
    "sticky_shared": Told(
        ("--sticky-shared",), SWITCH, "false,true: whether a prefix once shared stays shared."
    ),
    "chunk_tokens": Told(("--chunk-tokens",), INTEGER, "A prefill step."),
    "effective_tflops": Told(("--effective-tflops",), NUMBER, "Prefill speed."),
    "seconds_per_unit": Told(("--seconds-per-unit",), NUMBER, "Instead: seconds per cost unit."),
    "seconds_per_prefill": Told(("--seconds-per-prefill",), NUMBER, "Of a step, whatever it does."),
    "seconds_per_output_token": Told(("--seconds-per-output-token",), NUMBER, "A running request."),
    "host_gbps": Told(("--host-gbps",), NUMBER, "10⁹ bytes a second between the tiers."),
    "transfers": Told(("--transfers",), WORD, f"{', '.join(TRANSFERS)}."),
    "replicas": Told(("--replicas",), INTEGER, "Servers behind a router."),
    "router": Told(("--router",), WORD, f"{', '.join(ROUTERS)}."),
    "kv_events": Told(("--kv-events",), WORD, f"{', '.join(MODES)}: what routers are told."),
    "event_lag": Told(("--event-lag",), NUMBER, "Seconds until a router hears."),
}
"""Options that take lists: every combination is replayed.  By the names of `Options`."""

CONSTANTS: dict[str, Told] = {
    "path": Told(("--trace",), WORD, "A trace file; without it, sessions are generated."),
    "format_name": Told(("--format",), WORD, f"auto, {', '.join(FORMATS)}."),
    "sessions": Told(("--sessions",), INTEGER, "Sessions in a group."),
    "groups": Told(("--replicates", "--groups"), INTEGER, "Disjoint groups of sessions."),
    "max_context": Told(("--max-context",), INTEGER, "Tokens of the largest request."),
    "shared_prefix": Told(("--shared-prefix",), WORD, "none, all:N, by-tools."),
    "subagents": Told(("--subagents",), SWITCH, "true, false: whether sub-agents run."),
    "max_think": Told(("--max-think",), NUMBER, "Seconds that a client thinks at most."),
    "seed": Told(("--seed",), INTEGER, "Of the generator."),
    "baseline": Told(("--baseline",), WORD, "Policy to compare with.  [default: the first]"),
}
"""Options of the whole sweep.  By the names of `Workload`, and the baseline."""

_BY_KEY = {
    flag.removeprefix("--"): (name, told)
    for table in (AXES, CONSTANTS)
    for name, told in table.items()
    for flag in told.flags
}


def _listed(
    ctx: click.Context, param: click.Parameter, value: str | None, kind: Kind, *, single: bool
) -> tuple[Any, ...] | None:
    """Comma-separated values of one kind, each once; None where the option is not given."""
    if value is None:
        return None
    texts = [value] if single else [text.strip() for text in value.split(",")]
    if not single and "" in texts:
        raise click.BadParameter(
            f"{value!r} names nothing at a comma: give a value there", ctx, param
        )
    try:
        return tuple(dict.fromkeys(_read(text, kind) for text in texts))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not {kind.plural}", ctx, param) from None


def _read(text: str, kind: Kind) -> Any:
    if kind is SWITCH:
        if text not in {"true", "false"}:
            raise ValueError(text)
        return text == "true"
    return kind.of(text)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command all of them, each None where it is not given."""
    for table, single in ((CONSTANTS, True), (AXES, False)):
        for name, told in reversed(table.items()):
            add = click.option(
                *told.flags,
                name,
                callback=partial(_listed, kind=told.kind, single=single),
                metavar=told.kind.one if single else f"{told.kind.one},…",
                help=told.help,
            )
            command = add(command)
    return command


@dataclass(frozen=True, slots=True)
class Chosen:
    """A sweep as it was asked for."""

    workload: Workload
    grids: list[Axes]
    baseline: str | None
    models: list[str]
    """All that are named, in order."""
    concurrency: list[int] | None
    """All values together; None: not given."""


def chosen(given: Mapping[str, tuple[Any, ...] | None], file: Path | None) -> Chosen:
    """The command line over the file over the defaults.  Raises `GridFileError`."""
    said = {name: values for name, values in given.items() if values is not None}
    common, grids = ({}, [{}]) if file is None else _grid_file(file)
    constants = {n: v[0] for n, v in {**common, **said}.items() if n in CONSTANTS}
    baseline = constants.pop("baseline", None)
    if "path" in constants:
        path = Path(constants["path"])
        # In a file, from where the file is; on the command line, from where the user is.
        constants["path"] = path if "path" in said or file is None else file.parent / path
    found: list[Axes] = []
    for grid in grids:
        axes: dict[str, Any] = {n: v for n, v in {**common, **grid, **said}.items() if n in AXES}
        tiers = min(axes.get("host_tokens", (0,))) > 0
        axes.setdefault("policy", TIERED if tiers else tuple(POLICIES))
        found.append(axes)
    together: dict[str, list[Any]] = {}
    for own in found:
        for name, values in own.items():
            together.setdefault(name, []).extend(values)
    require_effect({*together, *constants}, together)
    return Chosen(
        Workload(**constants),
        found,
        baseline,
        list(dict.fromkeys(together.get("model", ()))),
        together.get("concurrency"),
    )


def _grid_file(path: Path) -> tuple[dict[str, tuple[Any, ...]], list[dict[str, tuple[Any, ...]]]]:
    """What a file says of all of its grids, and of each: values by the names of the options."""
    try:
        with inputs.opened(path) as source:
            document = tomllib.loads(source.document().decode())
    except inputs.InputError as error:
        raise GridFileError(_unreadable(path, error)) from error
    except ValueError as error:  # TOML and UTF-8 alike
        raise GridFileError(f"{path} is not TOML ({error}); correct it") from error
    tables = document.pop("grid", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise GridFileError(f"{path}: grid is no list of tables; begin each with [[grid]]")
    if not tables:
        raise GridFileError(f"{path} has no grid: add values, or leave the list out")
    common = _values(path, document, _BY_KEY)
    of_grids = {key: entry for key, entry in _BY_KEY.items() if entry[0] in AXES}
    return common, [_values(path, table, of_grids) for table in tables]


def _unreadable(path: Path, error: inputs.InputError) -> str:
    reason = error.problem.removeprefix("cannot be read (").removesuffix(")")
    if reason != error.problem:
        return f"cannot read {path}: {reason}; give a TOML file"
    return f"{inputs.shown(path)} {error.problem}; {error.remedy}"


def _values(
    path: Path, table: Mapping[str, Any], known: Mapping[str, tuple[str, Told]]
) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for key, value in table.items():
        entry = known.get(key.replace("_", "-"))
        if entry is None:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise GridFileError(f"{path}: {key} is no option here; {hint}")
        name, told = entry
        if name in found:
            raise GridFileError(f"{path}: {key} is given twice, by two names; keep one")
        values = value if isinstance(value, list) and name in AXES else [value]
        if not values:
            raise GridFileError(f"{path}: {key} names nothing; give at least one")
        found[name] = tuple(dict.fromkeys(_of_kind(path, key, v, told.kind) for v in values))
    return found


def _of_kind(path: Path, key: str, value: Any, kind: Kind) -> Any:
    if kind is NUMBER and type(value) is int:
        return float(value)
    if type(value) is not kind.of:
        raise GridFileError(f"{path}: {key} is {value!r}; give {kind.plural}")
    return value
