"""The small worlds, by name: the rows of the table in docs/assurance.md."""

from __future__ import annotations

from typing import Final

from penelope.policy import POLICIES, Config, Order
from tests.exhaustive.explore import World
from tests.exhaustive.operations import Limits


def _config(
    blocks: int,
    block: int = 1,
    page: int = 1,
    policy: str = "penelope",
    order: Order = Order.LRU,
) -> Config:
    return Config(blocks * block, page, block, *POLICIES[policy], order=order)


def _tiers(
    blocks: int,
    keeps: int,
    swap: int = 1,
    block: int = 1,
    policy: str = "penelope",
    page: int = 1,
    order: Order = Order.LRU,
) -> Config:
    position, granularity = POLICIES[policy]
    return Config(
        blocks * block,
        page,
        block,
        position,
        granularity,
        host_capacity=(keeps + swap) * block,
        swap_buffer=swap * block,
        order=order,
    )


FAST: Final = {
    "2 blocks, 3 requests": World(_config(2), Limits(longest=2, requests=3)),
    "2 blocks of a 2-token page": World(_config(2, 2, page=2), Limits(longest=4, requests=2)),
    "tail-block, 3 blocks": World(_config(3, policy="tail-block"), Limits(3, 1)),
    "tail-block, 2 blocks of 2 tokens, to depth 4": World(
        _config(2, 2, policy="tail-block"), Limits(4, 1), depth=4
    ),
    "sglang-lru, 3 blocks": World(_config(3, policy="sglang-lru"), Limits(3, 1)),
    "4 blocks, 1 request, to depth 5": World(_config(4), Limits(4, 1), depth=5),
    "3 blocks, to depth 5": World(_config(3), Limits(3, 2), depth=5),
    "2 blocks of 2 tokens, to depth 4": World(_config(2, 2), Limits(4, 2), depth=4),
    "two tiers, 2 blocks and 1, to depth 6": World(_tiers(2, 1), Limits(2, 2), depth=6),
    "two tiers, 2 pages of 2 tokens and 1, to depth 6": World(
        _tiers(2, 1, block=2, page=2), Limits(2, 2), depth=6
    ),
    "two tiers, 2 blocks and only a buffer": World(_tiers(2, 0), Limits(2, 1), depth=8),
    "expected cost, 3 blocks, 2 waiting, to depth 4": World(
        _config(3, order=Order.EXPECTED_COST), Limits(3, 1, queue=2), depth=4
    ),
    "lru, 3 blocks, 2 waiting, to depth 4": World(_config(3), Limits(3, 1, queue=2), depth=4),
    "expected cost, two tiers, 2 blocks and 1, 2 waiting, to depth 5": World(
        _tiers(2, 1, order=Order.EXPECTED_COST), Limits(2, 1, queue=2), depth=5
    ),
}
"""Some seconds."""

SLOW: Final = {
    "3 blocks, 3 requests": World(_config(3), Limits(3, 3)),
    "2 blocks of 2 tokens, 1 request, to depth 7": World(_config(2, 2), Limits(4, 1), depth=7),
    "2 blocks of 2 tokens, 3 requests, to depth 5": World(_config(2, 2), Limits(4, 3), depth=5),
    "4 blocks, 2 requests, to depth 5": World(_config(4), Limits(4, 2), depth=5),
    "4 blocks of 2 tokens, 2 requests, to depth 3": World(_config(4, 2), Limits(5, 2), depth=3),
    "sticky sharing, 3 blocks": World(
        Config(3, 1, 1, *POLICIES["penelope"], sticky_shared=True), Limits(3, 1)
    ),
    "leaf-head-block, 3 blocks": World(_config(3, policy="leaf-head-block"), Limits(3, 1)),
    "private-head-node, 3 blocks": World(_config(3, policy="private-head-node"), Limits(3, 1)),
    "two tiers, 2 blocks and 1, 2 requests": World(_tiers(2, 1), Limits(2, 2)),
    "two tiers, 3 blocks and 2, 3 requests, to depth 5": World(_tiers(3, 2), Limits(3, 3), depth=5),
    "two tiers, 2 blocks of 2 tokens and 1, to depth 5": World(
        _tiers(2, 1, block=2), Limits(3, 2), depth=5
    ),
    "two tiers, tail-block, 2 blocks and 1": World(_tiers(2, 1, policy="tail-block"), Limits(2, 1)),
    "expected cost, 3 blocks, 2 waiting, to depth 5": World(
        _config(3, order=Order.EXPECTED_COST), Limits(3, 1, queue=2), depth=5
    ),
}
"""Some minutes."""

WORLDS: Final = {**FAST, **SLOW}
