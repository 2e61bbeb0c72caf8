"""Legality does not know the order: whoever chooses the victim, nothing illegal happens."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penelope.policy import (
    Config,
    NodeId,
    Order,
    Receipt,
    State,
    admit,
    checkpoint,
    empty,
    evict,
    eviction,
    match,
    pack,
    plan,
    release,
    retire,
)
from penelope.policy.order import Books
from penelope_spec import check_state, check_step
from tests.property.tiers import drawn_config

ORDER = {"order-followed", "unified-order"}
"""What is said of the choice itself, or of the same choice made again."""


class Life:
    """A cache in use of which every victim is drawn."""

    def __init__(self, random: Random, config: Config) -> None:
        self.random, self.state = random, empty(config)
        self.running: list[Receipt] = []
        self.histories: list[list[int]] = [[]]
        self.seen: Counter[str] = Counter()

    def first_victim(self, books: Books) -> NodeId:
        leaves = [leaf for _, leaf in books.victims.in_order()]
        chosen = self.random.choice(leaves)
        self.seen["chosen"] += 1
        self.seen["not the first"] += chosen != leaves[0]
        return chosen

    def share(self, books: Books, leaf: NodeId, need: int) -> int:
        return self.random.randint(1, need)

    def step(self) -> None:
        random, state = self.random, self.state
        acts = ("release",) if len(self.running) > 2 else ("admit", "evict", "release", "retire")
        act = random.choice(acts)
        base = random.choice(([], *self.histories[-6:]))
        units = [*base, *random.choices(range(4), k=random.choice((1, 2, 4)))]
        units = units[: state.config.device_capacity]
        if act == "admit":
            planned = plan(state, pack(units))
            if planned.admissible:
                done = admit(state, planned)
                self.took(done.state, "admit", plan=planned, effects=done.effects, freed=done.freed)
                grown = checkpoint(self.state, done.receipt, pack(units))
                self.took(grown.state, "checkpoint", effects=grown.effects)
                self.histories.append(units)
                self.running.append(done.receipt)
        elif act == "evict" and state.evictable:
            need = random.randint(1, min(4, state.evictable))
            gone = evict(state, need)
            self.took(gone.state, "evict", need=need, effects=gone.effects, freed=gone.freed)
        elif act == "release" and self.running:
            ended = release(state, self.running.pop(0))
            self.took(ended.state, "release", effects=ended.effects)
        elif act == "retire":
            over = retire(state, match(state, pack(units), at_most=len(units)))
            self.took(over.state, "retire", effects=over.effects)

    def took(self, after: State, name: str, **facts: object) -> None:
        found = check_step(self.state, after, name, **facts)  # type: ignore[arg-type]
        assert [v for v in found if v.invariant not in ORDER] == []
        assert check_state(after) == []
        self.state = after
        self.seen[name] += 1


def live(random: Random, steps: int, order: Order) -> Counter[str]:
    names = ("penelope",) if order is not Order.LRU else ("penelope", "tail-block", "sglang-lru")
    drawn = drawn_config(random, names)
    config = Config(
        drawn.device_capacity,
        drawn.page_size,
        drawn.block_size,
        drawn.position,
        drawn.granularity,
        drawn.sticky_shared,
        order=order,
    )
    life = Life(random, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eviction, "first_victim", life.first_victim)
        patch.setattr(eviction, "share", life.share)
        for _ in range(steps):
            life.step()
    return life.seen


@given(st.integers(0, 2**32), st.sampled_from(Order), st.integers(5, 30))
def test_whatever_the_order_no_step_is_illegal(seed: int, order: Order, steps: int) -> None:
    live(Random(seed), steps, order)


def test_other_victims_are_chosen_than_the_first() -> None:
    """The property above is about something."""
    seen = Counter[str]()
    for seed in range(8):
        for order in Order:
            seen += live(Random(seed), 80, order)
    assert seen["not the first"] > 50, seen
    assert min(seen[name] for name in ("admit", "evict", "release", "retire")) > 50, seen
