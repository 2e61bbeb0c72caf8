"""Numbers around the limits of one server: where formulas that should be one are two."""

from __future__ import annotations

import random
from dataclasses import dataclass

from penelope.policy import Order
from tests.fuzz.server import models


@dataclass(frozen=True)
class Limits:
    page: int
    block: int
    chunk: int
    pool: int
    host: int

    def prompt(self, source: random.Random) -> int:
        """Tokens of a prompt: moderate, often next to a limit, rarely beyond all of them."""
        choice = source.random()
        if choice < 0.45:
            return source.randrange(1, max(2, self.pool // 3))
        if choice < 0.6:
            return source.randrange(1, 3 * self.page + 3)
        if choice < 0.97:
            return max(1, self._edge(source) + self._beside(source))
        return models.CONTEXT + source.randrange(-20, 400)

    def _edge(self, source: random.Random) -> int:
        return source.choice(
            [
                self.page,
                self.block,
                self.chunk,
                2 * self.chunk,
                self.pool // 2,
                self.pool - self.block,
                self.pool - self.page,
                self.pool,
                models.CONTEXT,
            ]
        )

    def _beside(self, source: random.Random) -> int:
        near = [0, 1, -1, -2, -5, -6, -7, 2, 5, self.page, -self.page, -self.page - 1]
        return source.choice([*near, source.randrange(-17, 18)])

    def output(self, source: random.Random, prompt: int) -> int:
        """Tokens to generate; many only where the pool or the context soon ends them."""
        left = min(self.pool, models.CONTEXT) - prompt
        choice = source.random()
        if choice < 0.8 or left > 120:
            return source.choice([1, 1, 2, 3, 5, 8, 12, 16, 17, 33, self.page % 65, 40])
        if choice < 0.95:
            return max(0, left + source.randrange(-8, 9))
        return source.choice([10**6, 2**31 - 1])


def settings(source: random.Random, page: int) -> tuple[Limits, dict[str, int | str | bool]]:
    """Sizes and switches for the run under pressure, and the same as limits."""
    step = max(page, 16)
    block = step * source.choice([1, 1, 2, 4])
    pool = step * source.randrange(-(-384 // step), 1600 // step)
    chunk = source.choice([step, 3 * step, 6 * step, 16 * step, 2048])
    chosen: dict[str, int | str | bool] = {
        "pool": pool,
        "chunk": chunk,
        "block": block,
        "schedule": source.choice(["lpm", "fcfs", "lpm", "dfs-weight"]),
        "position": source.choice(["private-head"] * 5 + ["leaf-head", "tail"]),
        "granularity": source.choice(["block", "block", "block", "node"]),
        "mixed": source.random() < 0.4,
        "rows": source.choice([6, 16, 32, 32]),
    }
    host = 0
    if source.random() < 0.5:
        swap = block * source.choice([1, 1, 2])
        host = swap + step * source.randrange(0, 2000 // step)
        chosen |= {"host": host, "swap": swap}
    penelope = (chosen["position"], chosen["granularity"]) == ("private-head", "block")
    if penelope and source.random() < 0.4:
        chosen |= {"order": Order.EXPECTED_COST.value, "queue": source.random() < 0.7}
    return Limits(page, block, chunk, pool, host), chosen
