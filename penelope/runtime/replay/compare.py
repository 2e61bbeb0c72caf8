"""The same workload under several policies, on disjoint groups of sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import fmean, geometric_mean

import numpy as np

from penelope.cost import CostModel
from penelope.policy import Config, ordering
from penelope.policy.errors import InvalidConfigError, PenelopeError
from penelope.runtime.replay.arms import cache, switches
from penelope.runtime.replay.closed_loop import Replayed, replay
from penelope.runtime.replay.fleet import ALONE, FleetSetting
from penelope.runtime.replay.seen import Seen
from penelope.runtime.replay.server import Counters, Scheduler, Server, Timing, total
from penelope.runtime.traces import Session, Trace


class NothingFits(PenelopeError):
    """No session of the trace can run on this device at all."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One cell of an experiment: everything but the trace and the policy.  Sizes in tokens."""

    cost: CostModel
    timing: Timing
    device_tokens: int
    concurrency: int
    scheduler: Scheduler = Scheduler.LPM
    block_tokens: int | None = None
    """None: 64, or the next larger number of whole pages."""
    page_tokens: int | None = None
    """None: one hashed block of the trace."""
    sticky_shared: bool = False
    host_tokens: int = 0
    """0: one tier."""
    swap_tokens: int = 1024
    """Of the host, for exchanges only."""
    fleet: FleetSetting = ALONE
    """Replicas of this server, each with a cache of these sizes."""

    def config(self, name: str, unit_tokens: int) -> Config:
        """The cache configuration of a named policy, in units of the trace.

        Raises `InvalidConfigError` when a size is not a whole number of hashed blocks.
        """
        position, granularity = switches(name)
        capacity, page, block = (tokens // unit_tokens for tokens in self.sizes(unit_tokens))
        host, swap = (tokens // unit_tokens for tokens in self.host_sizes(unit_tokens))
        return Config(
            capacity,
            page,
            block,
            position,
            granularity,
            self.sticky_shared,
            host_capacity=host,
            swap_buffer=swap,
            order=ordering(name)[0],
            linear_cost=round(self.cost.linear / unit_tokens),
        )

    def sizes(self, unit_tokens: int) -> tuple[int, int, int]:
        """Capacity, page and block in tokens, the capacity cut to whole pages.

        Raises `InvalidConfigError` as `config` does.
        """
        page = unit_tokens if self.page_tokens is None else self.page_tokens
        block = -(-64 // max(1, page)) * page if self.block_tokens is None else self.block_tokens
        for flag, tokens, of, size in (
            ("--page-tokens", page, "the trace's hashed block", unit_tokens),
            ("--block-tokens", block, "the page size", page),
        ):
            if tokens < size or tokens % size:
                raise InvalidConfigError(
                    f"{flag} {tokens} is not a multiple of {of}, {size} tokens: "
                    f"choose a multiple of {size}"
                )
        if self.device_tokens < page:
            raise InvalidConfigError(
                f"--device-tokens {self.device_tokens} holds no page of {page}: give it more"
            )
        if self.block_tokens is not None and block > self.device_tokens:
            raise InvalidConfigError(
                f"--block-tokens {block} is more than the device holds, {self.device_tokens} "
                "tokens: choose a smaller block"
            )
        return self.device_tokens // page * page, page, block

    def host_sizes(self, unit_tokens: int) -> tuple[int, int]:
        """Host and swap buffer in tokens, the host cut to whole pages; zeros for one tier.

        Raises `InvalidConfigError` as `config` does.
        """
        if not self.host_tokens:
            return 0, 0
        _, page, block = self.sizes(unit_tokens)
        if self.swap_tokens < block or self.swap_tokens % block:
            raise InvalidConfigError(
                f"--swap-tokens {self.swap_tokens} is not a whole number of blocks of {block}: "
                f"choose a multiple of {block}, one at least"
            )
        host = self.host_tokens // page * page
        if host < self.swap_tokens:
            raise InvalidConfigError(
                f"--host-tokens {self.host_tokens} does not hold its swap buffer of "
                f"{self.swap_tokens}: raise it or lower --swap-tokens"
            )
        return host, self.swap_tokens


@dataclass(frozen=True, slots=True)
class Summary:
    """One policy on one workload, as reported.  Tokens, seconds and cost units."""

    requests: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    jct_mean_s: float
    """Of a session: from its first request to its last token, think times included."""
    hit_rate: float
    """Share of prompt tokens that were not computed."""
    computed_tokens: int
    computed_units: float
    recomputed_units: float
    """Spent on tokens that had been cached, or computed, before."""
    evicted_tokens: int
    holes_per_request: float
    mostly_lost_requests: int
    """Requests that recomputed at least nine tenths of the private history they had before."""
    mostly_lost_units: float
    """What these recomputed, of `recomputed_units`."""
    over_evicted_tokens: int
    """Freed beyond what was needed."""
    device_hit_tokens: int
    """Prompt tokens found on the device; with those found on the host, all that were not
    computed."""
    host_hit_tokens: int
    promoted_tokens: int
    """Copied from the host to the device."""
    demoted_tokens: int
    """Copied from the device to the host."""
    swapped_tokens: int
    """Promoted while the swap buffer was in use."""
    swapped_share: float
    """Of what was promoted; 0 where nothing was."""
    nodes_max: int
    policy_seconds: float
    """CPU time in the policy core."""
    busy_max: float
    """Of the busiest replica: time in which it computed, over the mean of all; 1 for one."""
    rerouted_requests: int
    """Sent again because their replica failed."""


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """One replica of a fleet, over all groups."""

    requests: int
    hit_rate: float
    """Share of the prompt tokens sent to it that it did not compute; 0 if none was sent."""
    computed_tokens: int
    evicted_tokens: int
    busy_s: float
    """Seconds in which it computed."""


COMPARED = ("ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "jct_mean_s", "recomputed_units")
"""What is compared group by group.  Less is better."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How a policy compares with the first one, over disjoint groups of sessions."""

    geometric_mean: float | None
    """Of the per-group ratios; None where the first policy had zero."""
    groups_better: int
    groups: int
    groups_equal: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """All groups together, each group, and the ratios to the first policy."""

    policies: dict[str, Summary]
    replicates: list[dict[str, Summary]]
    ratios: dict[str, dict[str, Ratio]]
    refused_sessions: int
    """Left out because one of their requests does not fit the device."""
    replicas: dict[str, list[ReplicaFigures]]
    """By policy, one for each replica."""


def _ignore(name: str) -> None:
    del name


def compare(
    groups: Sequence[Trace],
    setting: Setting,
    names: Sequence[str],
    answered: Callable[[str], None] = _ignore,
) -> Comparison:
    """Replay every group under every policy.  The first policy is the one compared with.

    `answered` is told the policy after every request of its replay.
    Raises `InvalidConfigError`, and `NothingFits` if a group has no session that can run.
    """
    check_policies(setting, names, groups[0].unit_tokens)
    runnable = fitting(groups, setting)
    per_group: list[dict[str, Replayed]] = []
    for group in runnable:
        done: dict[str, Replayed] = {}
        for name in names:
            done[name] = replay_under(group, setting, name, partial(answered, name))
        first = {name: first_time_cost(d.counters) for name, d in done.items()}
        # A replica that fails takes work with it that was begun and not finished.
        same = len(set(first.values())) == 1 or setting.fleet.failures
        assert same, f"policies did different work: {first}"
        per_group.append(done)
    scale = setting.cost.scale
    replicates = [{n: summary([done[n]], scale) for n in names} for done in per_group]
    return Comparison(
        {n: summary([done[n] for done in per_group], scale) for n in names},
        replicates,
        {n: ratios([(r[names[0]], r[n]) for r in replicates]) for n in names},
        sum(len(g.sessions) - len(r.sessions) for g, r in zip(groups, runnable, strict=True)),
        {n: replica_figures([done[n] for done in per_group]) for n in names},
    )


def check_policies(setting: Setting, names: Sequence[str], unit_tokens: int) -> None:
    """Raises `InvalidConfigError` if one of the policies cannot run in this setting."""
    setting.fleet.check(names, setting.host_tokens)
    for name in names:
        cache(name, setting.config(name, unit_tokens), unit_tokens)


def replay_under(
    group: Trace, setting: Setting, name: str, answered: Callable[[], None]
) -> Replayed:
    """Replay a group, of which every session fits the device, under a named policy.

    `answered` is called after every request.
    """
    unit = group.unit_tokens
    config, seen = setting.config(name, unit), Seen()
    servers = [
        Server(
            cache(name, config, unit), setting.cost, setting.timing, setting.scheduler, unit, seen
        )
        for _ in range(setting.fleet.replicas)
    ]
    fleet = setting.fleet.fleet(servers, setting.cost, unit)
    return replay(group, fleet, setting.concurrency, answered)


def fitting(groups: Sequence[Trace], setting: Setting) -> list[Trace]:
    """The groups, each without the sessions that have a request larger than the device.

    Refusing in the middle of a session would depend on the policy.  Raises `NothingFits` for a
    group of which nothing is left, `InvalidConfigError` as `Setting.sizes` does.
    """
    fit = []
    for number, trace in enumerate(groups, 1):
        capacity, _, _ = setting.sizes(trace.unit_tokens)
        sessions = tuple(s for s in trace.sessions if largest_request(s) <= capacity)
        if not sessions:
            smallest = min(largest_request(s) for s in trace.sessions)
            of_group = f" of group {number}" if len(groups) > 1 else ""
            raise NothingFits(
                f"no session{of_group} fits a device of {capacity} tokens, the smallest needs "
                f"{smallest}: raise --device-tokens or lower --max-context"
            )
        fit.append(replace(trace, sessions=sessions))
    return fit


def largest_request(session: Session) -> int:
    """Tokens of the session's largest prompt with its output."""
    return max(t.in_tokens + t.out_tokens for stream in session.streams for t in stream.turns)


def first_time_cost(counters: Counters) -> int:
    """What was computed for the first time: it is the workload's, not the policy's.

    Where an output is also another stream's prompt, whether a prefill or a decode computes it
    first depends on the order of events, so the two are added up.
    """
    return counters.computed - counters.recomputed + counters.decoded


def summary(runs: Sequence[Replayed], scale: int) -> Summary:
    """What runs of one policy come to; `scale` is their cost model's."""
    ttft = np.array([t for run in runs for t in run.ttft])
    counted = [run.counters for run in runs]

    def added(field: Callable[[Counters], int]) -> int:
        return sum(field(c) for c in counted)

    requests = added(lambda c: c.requests)
    computed = added(lambda c: c.computed_tokens)
    promoted = added(lambda c: c.promoted_tokens)
    swapped = added(lambda c: c.swapped_tokens)
    return Summary(
        requests=requests,
        ttft_mean_s=float(ttft.mean()),
        ttft_p50_s=float(np.percentile(ttft, 50)),
        ttft_p99_s=float(np.percentile(ttft, 99)),
        jct_mean_s=fmean(t for run in runs for t in run.jct),
        hit_rate=1 - computed / added(lambda c: c.prompt_tokens),
        computed_tokens=computed,
        computed_units=added(lambda c: c.computed) / scale,
        recomputed_units=added(lambda c: c.recomputed) / scale,
        evicted_tokens=added(lambda c: c.evicted_tokens),
        holes_per_request=added(lambda c: c.holes) / requests,
        mostly_lost_requests=added(lambda c: c.mostly_lost),
        mostly_lost_units=added(lambda c: c.mostly_lost_recomputed) / scale,
        over_evicted_tokens=added(lambda c: c.over_evicted_tokens),
        device_hit_tokens=added(lambda c: c.device_hit_tokens),
        host_hit_tokens=added(lambda c: c.host_hit_tokens),
        promoted_tokens=promoted,
        demoted_tokens=added(lambda c: c.demoted_tokens),
        swapped_tokens=swapped,
        swapped_share=swapped / promoted if promoted else 0.0,
        nodes_max=max(c.nodes_max for c in counted),
        policy_seconds=sum(c.policy_seconds for c in counted),
        busy_max=max(max(busy) / fmean(busy) for busy in (run.fleet.busy_s for run in runs)),
        rerouted_requests=sum(run.fleet.rerouted for run in runs),
    )


def replica_figures(runs: Sequence[Replayed]) -> list[ReplicaFigures]:
    """Each replica of runs of one policy, on fleets of one size."""
    found = []
    for number in range(len(runs[0].fleet.servers)):
        own = total([run.fleet.servers[number].counters for run in runs])
        computed, asked = own.computed_tokens, own.prompt_tokens
        hits = 1 - computed / asked if asked else 0.0
        busy = sum(run.fleet.busy_s[number] for run in runs)
        found.append(ReplicaFigures(own.requests, hits, computed, own.evicted_tokens, busy))
    return found


def ratios(pairs: Sequence[tuple[Summary, Summary]]) -> dict[str, Ratio]:
    """How the second of each pair compares with the first: one pair a group of sessions."""
    found = {}
    for metric in COMPARED:
        values = [(getattr(base, metric), getattr(own, metric)) for base, own in pairs]
        defined = all(base > 0 and own > 0 for base, own in values)
        found[metric] = Ratio(
            geometric_mean([own / base for base, own in values]) if defined else None,
            sum(own < base for base, own in values),
            len(values),
            sum(own == base for base, own in values),
        )
    return found


def as_json(comparison: Comparison, config: dict[str, object]) -> dict[str, object]:
    """The document that `--json` writes."""
    return {
        "config": config,
        "policies": {name: asdict(s) for name, s in comparison.policies.items()},
        "ratios": {
            name: {metric: asdict(r) for metric, r in ratios.items()}
            for name, ratios in comparison.ratios.items()
        },
        "refused_sessions": comparison.refused_sessions,
        "replicas": {
            name: [asdict(figures) for figures in replicas]
            for name, replicas in comparison.replicas.items()
        },
        "replicates": [
            {"policies": {name: asdict(s) for name, s in group.items()}}
            for group in comparison.replicates
        ],
    }
