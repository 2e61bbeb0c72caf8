"""The comparison as a picture."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from penelope.runtime.replay.colours import is_dark, look
from penelope.runtime.replay.compare import Comparison, Ratio
from penelope.runtime.replay.digits import percent, thousands, three_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")
"""What a picture's file name may end in."""

_POWERS = ("", "10³ ", "10⁶ ", "10⁹ ", "10¹² ", "10¹⁵ ", "10¹⁸ ")
_SMALL = 8
_LINE = 150
"""Characters of the smaller sizes that fit the width of the figure."""


def plot(comparison: Comparison, title: str, path: Path) -> None:
    """Draw the comparison into a file, in the format of its suffix."""
    draw(comparison, title).savefig(path, dpi=150, format=path.suffix.lower().removeprefix("."))


def draw(comparison: Comparison, title: str) -> Figure:
    """Time to first token, recompute cost and hit rate by policy."""
    # Not pyplot: it keeps figures and chooses a window system.
    from matplotlib.figure import Figure

    names = list(comparison.policies)
    summaries = list(comparison.policies.values())
    figure = Figure(figsize=(11, 1.75 + 0.42 * len(names)), layout="constrained")
    times, cost, hits = figure.subplots(1, 3, sharey=True)

    ttft = [s.ttft_mean_s for s in summaries]
    medians = [s.ttft_p50_s for s in summaries]
    changes = [_change(comparison.ratios[n]["ttft_mean_s"]) for n in names]
    times.set_title("Time to first token (s)\nbar: mean, tick: median")
    _bars(times, names, ttft)
    times.plot(medians, range(len(names)), "k|", markersize=11)
    # A median beyond the mean must not strike the label out.
    ends = [max(pair) for pair in zip(ttft, medians, strict=True)]
    _label_ends(
        times, ends, [f"{three_digits(t)} s{c}" for t, c in zip(ttft, changes, strict=True)]
    )

    power = thousands(max(s.recomputed_units for s in summaries))
    spent = [s.recomputed_units / 1000**power for s in summaries]
    changes = [_change(comparison.ratios[n]["recomputed_units"]) for n in names]
    cost.set_title(
        f"Cost of recomputing evicted KV\n({_POWERS[power]}query-key pairs in one layer)"
    )
    _bars(cost, names, spent)
    _label_ends(cost, spent, [f"{three_digits(u)}{c}" for u, c in zip(spent, changes, strict=True)])

    rates = [100 * s.hit_rate for s in summaries]
    hits.set_title("Prompt tokens not computed (%)\nevery token counts the same")
    _bars(hits, names, rates)
    _label_inside(hits, names, rates)

    times.invert_yaxis()
    heading = figure.suptitle(f"{fill(title, _LINE)}\n{_changes(comparison)}", color="#444444")
    heading.set_fontsize(_SMALL)
    heading.set_parse_math(False)  # a file name may hold dollars
    return figure


def _bars(axes: Axes, names: list[str], values: list[float]) -> None:
    axes.barh(names, values, color=[look(n).colour for n in names], height=0.68)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=6)
    axes.title.set_fontsize(9)


def _label_ends(axes: Axes, ends: list[float], labels: list[str]) -> None:
    """Write beside the bars, and leave room for it."""
    for row, (end, label) in enumerate(zip(ends, labels, strict=True)):
        axes.annotate(
            label, (end, row), xytext=(5, 0), textcoords="offset points", va="center", size=_SMALL
        )
    axes.set_xlim(0, (max(ends) or 1) * 1.6)


def _label_inside(axes: Axes, names: list[str], shares: list[float]) -> None:
    """Write percentages into the bars where there is room: the axis ends at 100."""
    for row, (name, share) in enumerate(zip(names, shares, strict=True)):
        inside = share > 25
        white = inside and is_dark(look(name).colour)
        axes.annotate(
            f"{share:.1f} %",
            (share, row),
            xytext=(-5 if inside else 5, 0),
            textcoords="offset points",
            ha="right" if inside else "left",
            va="center",
            size=_SMALL,
            color="white" if white else "black",
        )
    axes.set_xlim(0, 100)


def _changes(comparison: Comparison) -> str:
    groups = len(comparison.replicates)
    first = next(iter(comparison.policies))
    if len(comparison.policies) == 1:
        return ""
    if groups == 1:
        return f"changes against {first}, in one group of sessions"
    return f"changes against {first}: geometric mean over {groups} disjoint groups of sessions"


def _change(ratio: Ratio) -> str:
    mean = ratio.geometric_mean
    return "" if mean is None or mean == 1 else f"  ({percent(mean)} %)".replace("-", "−")
