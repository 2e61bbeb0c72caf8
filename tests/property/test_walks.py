"""Long seeded walks of the same moves as the machine's: more steps, and states that lie deeper."""

from __future__ import annotations

import random
from collections import Counter
from typing import Final

import pytest
from hypothesis import settings

from penelope.policy import POLICIES, Config
from tests.property import moves
from tests.property.moves import Moves
from tests.property.twin import Twin

STEPS: Final = {"mutation": 900, "fast": 3_000, "find": 6_000, "default": 25_000, "deep": 100_000}
LENGTH: Final = 150
"""Of one walk; what comes later is much like what came before."""

WITNESSES: Final = frozenset(
    {
        "hole",
        "fork",
        "awaits",
        "two holes in a plan",
        "two holes on a history",
        "evict over several histories",
        # Every effect, every stop of the walk-back, every refusal by every transition.
        *("Split", "Merge", "Free", "Adopt", "Surplus", "Remove", "Reset"),
        *("stop ROOT", "stop SHARED", "stop LOCKED", "stop HOLE", "stop NODE"),
        *("touch: StalePlan", "acquire: StalePlan", "admit: StalePlan"),
        *("admit: InsufficientSpace", "reserve: InsufficientSpace", "evict: InsufficientSpace"),
        *("insert: OverCapacity", "checkpoint: OverCapacity", "refill: UnknownReceipt"),
        *("insert: NotAPrefix", "checkpoint: NotAPrefix", "refill: NotBeingRefilled"),
        *("release: UnknownReceipt", "checkpoint: UnknownReceipt", "refill: UnknownReceipt"),
        *("reserve: UnknownReceipt", "reset: InUse", "plan: RequestTooLarge"),
        *("evict: InvalidAmount", "reserve: InvalidAmount", "plan: InvalidAmount"),
        "match: InvalidAmount",
    }
)
"""What the moves must reach: with any of these out of reach a test of it would say nothing."""


def walk(seed: int, steps: int, seen: Counter[str], config: Config | None = None) -> None:
    rng = random.Random(seed)

    def pick(most: int) -> int:
        return rng.randint(0, most)

    twin = Twin(config or moves.config(pick), seen)
    step = Moves(twin, pick)
    try:
        for _ in range(steps):
            getattr(step, moves.NAMES[pick(len(moves.NAMES) - 1)])()
        twin.finish()
    except Exception as error:
        error.add_note(
            f"seed {seed}; the history so far, as a program:\n" + "\n".join(twin.program)
        )
        raise


def test_core_and_model_agree_on_long_walks() -> None:
    steps, seen = STEPS[settings.get_current_profile_name()], Counter[str]()
    for seed in range(steps // LENGTH):
        walk(seed, LENGTH, seen)
    for seed in range(steps // LENGTH, steps // LENGTH + 1):
        walk(seed, steps % LENGTH, seen)


@pytest.mark.parametrize("name", POLICIES)
def test_core_and_model_agree_under_each_named_policy(name: str) -> None:
    position, granularity = POLICIES[name]
    for page in (1, 2):
        config = Config(24 * page, page, 2 * page, position, granularity)
        for seed in range(3):
            walk(seed, LENGTH, Counter(), config)


@pytest.mark.slow
def test_the_walks_reach_every_witness() -> None:
    seen = Counter[str]()
    for seed in range(10_000, 10_400):
        walk(seed, LENGTH, seen)
        if all(seen[name] for name in WITNESSES):
            break
    assert {name for name in WITNESSES if not seen[name]} == set()
