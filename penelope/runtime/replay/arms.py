"""What can be compared: the policies of the core by name, and baselines with two tiers."""

from __future__ import annotations

from itertools import product

from penelope.policy import ORDERS, POLICIES, Config, Granularity, Position, ordering, policy
from penelope.policy.errors import InvalidConfigError
from penelope.runtime.replay.caches import CoreCache, ReplayCache
from penelope.runtime.replay.hicache import HiCache, Variant
from penelope.runtime.replay.independent import IndependentTiers

HICACHE = "sglang-hicache"
INDEPENDENT = "independent-tiers"

_VARIANTS = {
    "".join((HICACHE, *(suffix for suffix in suffixes if suffix))): Variant(*map(bool, suffixes))
    for suffixes in product(("", "-write-back"), ("", "-block"), ("", "-device-lpm"))
}

ARMS: tuple[str, ...] = (*_VARIANTS, INDEPENDENT)
"""The baselines.  They need a host tier."""


def switches(name: str) -> tuple[Position, Granularity]:
    """Where and how much the device evicts.  Raises `InvalidConfigError` for an unknown name."""
    if name in _VARIANTS:
        blocks = _VARIANTS[name].blocks
        return Position.TAIL, Granularity.BLOCK if blocks else Granularity.NODE
    if name == INDEPENDENT:
        return POLICIES["penelope"]
    if name not in POLICIES and name not in ORDERS:
        raise InvalidConfigError(
            f"unknown policy '{name}': choose from {', '.join((*POLICIES, *ORDERS, *ARMS))}"
        )
    return policy(name)


def cache(name: str, config: Config) -> ReplayCache:
    """An empty cache of the named kind.

    Raises `InvalidConfigError` for an unknown name, or a baseline of two tiers without a host.
    """
    switches(name)
    if name in POLICIES or name in ORDERS:
        return CoreCache(config, queue_in_view=ordering(name)[1])
    if not config.host_capacity:
        raise InvalidConfigError(f"policy '{name}' has two tiers: give --host-tokens")
    if name == INDEPENDENT:
        return IndependentTiers(config)
    return HiCache(config, _VARIANTS[name])
