"""What a sweep came to: one row a replay, and every policy against its baseline."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penelope.runtime.replay.compare import COMPARED, Ratio, Summary, ratios
from penelope.runtime.sweep.grid import HOST_ONLY, Cell, Row, Sweep, SweepError, Task


@dataclass(frozen=True, slots=True)
class Compared:
    """One policy in one cell, all groups together."""

    cell: int
    policy: str
    groups: list[Summary]
    ratios: dict[str, Ratio]
    """To the cell's baseline, group by group."""

    def total(self, field: str) -> Any:
        """The sum of a figure over the groups."""
        return sum(getattr(group, field) for group in self.groups)

    @property
    def ttft_mean_s(self) -> float:
        """Over all requests."""
        return float(sum(g.ttft_mean_s * g.requests for g in self.groups) / self.total("requests"))

    @property
    def hit_rate(self) -> float:
        """Share of all prompt tokens that were not computed."""
        hits = self.total("device_hit_tokens") + self.total("host_hit_tokens")
        return float(hits / (hits + self.total("computed_tokens")))


def compared(sweep: Sweep, rows: Mapping[Task, Row]) -> list[Compared]:
    """Every policy of every cell.  Raises `SweepError` if policies did different work."""
    found = []
    numbers = range(len(sweep.groups))
    for number, cell in enumerate(sweep.cells):
        of = {p: [rows[Task(number, p, group)] for group in numbers] for p in cell.policies}
        for group in numbers:
            if len({done[group].first_time for done in of.values()}) > 1:
                raise SweepError(
                    f"in cell {number}, group {group}, policies did different work, so the "
                    "finished replays do not belong together: delete the folder and start over"
                )
        groups = {
            policy: [Summary(**row.figures, policy_seconds=0.0) for row in done]
            for policy, done in of.items()
        }
        found += [
            Compared(
                number, policy, own, ratios(list(zip(groups[cell.baseline], own, strict=True)))
            )
            for policy, own in groups.items()
        ]
    return found


def tidy_rows(sweep: Sweep, rows: Mapping[Task, Row]) -> list[dict[str, Any]]:
    """One row a cell, policy and group: options, then figures."""
    return [
        {
            "cell": task.cell,
            **asdict(sweep.cells[task.cell].options),
            "policy": task.policy,
            "group": task.group,
            "refused_sessions": rows[task].refused_sessions,
            **rows[task].figures,
        }
        for task in sweep.tasks()
    ]


def summary_rows(sweep: Sweep, found: Sequence[Compared]) -> list[dict[str, Any]]:
    """One row a cell and policy: figures over all groups, and the comparison with the baseline.

    `…_ratio` is the geometric mean of the per-group ratios, empty where the baseline had zero;
    `…_better` the number of groups with less than the baseline.
    """
    rows = []
    for one in found:
        cell = sweep.cells[one.cell]
        row = {
            "cell": one.cell,
            **asdict(cell.options),
            "policy": one.policy,
            "baseline": cell.baseline,
            "groups": len(one.groups),
            "requests": one.total("requests"),
            "ttft_mean_s": one.ttft_mean_s,
            "hit_rate": one.hit_rate,
            "recomputed_units": one.total("recomputed_units"),
            "mostly_lost_requests": one.total("mostly_lost_requests"),
            "mostly_lost_units": one.total("mostly_lost_units"),
            "evicted_tokens": one.total("evicted_tokens"),
        }
        for metric in COMPARED:
            row[f"{metric}_ratio"] = one.ratios[metric].geometric_mean
            row[f"{metric}_better"] = one.ratios[metric].groups_better
        rows.append(row)
    return rows


def varying(cells: Sequence[Cell]) -> list[str]:
    """The options that are not the same in all cells, in their usual order."""
    every = [asdict(cell.options) for cell in cells]
    return [name for name in every[0] if len({options[name] for options in every}) > 1]


def named_values(cells: Sequence[Cell], cell: Cell) -> dict[str, Any]:
    """The options of a cell as tables and pictures show them.

    A model is named as in every other result; by its path where two files have one name.  What
    means nothing without a host is a dash there.
    """
    values = asdict(cell.options)
    name = cell.setting.cost.name
    same = {c.options.model for c in cells if c.setting.cost.name == name}
    values["model"] = name if len(same) == 1 else cell.options.model
    if not cell.options.host_tokens:
        values |= dict.fromkeys(HOST_ONLY, "–")
    return values


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A header and the rows; None is an empty field."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
