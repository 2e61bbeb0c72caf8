"""Node boundaries must not matter to block-granular policies.

States from random walks are cut into one-page or one-block nodes and taken through the same
operations: every number, every page that loses KV and every page that is left must be the same.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penelope.policy import (
    Admitted,
    Config,
    Effect,
    Evicted,
    Free,
    Granularity,
    Inserted,
    Match,
    Namespace,
    Position,
    Receipt,
    Refilled,
    Refused,
    Split,
    State,
    Step,
    admit,
    checkpoint,
    evict,
    match,
    plan,
    refill,
    release,
)
from penelope_spec import check_state
from tests.property import moves
from tests.property.moves import Moves
from tests.property.naive import Where
from tests.property.reading import key_of, pages_of, path_of, victims_of
from tests.property.shatter import shatter
from tests.property.twin import Twin

Result = Step | Admitted | Evicted | Inserted | Refilled
# Each example compares some ten evictions: fewer of them are enough.
SOME: Final = settings(max_examples=settings().max_examples // 6)
HEAD: Final = Position.PRIVATE_HEAD
NUMBERS: Final = ("length", "end", "device_prefix", "device", "host", "hole", "arriving", "compute")


def grown(seed: int, position: Position, *, sticky: bool = False, steps: int = 40) -> Twin:
    """A cache after a random walk."""
    rng = random.Random(seed)
    page, pages, blocks = rng.choice((1, 2)), rng.choice((16, 30)), rng.choice((2, 3, 4))
    config = Config(
        pages * page, page, blocks * page, position, Granularity.BLOCK, sticky_shared=sticky
    )
    twin = Twin(config)
    step = Moves(twin, lambda most: rng.randint(0, most))
    for _ in range(steps):
        getattr(step, rng.choice(moves.NAMES))()
    return twin


def freed_pages(state: State, effects: tuple[Effect, ...]) -> list[Where]:
    """The pages that lost KV, in order.  Nodes that the step made are read off its splits."""
    before, size = pages_of(state), state.config.page_size
    order: list[Where] = []
    keys = {node: path_of(state, node) for node in state.nodes}
    for effect in effects:
        if isinstance(effect, Split):
            space, path = keys[effect.node]
            keys[effect.upper] = space, path[: effect.at]
        if isinstance(effect, Free):
            space, path = keys[effect.node]
            ends = list(range(effect.start + size, effect.end + 1, size))
            if state.config.position is Position.TAIL:
                ends.reverse()
            order += [(space, path[:end]) for end in ends]
    assert all(before[where].kv for where in order)
    return order


@pytest.mark.parametrize("grain", ["page", "block"])
@pytest.mark.parametrize("position", [HEAD, Position.TAIL])
@SOME
@given(seed=st.integers(0, 2**32), sticky=st.booleans())
def test_no_eviction_depends_on_where_nodes_end(
    grain: str, position: Position, seed: int, sticky: bool
) -> None:
    state = grown(seed, position, sticky=sticky).state
    pieces = shatter(state, getattr(state.config, f"{grain}_size"))
    assert [v for v in check_state(pieces) if v.invariant != "merged"] == []
    assert pages_of(pieces) == pages_of(state)
    for need in range(state.evictable + 1):
        whole, cut = evict(state, need), evict(pieces, need)
        assert whole.freed == cut.freed
        lost = freed_pages(state, whole.effects)
        assert lost == freed_pages(pieces, cut.effects)
        assert len(lost) * state.config.page_size == whole.freed
        assert pages_of(whole.state) == pages_of(cut.state)
        assert victims_of(whole.state) == victims_of(cut.state)


@pytest.mark.parametrize("position", [HEAD, Position.TAIL])
@SOME
@given(seed=st.integers(0, 2**32))
def test_no_later_decision_depends_on_where_nodes_ended(position: Position, seed: int) -> None:
    """The shattered cache lives on beside the whole one, through requests and evictions."""
    state = grown(seed, position).state
    pieces = shatter(state, state.config.page_size)
    rng = random.Random(seed)
    for _ in range(12):
        state, pieces = same_step(rng, state, pieces)
        assert pages_of(state) == pages_of(pieces)
        assert victims_of(state) == victims_of(pieces)
        assert state.totals == pieces.totals


def same_step(rng: random.Random, whole: State, cut: State) -> tuple[State, State]:
    """One random operation on both; what they answer must be the same."""
    live = sorted(whole.leases)
    if live and rng.random() < 0.4:
        receipt = Receipt(rng.choice(live))
        _, path = path_of(whole, whole.leases[receipt.id].node)
        kind = rng.choice(("release", "checkpoint", "refill"))
        if kind == "release":
            return release(whole, receipt).state, release(cut, receipt).state
        if kind == "refill":
            start = rng.randrange(0, len(path) + 1)
            return both(whole, cut, lambda s: refill(s, receipt, start, len(path)))
        key = key_of((*path, rng.randint(0, 2)), whole.config.unit_bytes)
        return both(whole, cut, lambda s: checkpoint(s, receipt, key))
    if rng.random() < 0.3:
        need = rng.randint(0, whole.evictable)
        return both(whole, cut, lambda s: evict(s, need))
    known = sorted(pages_of(whole), key=str)
    space, base = rng.choice(known) if known else ((None, None), ())
    units = (*base, *(rng.randint(0, 2) for _ in range(rng.randint(0, 4))))
    key = key_of(units, whole.config.unit_bytes)
    found = [match(s, key, Namespace(*space)) for s in (whole, cut)]
    assert numbers(found[0]) == numbers(found[1])
    return both(whole, cut, lambda s: admit(s, plan(s, key, Namespace(*space))))


def numbers(found: Match) -> Counter[str]:
    return Counter({name: getattr(found, name) for name in NUMBERS})


def both(whole: State, cut: State, step: Callable[[State], Result]) -> tuple[State, State]:
    """The same on both: the same answer and the same pages lost, or the same refusal."""
    answers: list[object] = []
    states: list[State] = []
    for state in (whole, cut):
        try:
            result = step(state)
        except Refused as refusal:
            answers.append(type(refusal))
            states.append(state)
        else:
            answers.append((result[2:], freed_pages(state, result.effects)))
            states.append(result.state)
    assert answers[0] == answers[1]
    return states[0], states[1]
