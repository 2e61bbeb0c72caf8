"""Run as a program: everything that a long random run decides, as one digest."""

from __future__ import annotations

import hashlib
import random
import sys

from immutables import Map

from penelope.policy import State
from tests.property import moves
from tests.property.moves import Moves
from tests.property.tiers import Driver, drawn_config
from tests.property.twin import Twin


def digest_of(state: State) -> bytes:
    """A state in an order that does not depend on hashes."""
    nodes = [
        # The order of a map of children means nothing, and must mean nothing.
        (*node._replace(children=Map()), sorted(node.children.items()))
        for node in sorted(state.nodes.values(), key=lambda node: node.id)
    ]
    rest = sorted(state.leases.items()), list(state.victims.in_order()), state.totals
    tiers = sorted(state.moves.items()), list(state.demotable.in_order())
    return repr((nodes, rest, tiers)).encode()


def run(steps: int) -> str:
    """Effects, answers and states of many short caches under every policy."""
    hasher = hashlib.sha256()
    for seed in range(steps // 100):
        rng = random.Random(seed)

        def pick(most: int, rng: random.Random = rng) -> int:
            return rng.randint(0, most)

        twin = Twin(moves.config(pick))
        step = Moves(twin, pick)
        for _ in range(100):
            getattr(step, moves.NAMES[pick(len(moves.NAMES) - 1)])()
            hasher.update(digest_of(twin.state))
        hasher.update("\n".join(twin.program).encode())
        hasher.update(repr(twin.history).encode())
        # And with two tiers: a driver that carries out moves, some of which fail.
        rng = random.Random(seed)
        driver = Driver(rng, drawn_config(rng), failing=0.1)
        for _ in range(100):
            driver.step()
            hasher.update(digest_of(driver.state))
    return hasher.hexdigest()


if __name__ == "__main__":
    print(run(int(sys.argv[1])))
