"""What the core's operations cost against the size of the state, and on one long history.

Every sample starts from the same state: states are values.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count, islice

from benchmarks import persistent_maps
from benchmarks.measuring import Bar, Sample, Timing, arguments, by_operation, measure, report, show
from penelope import policy
from penelope.policy import Config, Key, State, pack

SIZES = (1_000, 10_000, 100_000)
SHARED, PRIVATE = 32, 8
"""Units of the prefix that all histories share, and of what each has for itself."""
LONG = 130_048
"""Tokens of a long history: 2,032 pages of 64."""


@dataclass(frozen=True)
class World:
    """A full device, and the histories on it, least recently used first."""

    size: int
    state: State
    histories: list[Key]
    holed: State
    """The same after the oldest history has lost a block of its head."""


def wide(size: int) -> World:
    """One shared prefix with `size` leaves below it: many sessions of one agent."""
    histories = [
        pack([*range(SHARED), *(SHARED + PRIVATE * i + j for j in range(PRIVATE))])
        for i in range(size)
    ]
    return _filled(size, histories)


def forked(size: int) -> World:
    """A binary tree of `size` nodes: histories that part again and again."""
    depth = size.bit_length() - 1
    histories = [
        pack(
            PRIVATE * ((leaf >> (depth - level - 1)) + (1 << level)) + j
            for level in range(depth)
            for j in range(PRIVATE)
        )
        for leaf in range(1 << (depth - 1), 1 << depth)
    ]
    return _filled(size, histories)


def _filled(size: int, histories: list[Key]) -> World:
    # Exactly full, so that every admission has to evict.
    measured = policy.empty(Config(1 << 40, block_size=4))
    for history in histories:
        measured = policy.insert(measured, history).state
    config = Config(measured.totals.device, block_size=4)
    state = policy.empty(config)
    for history in histories:
        state = policy.insert(state, history).state
    return World(size, state, histories, policy.evict(state, 4).state)


class Operations:
    """Prepares samples of each operation on one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.state = world.state
        self.evicted = world.state
        self.chance = random.Random(world.size)
        self.units = count(1 << 30)

    def some(self, oldest: int = 0) -> Key:
        """A history, as another object than the one in the tree."""
        histories = self.world.histories
        return Key(bytes(bytearray(histories[self.chance.randrange(oldest, len(histories))])))

    def longer(self, history: Key, by: int = PRIVATE) -> Key:
        return Key(history + pack(islice(self.units, by)))

    def match(self) -> Sample:
        key = self.longer(self.some(), 1)
        return lambda: policy.match(self.state, key)

    def touched_match(self) -> Sample:
        key = self.longer(self.some(), 1)
        return lambda: policy.touch(self.state, policy.match(self.state, key))

    def insert(self) -> Sample:
        # Of the recently used half: the room is made by others.
        key = self.longer(self.some(oldest=len(self.world.histories) // 2))
        room = policy.evict(self.state, PRIVATE).state
        return lambda: policy.insert(room, key)

    def acquire(self) -> Sample:
        matched = policy.match(self.state, self.some())
        return lambda: policy.acquire(self.state, matched)

    def release(self) -> Sample:
        locked = policy.acquire(self.state, policy.match(self.state, self.some()))
        return lambda: policy.release(locked.state, locked.receipt)

    def plan(self) -> Sample:
        key = self.longer(self.some())
        return lambda: policy.plan(self.state, key, extra=PRIVATE)

    def admit_with_eviction(self) -> Sample:
        planned = policy.plan(self.state, self.longer(self.some()), extra=PRIVATE)
        return lambda: policy.admit(self.state, planned)

    def evict(self) -> Sample:
        # Each sample meets another victim; the state is still almost full when it starts over.
        if self.evicted.free > min(50, self.world.size // 20) * PRIVATE:
            self.evicted = self.state
        self.evicted = at = policy.evict(self.evicted, 4).state
        return lambda: policy.evict(at, 4)

    def refill(self) -> Sample:
        holed = self.world.holed
        planned = policy.plan(holed, self.longer(self.world.histories[0], 1))
        admitted = policy.admit(holed, planned)
        (hole,) = planned.holes
        return lambda: policy.refill(admitted.state, admitted.receipt, *hole)


OPERATIONS = (
    Operations.match,
    Operations.touched_match,
    Operations.insert,
    Operations.acquire,
    Operations.release,
    Operations.plan,
    Operations.admit_with_eviction,
    Operations.evict,
    Operations.refill,
)


def long_history() -> Iterator[tuple[str, int, Callable[[], Sample]]]:
    """A touched match of 130K tokens: merged to one node, and as many nodes as it has turns."""
    tokens = [7 * i % 150_000 for i in range(LONG)]
    for name, turns in (("penelope", 1), ("sglang-lru", 256)):
        for page in (64, 1):
            config = Config(LONG * 2, page, 64, *policy.named_policy(name))
            state = policy.empty(config)
            for turn in range(1, turns + 1):
                state = policy.insert(state, pack(tokens[: LONG * turn // turns])).state
            key = pack([*tokens, 1])

            def prepare(state: State = state, key: Key = key) -> Sample:
                other = Key(bytes(bytearray(key)))
                return lambda: policy.touch(state, policy.match(state, other))

            yield f"{turns} node{'s' if turns > 1 else ''}, pages of {page}", LONG, prepare


def bars(wide_timings: list[Timing], long_timings: list[Timing]) -> list[Bar]:
    evict = by_operation(wide_timings)["evict"]
    ratio = evict[-1].median_us / evict[0].median_us
    found = [
        Bar(
            f"evict at {evict[-1].size:,} leaves against {evict[0].size:,}",
            "at most 2 times",
            f"{ratio:.2f} times ({evict[0].median_us:.1f} and {evict[-1].median_us:.1f} us)",
            ratio <= 2,
        )
    ]
    found.extend(
        Bar(
            f"touched match of {LONG:,} tokens, {timing.operation}",
            "well under 1 ms: at most 0.5 ms",
            f"{timing.median_us / 1e3:.3f} ms",
            timing.median_us <= 500,
        )
        for timing in long_timings
        if timing.operation.endswith("64")
    )
    return found


def run(*, quick: bool = False) -> tuple[list[Bar], dict[str, object]]:
    """Measure and print; the bars, and all figures."""
    sizes = SIZES[:2] if quick else SIZES
    samples = 50 if quick else 300
    figures: dict[str, object] = {}
    shapes: dict[str, list[Timing]] = {}
    for shape, title, build in (
        ("leaves", "Against the number of leaves, below one shared prefix", wide),
        ("nodes", "Against the number of nodes of a binary tree", forked),
    ):
        worlds = [Operations(build(size)) for size in sizes]
        shapes[shape] = measure(
            [
                (operation.__name__.replace("_", " "), on.world.size, partial(operation, on))
                for operation in OPERATIONS
                for on in worlds
            ],
            samples,
        )
        show(title, shapes[shape])
        figures[shape] = [asdict(timing) for timing in shapes[shape]]
    lengths = measure(long_history(), samples)
    show("A touched match of one long history", lengths)
    figures["long"] = [asdict(timing) for timing in lengths]
    maps = persistent_maps.run(sizes, samples)
    show("A persistent map of so many entries: changes and lookups", maps)
    figures["maps"] = [asdict(timing) for timing in maps]
    return bars(shapes["leaves"], lengths), figures


if __name__ == "__main__":
    given = arguments(__doc__)
    report(*run(quick=given.quick), given.json)
