"""A sweep as a picture: how policies compare along one axis, setting by setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from penelope.runtime.sweep.grid import Cell, Sweep
from penelope.runtime.sweep.tables import Compared, varying

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALONG = ("concurrency", "device_tokens", "host_tokens")
"""Axes that a picture is drawn along, the first that varies; else along the first that does."""

PANELS = 24
"""Settings that one picture holds."""

_COLUMNS = 4
_TITLE = 44
"""Characters above a panel."""


def plot(sweep: Sweep, found: Sequence[Compared], title: str, path: Path) -> None:
    """Draw a sweep into a file, in the format of its suffix."""
    figure = draw(sweep, found, title)
    figure.savefig(path, dpi=120, format=path.suffix.lower().removeprefix("."))


def draw(sweep: Sweep, found: Sequence[Compared], title: str) -> Figure:
    """Mean TTFT relative to the baseline: a line a policy, a dot a group of sessions."""
    # Not pyplot: it keeps figures and chooses a window system.
    from matplotlib.figure import Figure

    along, panels = arranged(sweep.cells)
    shown = list(panels.items())[:PANELS]
    columns = min(_COLUMNS, len(shown))
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(1.6 + 3.4 * columns, 1.2 + 2.6 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
    colours = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(c.policy for c in found))}
    by_cell: dict[int, list[Compared]] = {}
    for one in found:
        by_cell.setdefault(one.cell, []).append(one)
    for number, axes in enumerate(grid.flat):
        if number >= len(shown):
            axes.set_axis_off()
            continue
        setting, numbers = shown[number]
        _panel(axes, sweep, along, {n: by_cell[n] for n in numbers}, colours)
        axes.set_title(fill(setting, _TITLE), fontsize=8)
        axes.set_xlabel(along.replace("_", " "), fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylabel("mean TTFT / baseline", fontsize=8)
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    order = [name for name in colours if name in handles]
    figure.legend(
        [handles[n] for n in order], order, loc="outside lower center", ncols=4, fontsize=8
    )
    left = f"; the first {PANELS} of {len(panels)} settings" if len(panels) > PANELS else ""
    heading = figure.suptitle(f"{title}{left}", fontsize=8, color="#444444")
    heading.set_parse_math(False)  # a file name may hold dollars
    return figure


def arranged(cells: Sequence[Cell]) -> tuple[str, dict[str, list[int]]]:
    """The axis to draw along, and the cells of each panel by what they have in common."""
    names = varying(cells)
    along = next((name for name in (*ALONG, *names) if name in names), ALONG[0])
    panels: dict[str, list[int]] = {}
    for number, cell in enumerate(cells):
        options = asdict(cell.options)
        rest = [f"{_words(name)} {_value(options[name])}" for name in names if name != along]
        panels.setdefault(", ".join(rest), []).append(number)
    return along, panels


def _panel(
    axes: Axes, sweep: Sweep, along: str, cells: dict[int, list[Compared]], colours: dict[str, str]
) -> None:
    values = sorted({getattr(sweep.cells[n].options, along) for n in cells}, key=_sortable)
    places = {value: place for place, value in enumerate(values)}
    of: dict[str, list[tuple[int, Compared]]] = {}
    for number, compared in cells.items():
        for one in compared:
            of.setdefault(one.policy, []).append(
                (places[getattr(sweep.cells[number].options, along)], one)
            )
    bases = {n: {c.policy: c for c in found} for n, found in cells.items()}
    for policy, points in of.items():
        points.sort(key=lambda point: point[0])
        means = [one.ratios["ttft_mean_s"].geometric_mean for _, one in points]
        line = [float("nan") if mean is None else mean for mean in means]
        axes.plot(
            [place for place, _ in points], line, "o-", ms=4, color=colours[policy], label=policy
        )
        for place, one in points:
            base = bases[one.cell][sweep.cells[one.cell].baseline]
            if one is not base:
                per_group = [
                    own.ttft_mean_s / other.ttft_mean_s
                    for own, other in zip(one.groups, base.groups, strict=True)
                    if other.ttft_mean_s
                ]
                axes.plot(
                    [place] * len(per_group), per_group, ".", ms=2, alpha=0.4, color=colours[policy]
                )
    axes.set_xticks(range(len(values)), [_value(value) for value in values], fontsize=7)
    axes.tick_params(axis="y", labelsize=7)
    axes.margins(x=0.1)
    axes.spines[["top", "right"]].set_visible(False)


def _words(option: str) -> str:
    return option.replace("_", " ").replace(" tokens", "")


def _value(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _sortable(value: Any) -> tuple[bool, Any]:
    return (isinstance(value, str), -1 if value is None else value)
