"""The two persistent maps that the core could stand on: `immutables` and, if installed, `rpds-py`.

A map like the core's nodes: integers to small tuples.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from immutables import Map

from benchmarks.measuring import Sample, Timing, measure

BATCH = 16
"""Changes that one transition makes together."""


def run(sizes: Sequence[int], samples: int) -> list[Timing]:
    return measure(
        [(what, size, prepare) for size in sizes for what, prepare in operations(size)], samples
    )


def operations(size: int) -> Iterator[tuple[str, Callable[[], Sample]]]:
    entries = {i: (i, i + 1, None) for i in range(size)}
    chance = random.Random(size)

    def keys() -> list[int]:
        return [chance.randrange(size) for _ in range(BATCH)]

    def compared(make: Callable[[], Callable[[list[int]], object]]) -> Callable[[], Sample]:
        def prepare() -> Sample:
            chosen, act = keys(), make()
            return lambda: act(chosen)

        return prepare

    ours = Map(entries)

    def together(chosen: list[int]) -> object:
        draft = ours.mutate()
        for key in chosen:
            draft[key] = (0, key, None)
        return draft.finish()

    yield "immutables: 1 change", compared(lambda: lambda chosen: ours.set(chosen[0], (0, 0, None)))
    yield "immutables: 16 changes", compared(lambda: together)
    yield "immutables: 16 lookups", compared(lambda: lambda chosen: [ours[key] for key in chosen])
    try:
        rpds: Any = importlib.import_module("rpds")
    except ModuleNotFoundError:
        return
    theirs = rpds.HashTrieMap(entries)

    def one_by_one(chosen: list[int]) -> object:
        changed = theirs
        for key in chosen:
            changed = changed.insert(key, (0, key, None))
        return changed

    yield "rpds: 1 change", compared(lambda: lambda chosen: theirs.insert(chosen[0], (0, 0, None)))
    yield "rpds: 16 changes", compared(lambda: one_by_one)
    yield "rpds: 16 lookups", compared(lambda: lambda chosen: [theirs[key] for key in chosen])
