"""One look for each policy, the same in every picture whatever else is in it."""

from __future__ import annotations

from typing import NamedTuple


class Look(NamedTuple):
    """How a policy is drawn."""

    colour: str
    marker: str


LOOKS: dict[str, Look] = {
    "sglang-lru": Look("#8c8c8c", "s"),
    "tail-block": Look("#9ec5e8", "^"),
    "leaf-head-block": Look("#4f8fc0", "v"),
    "private-head-node": Look("#27567f", "D"),
    "penelope": Look("#d9622b", "o"),
    "sglang-hicache": Look("#4d4d4d", "P"),
    "sglang-hicache-device-lpm": Look("#b3b3b3", "X"),
    "sglang-hicache-block": Look("#a6a15c", "<"),
    "sglang-hicache-block-device-lpm": Look("#cfcb94", ">"),
    "sglang-hicache-write-back": Look("#8463a8", "p"),
    "sglang-hicache-write-back-device-lpm": Look("#bda7d6", "h"),
    "sglang-hicache-write-back-block": Look("#3f8f5b", "*"),
    "sglang-hicache-write-back-block-device-lpm": Look("#95cba7", "d"),
    "independent-tiers": Look("#c2528b", "H"),
    "penelope-queue": Look("#f0a978", "$Q$"),
    "expected-cost-blind": Look("#e8c547", "$B$"),
    "expected-cost": Look("#a3161c", "$E$"),
    "round-robin-tails": Look("#7fb3a6", "$R$"),
    "t-lru": Look("#2f7f74", "$L$"),
    "ttl": Look("#6d8f3c", "$T$"),
    "clairvoyant": Look("#3d3a8c", "$C$"),
}
"""Stock is grey, Penelope orange, the steps between them blue, its other orders yellow to red."""

OTHER = Look("#6b6b3a", "8")
"""Of a policy without a line above."""


def look(policy: str) -> Look:
    """How to draw a policy."""
    return LOOKS.get(policy, OTHER)


def is_dark(colour: str) -> bool:
    """Whether white text is read better on it than black."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 150
