"""A sweep as a picture: how policies compare along one axis, setting by setting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from penelope.runtime.replay.colours import look
from penelope.runtime.sweep.grid import Cell, Sweep
from penelope.runtime.sweep.tables import Compared, named_values, varying

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALONG = ("concurrency", "device_tokens", "host_tokens")
"""Axes that a picture is drawn along, the first that varies; else along the first that does."""

PANELS = 24
"""Settings that one picture holds."""

_COLUMNS = 4
_DRAWN = "lines: geometric mean of the groups, dots: groups"
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
    policies = list(dict.fromkeys(c.policy for c in found))
    width = 1.6 + 3.4 * columns
    # What a name takes, with its line before it, so that no line of the legend is cut off.
    fit = int(width / (0.6 + 0.065 * max(len(_labelled(p, sweep)) for p in policies)))
    legend_columns = max(1, min(4, fit))
    legend_lines = -(-len(policies) // legend_columns)
    height = 1.0 + 2.6 * lines + 0.19 * legend_lines
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
    by_cell: dict[int, list[Compared]] = {}
    for one in found:
        by_cell.setdefault(one.cell, []).append(one)
    for number, axes in enumerate(grid.flat):
        if number >= len(shown):
            axes.set_axis_off()
            continue
        setting, numbers = shown[number]
        _panel(axes, sweep, along, {n: by_cell[n] for n in numbers}, policies)
        axes.set_title(fill(setting, _TITLE), fontsize=8)
        axes.set_xlabel(along.replace("_", " "), fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylabel(f"mean TTFT / {_baseline(sweep)}", fontsize=8)
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    order = [name for name in policies if name in handles]
    figure.legend(
        [handles[name] for name in order],
        [_labelled(name, sweep) for name in order],
        loc="outside lower center",
        ncols=legend_columns,
        fontsize=8,
    )
    left = f"; the first {PANELS} of {len(panels)} settings" if len(panels) > PANELS else ""
    said = f"{title}; {_DRAWN}{left}"
    heading = figure.suptitle(fill(said, int(16 * width)), fontsize=8, color="#444444")
    heading.set_parse_math(False)  # a file name may hold dollars
    return figure


def arranged(cells: Sequence[Cell]) -> tuple[str, dict[str, list[int]]]:
    """The axis to draw along, and the cells of each panel by what they have in common."""
    names = varying(cells)
    along = next((name for name in (*ALONG, *names) if name in names), ALONG[0])
    panels: dict[str, list[int]] = {}
    for number, cell in enumerate(cells):
        options = named_values(cells, cell)
        rest = [f"{_words(name)} {_value(options[name])}" for name in names if name != along]
        panels.setdefault(", ".join(rest), []).append(number)
    return along, panels


def _panel(
    axes: Axes, sweep: Sweep, along: str, cells: dict[int, list[Compared]], policies: Sequence[str]
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
        # Lines that coincide are nested, and their marks lie side by side.
        rank = policies.index(policy)
        share = rank / max(1, len(policies) - 1)
        aside = 0.16 * (share - 0.5) if len(policies) > 1 else 0.0
        colour, marker = look(policy)
        axes.plot(
            [place + aside for place, _ in points],
            line,
            linestyle="-",
            marker=marker,
            ms=6,
            lw=4 - 2.8 * share,
            color=colour,
            markeredgecolor="white",
            markeredgewidth=0.5,
            zorder=3 + share,
            label=policy,
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
                    [place + aside] * len(per_group),
                    per_group,
                    linestyle="none",
                    marker="o",
                    ms=3.5,
                    alpha=0.75,
                    color=colour,
                    markeredgecolor="#333333",
                    markeredgewidth=0.4,
                    zorder=5,
                )
    axes.set_xticks(range(len(values)), [_value(value) for value in values], fontsize=7)
    axes.tick_params(axis="y", labelsize=7)
    axes.margins(x=0.1)
    axes.spines[["top", "right"]].set_visible(False)


def _baseline(sweep: Sweep) -> str:
    """The one that is compared with, where there is one."""
    names = {cell.baseline for cell in sweep.cells}
    return names.pop() if len(names) == 1 else "its baseline"


def _labelled(policy: str, sweep: Sweep) -> str:
    return f"{policy} (baseline)" if policy == _baseline(sweep) else policy


def _words(option: str) -> str:
    return option.replace("_", " ").replace(" tokens", "")


def _value(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _sortable(value: Any) -> tuple[bool, Any]:
    return (isinstance(value, str), -1 if value is None else value)
