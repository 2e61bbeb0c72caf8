"""What can be compared: the policies of the core by name, and baselines beside it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Final

from penelope.policy import ORDERS, POLICIES, Config, Granularity, Position, named_policy, ordering
from penelope.policy.errors import InvalidConfigError
from penelope.runtime.replay.caches import CoreCache, ReplayCache
from penelope.runtime.replay.hicache import HiCache, Variant
from penelope.runtime.replay.independent import IndependentTiers
from penelope.runtime.replay.others import (
    ChoosingCache,
    Clairvoyant,
    Retention,
    RoundRobinTails,
    TailLatencyLru,
)
from penelope.runtime.replay.plugged import is_plugged, plugged, plugged_cache

HICACHE = "sglang-hicache"
INDEPENDENT = "independent-tiers"

_VARIANTS = {
    "".join((HICACHE, *(suffix for suffix in suffixes if suffix))): Variant(*map(bool, suffixes))
    for suffixes in product(("", "-write-back"), ("", "-block"), ("", "-device-lpm"))
}

ARMS: tuple[str, ...] = (*_VARIANTS, INDEPENDENT)
"""The baselines with two tiers.  They need a host tier."""

SLACK_TOKENS: Final = 4096
"""What a history may lack under `t-lru`: half a prefill step of the default chunk."""

RETAINED_S: Final = 120.0
"""For how long KV is retained under `ttl`, in seconds."""

_OTHERS: dict[str, tuple[str, Callable[[Config, int], ChoosingCache]]] = {
    "round-robin-tails": ("tail-block", lambda config, _: RoundRobinTails(config)),
    "t-lru": ("tail-block", lambda config, unit: TailLatencyLru(config, SLACK_TOKENS // unit)),
    "ttl": ("tail-block", lambda config, _: Retention(config, RETAINED_S)),
    "clairvoyant": ("penelope", lambda config, _: Clairvoyant(config)),
}

OTHERS: tuple[str, ...] = tuple(_OTHERS)
"""Orders of victims that others propose, and a yardstick that knows the future.  One tier only."""


def switches(name: str) -> tuple[Position, Granularity]:
    """Where and how much the device evicts.  Raises `InvalidConfigError` for an unknown name."""
    if name in _VARIANTS:
        blocks = _VARIANTS[name].blocks
        return Position.TAIL, Granularity.BLOCK if blocks else Granularity.NODE
    if name == INDEPENDENT:
        return POLICIES["penelope"]
    if name in _OTHERS:
        return POLICIES[_OTHERS[name][0]]
    if is_plugged(name):
        return POLICIES[plugged(name).base]
    if name not in POLICIES and name not in ORDERS:
        raise InvalidConfigError(
            f"unknown policy '{name}': choose from "
            f"{', '.join((*POLICIES, *ORDERS, *OTHERS, *ARMS))}, or name yours as module:function"
        )
    return named_policy(name)


def check_tiers(name: str, host_tokens: int) -> None:
    """Raises `InvalidConfigError` where a baseline has two tiers and this is one, or reversed."""
    if name in ARMS and not host_tokens:
        raise InvalidConfigError(f"policy '{name}' has two tiers: give --host-tokens")
    if name in OTHERS and host_tokens:
        raise InvalidConfigError(
            f"policy '{name}' has one tier: leave --host-tokens out, or leave it out of --policy"
        )


def cache(name: str, config: Config, unit_tokens: int = 1) -> ReplayCache:
    """An empty cache of the named kind, of units with so many tokens.

    Raises `InvalidConfigError` for an unknown name, or as `check_tiers` does.
    """
    switches(name)
    check_tiers(name, config.host_capacity)
    if is_plugged(name):
        return plugged_cache(name, config, unit_tokens)
    if name in _OTHERS:
        return _OTHERS[name][1](config, unit_tokens)
    if name in POLICIES or name in ORDERS:
        return CoreCache(config, queue_in_view=ordering(name)[1])
    if name == INDEPENDENT:
        return IndependentTiers(config)
    return HiCache(config, _VARIANTS[name])
