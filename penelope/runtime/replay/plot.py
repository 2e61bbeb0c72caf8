"""The comparison as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penelope.runtime.replay.compare import Comparison, Ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STOCK, ABLATION, OURS = "#8c8c8c", "#9ec5e8", "#d9622b"


def plot(comparison: Comparison, title: str, path: Path) -> None:
    """Time to first token, recompute cost and hit rate by policy, as a PNG (or PDF, SVG)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(comparison.policies)
    summaries = list(comparison.policies.values())
    figure, axes = pyplot.subplots(
        1, 3, figsize=(11, 1.7 + 0.42 * len(names)), sharey=True, layout="constrained"
    )
    ttft = [s.ttft_mean_s for s in summaries]
    changes = [_change(comparison.ratios[n]["ttft_mean_s"]) for n in names]
    _bars(axes[0], names, ttft, [f"{t:.2f} s{c}" for t, c in zip(ttft, changes, strict=True)])
    medians = [s.ttft_p50_s for s in summaries]
    axes[0].plot(medians, range(len(names)), "k|", markersize=11, label="median")
    axes[0].legend(loc="lower right", frameon=False, fontsize=8)
    axes[0].set_title("Mean time to first token (s)")
    spent = [s.recomputed_units / 1e12 for s in summaries]
    changes = [_change(comparison.ratios[n]["recomputed_units"]) for n in names]
    _bars(axes[1], names, spent, [f"{u:.2f}{c}" for u, c in zip(spent, changes, strict=True)])
    axes[1].set_title("Cost of recomputing evicted KV\n(10¹² query-key pairs a layer)")
    _bars(
        axes[2],
        names,
        [100 * s.hit_rate for s in summaries],
        [f"{100 * s.hit_rate:.1f} %" for s in summaries],
    )
    axes[2].set_title("Prompt tokens not computed (%)")
    axes[0].invert_yaxis()
    figure.suptitle(title, fontsize=9, color="#444444")
    figure.savefig(path, dpi=150, format=path.suffix.lstrip(".") or "png")
    pyplot.close(figure)


def _bars(axes: Axes, names: list[str], values: list[float], labels: list[str]) -> None:
    colours = [OURS if n == "penelope" else STOCK if n == names[0] else ABLATION for n in names]
    bars = axes.barh(names, values, color=colours, height=0.68)
    axes.bar_label(bars, labels, padding=4, fontsize=8)
    axes.set_xlim(0, (max(values) or 1) * 1.42)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.title.set_fontsize(10)


def _change(ratio: Ratio) -> str:
    mean = ratio.geometric_mean
    return "" if mean is None or mean == 1 else f"  ({100 * (mean - 1):+.0f} %)"
