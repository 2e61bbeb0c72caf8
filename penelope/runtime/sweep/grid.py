"""The cells of a sweep: every combination of the values of its axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Any, NamedTuple

from penelope.cost import CostModel
from penelope.policy import ORDERS, POLICIES
from penelope.policy.errors import PenelopeError
from penelope.runtime.model_config import load_model
from penelope.runtime.replay.arms import ARMS, OTHERS, switches
from penelope.runtime.replay.compare import (
    Setting,
    Summary,
    check_policies,
    first_time_cost,
    fitting,
    replay_under,
    summary,
)
from penelope.runtime.replay.options import Options
from penelope.runtime.replay.routers import LISTENING
from penelope.runtime.traces import Trace

FIGURES = tuple(field.name for field in fields(Summary) if field.name != "policy_seconds")
"""What is kept of a `Summary`: everything that does not depend on the machine."""


class SweepError(PenelopeError):
    """A sweep that cannot be run, or not go on."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting, and the policies that are compared in it."""

    options: Options
    setting: Setting
    policies: tuple[str, ...]
    baseline: str
    """The one of them that the others are compared with."""


class Task(NamedTuple):
    """One replay: the unit of work that is done once and never again."""

    cell: int
    policy: str
    group: int


class Row(NamedTuple):
    """What one replay gave."""

    refused_sessions: int
    first_time: int
    """The same for every policy, see `first_time_cost`.  Multiples of 1 / `CostModel.scale`."""
    figures: dict[str, Any]
    """By the names in `FIGURES`."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Cells, and the groups of sessions that each of them replays under each of its policies."""

    cells: tuple[Cell, ...]
    groups: tuple[Trace, ...]

    def tasks(self) -> list[Task]:
        """Every replay, in the order of the tables."""
        return [
            Task(number, policy, group)
            for number, cell in enumerate(self.cells)
            for policy in cell.policies
            for group in range(len(self.groups))
        ]

    def check(self) -> None:
        """Raises `PenelopeError` for a cell that cannot be run on these sessions."""
        for cell in self.cells:
            check_policies(cell.setting, cell.policies, self.groups[0].unit_tokens)
            fitting(self.groups, cell.setting)

    def perform(self, task: Task) -> Row:
        """Replay one group under one policy in one cell."""
        setting, group = self.cells[task.cell].setting, self.groups[task.group]
        (runnable,) = fitting([group], setting)
        done = replay_under(runnable, setting, task.policy, _ignore)
        found = asdict(summary([done], setting.cost.scale))
        return Row(
            len(group.sessions) - len(runnable.sessions),
            first_time_cost(done.counters),
            {name: found[name] for name in FIGURES},
        )


def _ignore() -> None:
    pass


Axes = Mapping[str, Sequence[Any]]
"""Values by the name of a field of `Options`, or of policies as `policy`."""


def cells(grids: Sequence[Axes], baseline: str | None) -> tuple[Cell, ...]:
    """Every combination of each grid's values, each setting once.

    Without a `baseline`, a setting's first policy is it.  Raises `PenelopeError`.
    """
    policies: dict[Options, dict[str, None]] = {}
    for grid in grids:
        axes = dict(grid)
        names = axes.pop("policy")
        if not names:
            known = ", ".join((*POLICIES, *ORDERS, *OTHERS, *ARMS))
            raise SweepError(f"no policy is named: choose from {known}")
        for name in names:
            switches(name)
        for values in product(*axes.values()):
            options = _told(dict(zip(axes, values, strict=True)))
            policies.setdefault(options, {}).update(dict.fromkeys(names))
    found = []
    # Once a model, not once a setting: a pipe cannot be read again.
    costs: dict[str, CostModel] = {}
    for options, chosen in policies.items():
        if options.model not in costs:
            costs[options.model] = load_model(options.model)
        if baseline is not None and baseline not in chosen:
            raise SweepError(
                f"the baseline '{baseline}' is none of the policies {', '.join(chosen)}: "
                "add it to --policy or choose one of these"
            )
        found.append(
            Cell(
                options,
                options.setting(costs[options.model]),
                tuple(chosen),
                baseline or next(iter(chosen)),
            )
        )
    return tuple(found)


HOST_ONLY = ("swap_tokens", "host_gbps", "transfers")
"""Options that mean nothing without a host."""

FLEET_ONLY = ("router", "fail")
"""Options that mean nothing with one replica."""

EVENTS_ONLY = ("kv_events", "event_lag")
"""Options that mean nothing to a router that hears no KV events."""


def _told(values: Mapping[str, Any]) -> Options:
    """The options of one combination; those that mean nothing in it are as if not given.

    So that two combinations which differ in them alone are one setting, replayed once.
    """
    useless: set[str] = set()
    if not values.get("host_tokens", 0):
        useless.update(HOST_ONLY)
    if values.get("replicas", 1) == 1:
        useless.update(FLEET_ONLY, EVENTS_ONLY)
    if values.get("router", Options().router) not in LISTENING:
        useless.update(EVENTS_ONLY)
    return Options(**{n: value for n, value in values.items() if n not in useless})


def narrowed(cells: Sequence[Cell], sessions: int) -> tuple[Cell, ...]:
    """The cells with no more sessions at a time than a group has."""

    def one(cell: Cell) -> Cell:
        most = min(cell.options.concurrency, sessions)
        return replace(
            cell,
            options=replace(cell.options, concurrency=most),
            setting=replace(cell.setting, concurrency=most),
        )

    return tuple(map(one, cells))
