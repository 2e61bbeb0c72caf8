"""Counts of what eviction and refilling did, for metrics and tests."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Counts:
    evictions: int = 0
    evicted_tokens: int = 0
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


_HELP = {
    "evicted_tokens": "Tokens of KV evicted",
    "over_evicted_tokens": "Tokens evicted beyond the shortfall",
    "phantoms": "Phantom requests run",
    "phantom_tokens": "Tokens recomputed by phantom requests",
    "reused_behind_hole_tokens": "Cached tokens reused behind a hole",
}


class Statistics:
    def __init__(self) -> None:
        self.counts = Counts()
        self.hole_tokens = 0
        self._counters: dict[str, Any] = {}
        self._hole_gauge: Any = None

    def add(self, name: str, amount: int = 1) -> None:
        setattr(self.counts, name, getattr(self.counts, name) + amount)
        if amount and name in self._counters:
            self._counters[name].inc(amount)

    def holes(self, tokens: int) -> None:
        """How many tokens of holes the tree holds now."""
        self.hole_tokens = tokens
        if self._hole_gauge is not None:
            self._hole_gauge.set(tokens)

    def snapshot(self) -> dict[str, int]:
        return {**asdict(self.counts), "hole_tokens": self.hole_tokens}

    def reset(self) -> None:
        self.counts = Counts()

    def export(self, collector: Any) -> None:
        """Publish beside SGLang's own cache metrics, under the same labels."""
        from prometheus_client import Counter, Gauge

        names = list(collector.labels)
        for name, text in _HELP.items():
            counter = Counter(f"sglang:penelope_{name}_total", text, labelnames=names)
            self._counters[name] = counter.labels(**collector.labels)
        gauge = Gauge(
            "sglang:penelope_hole_tokens",
            "Tokens kept without KV",
            labelnames=names,
            multiprocess_mode="mostrecent",
        )
        self._hole_gauge = gauge.labels(**collector.labels)
