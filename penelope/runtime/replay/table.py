"""The comparison as a table of at most 80 columns."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from penelope.runtime.replay.compare import Comparison, Ratio


def table(comparison: Comparison) -> Table:
    """One row a policy; changes are relative to the first, group by group."""
    first = next(iter(comparison.policies))
    shown = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    shown.add_column("policy", no_wrap=True)
    for heading in ("TTFT s", "change", "p50", "p99", "hits", "recomputed", "holes"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, s in comparison.policies.items():
        ratios = comparison.ratios[name]
        base = name == first
        shown.add_row(
            name,
            f"{s.ttft_mean_s:.2f}",
            "" if base else _ratio(ratios["ttft_mean_s"], counted=True),
            f"{s.ttft_p50_s:.2f}",
            f"{s.ttft_p99_s:.1f}",
            f"{100 * s.hit_rate:.1f}%",
            f"{_units(s.recomputed_units)} "
            + ("" if base else _ratio(ratios["recomputed_units"], counted=False)).rjust(5),
            f"{s.holes_per_request:.2f}",
        )
    return shown


def legend(comparison: Comparison) -> str:
    """What the columns of the table mean."""
    groups = len(comparison.replicates)
    first = next(iter(comparison.policies))
    if groups > 1:
        against = (
            f"Changes are against {first}: geometric mean over {groups} disjoint groups of\n"
            f"sessions, and in how many of them it is better.  "
        )
    else:
        against = (
            f"Changes are against {first}.  This is one group, which an irrelevant change\n"
            f"moves by 10 to 30 %: use --replicates for a claim.  "
        )
    return (
        "TTFT: mean time to first token.  hits: prompt tokens not computed.  recomputed:\n"
        "cost of computing what had been cached before.  holes: refilled a request.\n" + against
    )


def _ratio(ratio: Ratio, *, counted: bool) -> str:
    if ratio.geometric_mean is None:
        return "-"
    change = f"{100 * (ratio.geometric_mean - 1):+.0f}%"
    if counted and ratio.groups > 1:
        change += f" {ratio.groups_better}/{ratio.groups}"
    return change


def _units(units: float) -> str:
    for factor, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if units >= factor:
            return f"{units / factor:.2f} {letter}"
    return f"{units:.0f}"
