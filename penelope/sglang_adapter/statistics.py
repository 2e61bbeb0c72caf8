"""Counts of what eviction and refilling did, for metrics and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penelope.policy import Effect, Residency, State
from penelope.runtime.exchange import Carried
from penelope.runtime.gauges import Flow, gauge


@dataclass
class Counts:
    evictions: int = 0
    evicted_tokens: int = 0
    """Whose last copy went, in whichever tier it was."""
    dropped_unread_tokens: int = 0
    """Of the evicted tokens, those that had gone to the host and were not read there again."""
    over_evicted_tokens: int = 0
    """Evicted beyond what was asked for: at most a block for each eviction."""
    phantoms: int = 0
    phantom_tokens: int = 0
    """Tokens whose KV a phantom request recomputed."""
    partial_refills: int = 0
    """Scheduler steps that refilled a part of a request's holes, the rest later."""
    shared_holes: int = 0
    """Holes that a request read from another request's phantom in the same batch."""
    reused_behind_hole_tokens: int = 0
    """Tokens reused although KV before them was missing: what a stock cache would recompute."""
    demotions: int = 0
    """Copies of a span to the host."""
    demoted_tokens: int = 0
    promotions: int = 0
    """Copies of a span to the device."""
    promoted_tokens: int = 0
    swaps: int = 0
    """Promotions while the swap buffer was in use: both tiers were full."""
    swapped_tokens: int = 0
    failed_moves: int = 0
    """Copies that failed and were undone."""
    spared_requests: int = 0
    """Waiting requests whose history was older than one that lost KV: LRU would have taken it."""
    queued_evicted_tokens: int = 0
    """Of the evicted tokens, those that a waiting request in view was going to use."""
    retired_histories: int = 0
    """Histories that go first because their session has left them or is over."""


_HELP = {
    "evicted_tokens": "Tokens whose last copy of KV was dropped",
    "dropped_unread_tokens": "Tokens moved to the host and dropped there without a read",
    "over_evicted_tokens": "Tokens evicted beyond the shortfall",
    "phantoms": "Phantom requests run",
    "phantom_tokens": "Tokens recomputed by phantom requests",
    "reused_behind_hole_tokens": "Cached tokens reused behind a hole",
    "demoted_tokens": "Tokens of KV moved to the host",
    "promoted_tokens": "Tokens of KV moved to the device",
    "swapped_tokens": "Of the promoted tokens, those exchanged through the swap buffer",
    "failed_moves": "Copies between the tiers that failed and were undone",
    "spared_requests": "Waiting requests whose history was spared where LRU would have taken it",
    "queued_evicted_tokens": "Of the evicted tokens, those that a waiting request was going to use",
    "retired_histories": "Histories that their session has left or that ended with it",
}
_GAUGES = {
    "device_tokens": "Tokens of cached KV on the device",
    "host_tokens": "Tokens of cached KV on the host",
    "hole_tokens": "Tokens kept without KV",
    "evictable_device_tokens": "Of those on the device, tokens that no request uses",
    "evictable_host_tokens": "Of those on the host, tokens that no request uses",
}


class Statistics:
    def __init__(self) -> None:
        self.counts = Counts()
        self._state: State | None = None
        self._counters: dict[str, Any] = {}
        self._gauges: dict[str, Any] = {}

    def add(self, name: str, amount: int = 1) -> None:
        setattr(self.counts, name, getattr(self.counts, name) + amount)
        if amount and name in self._counters:
            self._counters[name].inc(amount)

    def moved(self, done: Carried) -> None:
        """A span has come to the other tier."""
        tokens = done.transfer.length
        self.add("demotions" if done.demotion else "promotions")
        self.add("demoted_tokens" if done.demotion else "promoted_tokens", tokens)
        if done.swapped:
            self.add("swaps")
            self.add("swapped_tokens", tokens)

    def follow(self, state: State, effects: Sequence[Effect]) -> None:
        """What the tree holds now, and what of it went unread."""
        self._state = state
        if state.config.host_capacity:
            self.add("dropped_unread_tokens", Flow().after(effects).dropped_unread)
        if self._gauges:
            levels = self.levels
            for name, published in self._gauges.items():
                published.set(levels[name])

    @property
    def levels(self) -> dict[str, int]:
        """What the tree held after the last transition."""
        if self._state is None:
            return dict.fromkeys(_GAUGES, 0)
        device, host = gauge(self._state, Residency.DEVICE), gauge(self._state, Residency.HOST)
        return {
            "device_tokens": device.resident,
            "host_tokens": host.resident,
            "hole_tokens": self._state.totals.hole,
            "evictable_device_tokens": device.evictable,
            "evictable_host_tokens": host.evictable,
        }

    def snapshot(self) -> dict[str, int]:
        return {**asdict(self.counts), **self.levels}

    def reset(self) -> None:
        self.counts = Counts()

    def export(self, collector: Any) -> None:
        """Publish beside SGLang's own cache metrics, under the same labels."""
        from prometheus_client import Counter, Gauge

        names = list(collector.labels)
        for name, text in _HELP.items():
            counter = Counter(f"sglang:penelope_{name}_total", text, labelnames=names)
            self._counters[name] = counter.labels(**collector.labels)
        for name, text in _GAUGES.items():
            level = Gauge(
                f"sglang:penelope_{name}", text, labelnames=names, multiprocess_mode="mostrecent"
            )
            self._gauges[name] = level.labels(**collector.labels)
