"""Run a store, or a whole cache, through the suite; find the shortest way to make it fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import Final, NamedTuple

from penelope.policy import Config
from penelope.runtime.cache import Cache
from penelope.testing.errors import ConformanceError
from penelope.testing.inspect import InspectableStore, InspectableSymbolicStore
from penelope.testing.serving import MakeCache, Operation, Serving, drawn
from penelope.testing.watch import WatchedStore

MakeStore = Callable[[Config], InspectableStore]
"""A new, empty store with the capacities of the configuration."""

ONE_TIER: Final = Config(16, page_size=1, block_size=2)
TWO_TIERS: Final = Config(12, page_size=1, block_size=2, host_capacity=14, swap_buffer=2)
"""The host keeps as much as the device: nine in ten promotions go through the swap buffer."""

_TRIES = 250


class Report(NamedTuple):
    """What a run came to; it has passed."""

    config: Config
    seed: int
    operations: int
    seen: Counter[str]
    """How often, or over how many units: admitted, refilled, evicted, read from the host, and what
    the store was asked for.  Zeros mean that a run has shown little."""

    def __str__(self) -> str:
        what = ", ".join(f"{name} {count}" for name, count in sorted(self.seen.items()))
        return f"{self.operations} operations (seed {self.seed}): {what}"


def check_store(
    make_store: MakeStore,
    *,
    config: Config = ONE_TIER,
    operations: int = 400,
    seed: int = 0,
    misuse: bool = True,
) -> Report:
    """Put a store under the project's own cache, use it, and check every named invariant.

    Deterministic: the same seed gives the same run.  `misuse=False` leaves out the calls that a
    store must refuse, for stores that trust their callers.  Raises `ConformanceError`.
    """
    return _check(make_store, Cache, config, operations, seed, misuse)


def check_cache(
    make_cache: MakeCache,
    *,
    config: Config = ONE_TIER,
    operations: int = 400,
    seed: int = 0,
) -> Report:
    """Use a cache of your own, which keeps a store in step with the core, on a symbolic store.

    The observer that it is given must be called as `penelope.runtime.cache.Cache` does, before a
    transition is committed.  Raises `ConformanceError`.
    """
    return _check(InspectableSymbolicStore, make_cache, config, operations, seed, misuse=False)


def _check(
    make_store: MakeStore,
    make_cache: MakeCache,
    config: Config,
    operations: int,
    seed: int,
    misuse: bool,
) -> Report:
    def fails(wanted: Sequence[Operation]) -> ConformanceError | None:
        try:
            _run(make_store, make_cache, config, wanted)
        except ConformanceError as error:
            return error
        return None

    sequence = drawn(seed, operations, misuse=misuse)
    try:
        seen = _run(make_store, make_cache, config, sequence)
    except ConformanceError as found:
        shortest = _shortest(sequence[: len(found.operations)], found.invariant, fails)
        least = fails(shortest) or found
        raise ConformanceError(
            least.invariant, least.seen, least.operations, seed
        ) from least.__cause__
    return Report(config, seed, operations, seen)


def _run(
    make_store: MakeStore, make_cache: MakeCache, config: Config, sequence: Sequence[Operation]
) -> Counter[str]:
    serving: Serving | None = None
    try:
        store = WatchedStore(make_store(config), config)
        serving = Serving(config, store, make_cache)
        for operation in sequence:
            serving.do(operation)
        serving.end()
    except ConformanceError as error:
        text = () if serving is None else serving.text
        raise ConformanceError(error.invariant, error.seen, text) from error.__cause__
    except Exception as error:
        if serving is not None:
            error.add_note(f"after: {'; '.join(serving.text)}")
        raise
    return serving.seen + store.calls


def _shortest(
    sequence: list[Operation],
    invariant: str,
    fails: Callable[[Sequence[Operation]], ConformanceError | None],
) -> list[Operation]:
    """Leave out as many operations as possible, then make their numbers small."""
    tries = _TRIES

    def still(wanted: list[Operation]) -> bool:
        nonlocal tries
        tries -= 1
        error = fails(wanted) if tries >= 0 else None
        return error is not None and error.invariant == invariant

    before: list[Operation] = []
    while sequence != before and tries > 0:
        before = sequence
        sequence = _smaller(_fewer(sequence, still), still)
    return sequence


def _fewer(sequence: list[Operation], still: Callable[[list[Operation]], bool]) -> list[Operation]:
    """Leave operations out, many at a time and then one by one."""
    chunk = len(sequence)
    while chunk:
        at = 0
        while at < len(sequence):
            shorter = sequence[:at] + sequence[at + chunk :]
            if still(shorter):
                sequence = shorter
            else:
                at += chunk
        chunk //= 2
    return sequence


def _smaller(
    sequence: list[Operation], still: Callable[[list[Operation]], bool]
) -> list[Operation]:
    """Make one number after another small."""
    for at, place in product(range(len(sequence)), range(3)):
        name, numbers = sequence[at]
        for small in sorted({0, 1, numbers[place] // 2}):
            if small >= numbers[place]:
                break
            changed = Operation(name, (*numbers[:place], small, *numbers[place + 1 :]))
            simpler = [*sequence[:at], changed, *sequence[at + 1 :]]
            if still(simpler):
                sequence = simpler
                break
    return sequence
