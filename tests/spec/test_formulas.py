"""What the prover reads and what monitors run say the same of good and of corrupted states."""

from __future__ import annotations

import pytest

from penelope.policy import State
from penelope_spec import INVARIANTS
from penelope_spec.abstraction import finite, picture
from penelope_spec.logic import View
from tests.spec.test_states import CORRUPTIONS, good
from tests.spec.test_tiers import TIER_CORRUPTIONS, moving
from tests.spec.tiered import Tiered, tiered_configs
from tests.spec.worlds import World, configs


def _agree(name: str) -> list[tuple[bool, list[str]]]:
    """What the formula and the predicate say of good, random and corrupted states."""
    formula, predicate = INVARIANTS[name].formula, INVARIANTS[name].on_state
    assert formula is not None
    assert predicate is not None
    verdicts = []
    corrupted = [corrupt(good()) for corrupt in CORRUPTIONS]
    corrupted += [corrupt(moving()) for corrupt in TIER_CORRUPTIONS]
    for state in [good(), moving(), *corrupted, *_random_states()]:
        world = finite({"before": picture(state)})
        verdicts.append((formula(world, View(world, "before")), predicate(state)))
    assert {holds for holds, _ in verdicts} == {True, False}, "one side only is no agreement"
    return verdicts


@pytest.mark.parametrize("name", ["lock-balance", "no-dangling-hole"])
def test_formula_and_predicate_agree(name: str) -> None:
    for holds, wrong in _agree(name):
        assert holds == (wrong == []), wrong


# What is wrong with a move that only its numbers show: no relation has them.
NUMBERS = ("does not end in node", "never began", "is marked on nodes")


def test_formula_and_predicate_agree_on_what_is_in_flight() -> None:
    """The formula speaks of moves by their locks and tiers, which other predicates check."""
    others = zip(_agree("lock-balance"), _agree("one-copy"), strict=True)
    for (holds, wrong), ((_, locks), (_, tiers)) in zip(_agree("in-flight"), others, strict=True):
        assert holds or wrong or locks or tiers
        assert not holds or all(any(text in one for text in NUMBERS) for one in wrong), wrong


def test_where_a_formula_of_the_shape_fails_a_predicate_fails() -> None:
    """The predicates also check how a state is stored: edges and keys, which no relation has."""
    shapes = zip(_agree("well-formed"), _agree("one-copy"), strict=True)
    for (well_formed, misshapen), (one_copy, doubled) in shapes:
        assert one_copy or doubled
        assert well_formed or misshapen or doubled


def test_where_stamps_are_on_one_path_no_victims_share_one() -> None:
    """The formula of `victim-order` is what moves keep; unique stamps of victims follow from it."""
    for holds, wrong in _agree("victim-order"):
        assert not (holds and any("share stamp" in text for text in wrong))
    formula = INVARIANTS["victim-order"].formula
    assert formula is not None
    for state in (good(), moving()):
        world = finite({"before": picture(state)})
        assert formula(world, View(world, "before"))


def test_every_formula_is_compared_with_its_predicate() -> None:
    compared = {"lock-balance", "in-flight", "no-dangling-hole", "well-formed", "one-copy"}
    assert {i.name for i in INVARIANTS.values() if i.formula} == compared | {"victim-order"}


def _random_states() -> list[State]:
    states: list[State] = []
    for seed, config in enumerate([*list(configs())[:8], *list(tiered_configs())[:8]]):
        world = Tiered(config, seed) if config.host_capacity else World(config, seed)
        states += [done.after for done in world.run(25) if len(done.after.nodes) < 7]
    return states[:: max(1, len(states) // 15)]
