"""What an index of a whole fleet costs: `python -m benchmarks.routing [--json FILE] [--quick]`.

A replica holds its share of the histories: a shared prompt and private blocks.  `--replicas` and
`--histories` set the size of the fleet, `--blocks` the length of a history.  Time is CPU time.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks.measuring import Sample, Timing, machine, measure
from penelope.cost import preset
from penelope.routing import FleetIndex, candidates, choose
from penelope.runtime.outputs import OutputError, check_writable, write_whole

BLOCK = 64
SHARED = 10
"""Blocks that all histories begin with."""
SAMPLE = 200


@dataclass(frozen=True, slots=True)
class Size:
    replicas: int
    histories: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Held:
    """What the index takes, by Python's own count of what it allocates."""

    size: Size
    blocks: int
    """Different blocks in the index."""
    mib: float
    bytes_per_block: float


class World:
    """An index, and the histories that it knows."""

    def __init__(self, size: Size, most_blocks: int) -> None:
        self.size = size
        self.chance = random.Random(1)
        self.names = [f"replica-{at:03}" for at in range(size.replicas)]
        self.prompt = [self.chance.getrandbits(64) for _ in range(min(SHARED, size.blocks))]
        self.index = FleetIndex(self.names, most_blocks=most_blocks)
        self.seeds = list(range(size.histories))
        for seed in self.seeds:
            self.index.stored(self.names[seed % size.replicas], self.history(seed))

    def history(self, seed: int) -> list[int]:
        """Its blocks as an event would name them: 64-bit hashes, new objects every time."""
        own = random.Random(2 + seed)
        more = self.size.blocks - len(self.prompt)
        return self.prompt + [own.getrandbits(64) for _ in range(more)]


def held(size: Size, most_blocks: int) -> tuple[World, Held]:
    gc.collect()
    tracemalloc.start()
    world = World(size, most_blocks)
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    blocks = len(world.index)
    return world, Held(size, blocks, taken / 2**20, taken / blocks)


def timings(world: World, samples: int = SAMPLE) -> list[Timing]:
    model, size = preset("qwen3-8b"), world.size
    length = size.blocks * BLOCK + 1

    def asked() -> list[int]:
        return world.history(world.chance.choice(world.seeds))

    def route(request: list[int]) -> object:
        found = world.index.held(request)
        return choose(model, length, candidates(found, world.names, block=BLOCK))

    def store_and_remove(blocks: list[int]) -> None:
        world.index.stored(world.names[0], blocks)
        world.index.removed(world.names[0], blocks)

    fresh = iter(range(size.histories, size.histories + 10**9))
    cases: list[tuple[str, Callable[[], Sample]]] = [
        ("index.held", lambda: partial(world.index.held, asked())),
        ("held and choose", lambda: partial(route, asked())),
        (
            "store and remove a history",
            lambda: partial(store_and_remove, world.history(next(fresh))),
        ),
    ]
    return measure([(what, size.histories, make) for what, make in cases], samples)


def run(sizes: Sequence[Size], most_blocks: int) -> tuple[list[Held], list[Timing]]:
    memory: list[Held] = []
    times: list[Timing] = []
    for size in sizes:
        world, taken = held(size, most_blocks)
        memory.append(taken)
        print(
            f"{size.replicas} replicas, {size.histories:,} histories of {size.blocks} blocks: "
            f"{taken.blocks:,} blocks, {taken.mib:,.0f} MiB, {taken.bytes_per_block:.0f} B a "
            f"block, {world.index.dropped:,} dropped"
        )
        for timing in timings(world):
            times.append(timing)
            print(
                f"  {timing.operation:<28}{timing.median_us:10.1f} µs{timing.p99_us:10.1f} µs p99"
            )
        del world
    return memory, times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=100)
    parser.add_argument("--histories", type=int, default=50_000)
    parser.add_argument("--blocks", type=int, default=100)
    parser.add_argument("--most-blocks", type=int, default=5_000_000)
    parser.add_argument("--quick", action="store_true", help="a tenth of the histories at most")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    given = parser.parse_args()
    if min(given.replicas, given.histories, given.blocks, given.most_blocks) < 1:
        parser.error("sizes must be at least 1")
    if given.json is not None:
        try:
            check_writable(given.json)
        except OutputError as error:
            parser.error(str(error))
    steps = (100, 10) if given.quick else (100, 10, 1)
    sizes = [Size(given.replicas, max(1, given.histories // n), given.blocks) for n in steps]
    memory, times = run(sizes, given.most_blocks)
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    if given.json is not None:
        document = {
            "machine": machine(),
            "held": [asdict(one) for one in memory],
            "times": [asdict(one) for one in times],
        }
        text = json.dumps(document, indent=2) + "\n"
        write_whole(given.json, lambda beside: _put(beside, text))


def _put(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
