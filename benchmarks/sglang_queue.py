"""What it costs the scheduler to keep its queue in view of the cache.

    python -m benchmarks.sglang_queue [--leaves N …] [--waiting N] [--tokens N]

No engine runs: requests are what the adapter reads of them, and the tree is the core's state.
"""

from __future__ import annotations

import argparse
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.measuring import Sample, measure
from penelope import policy
from penelope.policy import Config, Effect, Key, Order, State
from penelope.sglang_adapter.waiting_line import WaitingLine

PAGE = 64
IDLE_TOKENS = 256
NEW = 32
"""Tokens that a request has beyond what is cached."""


class Tree:
    def __init__(self, order: Order) -> None:
        self.state = policy.empty(Config(1 << 40, PAGE, PAGE, order=order, linear_cost=23_552))

    def apply(self, state: State, effects: tuple[Effect, ...]) -> None:
        del effects
        self.state = state

    def add(self, tokens: array[int]) -> None:
        self.state = policy.insert(self.state, Key(np.array(tokens).astype("<u4").tobytes())).state


class Request(SimpleNamespace):
    """What the adapter reads of a request that waits."""

    def __init__(self, tokens: array[int]) -> None:
        super().__init__(
            origin_input_ids=tokens,
            output_ids=array("q"),
            retraction_count=0,
            lock=None,
            lora_id=None,
            extra_key=None,
            cache_salt=None,
            positional_embed_overrides=None,
            _compute_max_prefix_len=lambda length: length - 1,
        )


def history(number: int, length: int) -> array[int]:
    source = np.random.default_rng(number)
    return array("q", source.integers(0, 150_000, length).tobytes())


class Queue:
    """Requests that wait for histories of so many tokens, beside so many idle ones."""

    def __init__(self, order: Order, leaves: int, waiting: int, tokens: int) -> None:
        self.tree = Tree(order)
        self.line = WaitingLine()
        self.line.follow(lambda: self.waiting)
        for number in range(leaves):
            self.tree.add(history(number, IDLE_TOKENS))
        self.waiting: list[Any] = []
        for number in range(waiting):
            self.tree.add(past := history(1_000_000 + number, tokens))
            self.waiting.append(Request(past + history(2_000_000 + number, NEW)))
        self.look()
        self.full, self.lined = self.tree.state, list(self.waiting)

    def look(self) -> None:
        self.line.look(self.tree, 0)

    def again(self, change: Callable[[list[Any]], None]) -> Callable[[], Sample]:
        """Look at the queue after a change of it."""

        def prepare() -> Sample:
            self.waiting[:] = self.lined
            self.look()
            change(self.waiting)
            return self.look

        return prepare

    def evict(self) -> Sample:
        """One block, nobody having come or gone."""
        self.waiting[:] = self.lined
        self.look()
        state = self.tree.state
        return lambda: policy.evict(state, PAGE)


def steps(queue: Queue) -> dict[str, Callable[[], Sample]]:
    stranger = Request(history(3_000_000, len(queue.lined[0].origin_input_ids)))

    def served(waiting: list[Any]) -> None:
        waiting.pop(0)

    def arrives(waiting: list[Any]) -> None:
        served(waiting)
        vars(stranger).pop("penelope_ticket", None)
        waiting.append(stranger)

    return {
        "nothing has changed": queue.again(lambda _: None),
        "the first is served": queue.again(served),
        "and another arrives": queue.again(arrives),
        "the queue is reversed": queue.again(lambda waiting: waiting.reverse()),
        "a block is evicted": queue.evict,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leaves", type=int, nargs="+", default=[1_000, 10_000, 50_000])
    parser.add_argument("--waiting", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=100_000, help="of each that waits")
    parser.add_argument("--samples", type=int, default=100)
    given = parser.parse_args()
    for order in Order:
        cases = [
            (name, leaves, prepare)
            for leaves in given.leaves
            for name, prepare in steps(Queue(order, leaves, given.waiting, given.tokens)).items()
        ]
        print(f"{order.value}, {given.waiting} requests of {given.tokens:,} tokens wait")
        for timing in measure(cases, given.samples):
            print(
                f"  {timing.size:7,} idle leaves, {timing.operation:22} "
                f"{timing.median_us:8.0f} µs, p99 {timing.p99_us:8.0f} µs"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
