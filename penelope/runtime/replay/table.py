"""The comparison as a table of at most 80 columns."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from penelope.runtime.replay.compare import Comparison, Ratio
from penelope.runtime.replay.digits import percent, thousands, three_digits

WIDTH = 80


def table(comparison: Comparison) -> Table:
    """One row a policy; changes are relative to the first, group by group."""
    first = next(iter(comparison.policies))
    shown = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, show_edge=False)
    shown.add_column("policy", no_wrap=True)
    for heading in ("TTFT s", "change", "p50", "p99", "hits", "recomputed", "holes"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, s in comparison.policies.items():
        ratios = comparison.ratios[name]
        base = name == first
        recomputed = "" if base else change(ratios["recomputed_units"], counted=False)
        shown.add_row(
            _broken(name),
            three_digits(s.ttft_mean_s),
            "" if base else change(ratios["ttft_mean_s"], counted=True),
            three_digits(s.ttft_p50_s),
            three_digits(s.ttft_p99_s),
            f"{100 * s.hit_rate:.1f}%".replace("100.0", "100"),
            f"{_units(s.recomputed_units)} {recomputed:>5}",
            f"{s.holes_per_request:.2f}",
        )
    return shown


def tiers_table(comparison: Comparison) -> Table:
    """One row a policy: where hits were found, and what was moved between the tiers."""
    shown = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, show_edge=False)
    shown.add_column("policy", no_wrap=True)
    for heading in ("device hits", "host hits", "promoted", "demoted", "swapped"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, s in comparison.policies.items():
        tokens = (s.device_hit_tokens, s.host_hit_tokens, s.promoted_tokens, s.demoted_tokens)
        share = f"{100 * s.swapped_share:.0f}%" if s.promoted_tokens else "-"
        shown.add_row(_broken(name), *map(_units, tokens), f"{_units(s.swapped_tokens)} {share:>4}")
    return shown


def fleet_table(comparison: Comparison) -> Table:
    """One row a policy: how evenly the replicas were used."""
    shown = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, show_edge=False)
    shown.add_column("policy", no_wrap=True)
    for heading in ("requests", "hits", "busiest", "sent again"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, s in comparison.policies.items():
        own = comparison.replicas[name]
        requests = [figures.requests for figures in own]
        hits = [100 * figures.hit_rate for figures in own]
        shown.add_row(
            _broken(name),
            f"{min(requests):,} to {max(requests):,}",
            f"{min(hits):.1f} to {max(hits):.1f}%",
            f"{s.busy_max:.2f}",
            f"{s.rerouted_requests:,}",
        )
    return shown


def fleet_legend() -> str:
    """What the columns of `fleet_table` mean."""
    return (
        "requests, hits: of the replica with the fewest, and with the most.  busiest: time in "
        "which the busiest replica computed, over the mean of all.  sent again: because their "
        "replica failed."
    )


def tiers_legend() -> str:
    """What the columns of `tiers_table` mean."""
    return (
        "Tokens.  hits: of prompts, by tier.  promoted: copied from the host to the device; "
        "demoted: to the host.  swapped: promoted while the swap buffer was in use, and its share."
    )


def _broken(name: str) -> str:
    """A name in lines that leave room for the figures."""
    for suffix in ("-write", "-device"):
        name = name.replace(suffix, f"\n {suffix}")
    return name


def legend(comparison: Comparison) -> str:
    """What the columns of the table mean."""
    groups = len(comparison.replicates)
    first = next(iter(comparison.policies))
    columns = (
        "TTFT: mean time to first token, with median and 99th percentile.  hits: prompt tokens "
        "not computed.  recomputed: cost of computing what had been cached before, in query-key "
        "pairs of one layer.  holes: refilled a request."
    )
    if len(comparison.policies) == 1:
        return columns
    if groups == 1:
        return (
            f"{columns}\nChanges are against {first}.  This is one group, which an irrelevant "
            f"change moves by 10 to 30 %: use --replicates for a claim."
        )
    return (
        f"{columns}\nChanges are against {first}: geometric mean over {groups} disjoint groups "
        f"of sessions, and in how many of them it is better."
    )


def change(ratio: Ratio, *, counted: bool) -> str:
    """A ratio as a change, with the groups that are better if they are `counted`."""
    mean = ratio.geometric_mean
    if mean is None:
        return "-"
    shown = f"{percent(mean)}%" if mean < 10 else f"x{three_digits(mean)}"
    # Where every group ties, "better in none" would read as worse in all.
    said = counted and ratio.groups > 1 and ratio.groups_equal < ratio.groups
    return f"{shown} {ratio.groups_better}/{ratio.groups}" if said else shown


def _units(units: float) -> str:
    power = thousands(units)
    return f"{three_digits(units / 1000**power)} {'kMGTPE'[power - 1]}" if power else f"{units:.0f}"
