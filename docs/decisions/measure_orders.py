"""The figures of record 4: what an order of victims costs that never changes in place.

    python docs/decisions/measure_orders.py

CPU time, the best of nine runs of each.
"""

# ruff: noqa: T201
from __future__ import annotations

import heapq
import time
from bisect import insort
from collections.abc import Callable

from penelope.policy.ticks import TickMap

SIZES = (1_000, 100_000)
STRIDE = 7_919  # a prime: visits the keys in an order that no cache line likes


def best(run: Callable[[list[int]], object], keys: list[int]) -> float:
    """Microseconds an operation, `run` doing one for each key."""
    samples = []
    for _ in range(9):
        began = time.thread_time()
        run(keys)
        samples.append((time.thread_time() - began) / len(keys) * 1e6)
    return min(samples)


def report(what: str, figures: list[float]) -> None:
    print(f"{what:<42}" + "".join(f"{figure:>12.2f}" for figure in figures))


def some(size: int, times: int) -> list[int]:
    return [i * STRIDE % size for i in range(times)]


def tick_map(size: int) -> float:
    """A use of one history: out of its place, in at the end; and look at the least recent."""
    order: TickMap[int] = TickMap()
    for tick in range(size):
        order = order.insert(tick, tick)

    def use(keys: list[int]) -> None:
        now = order
        for fresh, key in enumerate(keys, size):
            now = now.remove(key).insert(fresh, key)
            now.first()

    return best(use, some(size, 1_000))


def copied_heap(size: int) -> float:
    """As above with a heap in a tuple, the old entry left behind to be skipped."""
    order = tuple(range(size))

    def use(keys: list[int]) -> None:
        for fresh, _ in enumerate(keys, size):
            heap = list(order)
            heapq.heappush(heap, fresh)
            tuple(heap)

    return best(use, some(size, 20))


def copied_sorted_list(size: int) -> float:
    order = tuple(range(size))

    def use(keys: list[int]) -> None:
        for fresh, key in enumerate(keys, size):
            ordered = list(order)
            del ordered[key]
            insort(ordered, fresh)
            tuple(ordered)

    return best(use, some(size, 20))


def main() -> None:
    print(f"{'microseconds an operation':<42}" + "".join(f"{n:>12,}" for n in SIZES))
    report("TickMap: use one, look at the first", [tick_map(n) for n in SIZES])
    report("heap, copied: use one", [copied_heap(n) for n in SIZES])
    report("sorted list, copied: use one", [copied_sorted_list(n) for n in SIZES])


if __name__ == "__main__":
    main()
