"""The queue and the indexes of the orders: silent on good states, named on corrupted ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penelope.policy import (
    POLICIES,
    Config,
    Order,
    State,
    empty,
    insert,
    line_up,
    match,
    pack,
    retire,
)
from penelope_spec import check_state

ONE, OTHER, ENDED = [1] * 8, [2] * 8, [3] * 8


def good() -> State:
    """Three histories under the expected cost: one idle, one waited for, one retired."""
    config = Config(32, 1, 2, *POLICIES["penelope"], order=Order.EXPECTED_COST, linear_cost=4)
    state = empty(config)
    for units in (ONE, OTHER, ENDED):
        state = insert(state, pack(units)).state
    state = line_up(state, [match(state, pack([*OTHER, 9]))]).state
    return retire(state, match(state, pack(ENDED), at_most=8)).state


def ticket_that_was_never_given(state: State) -> State:
    return replace(state, waiting=state.waiting._replace(next_ticket=0))


def place_that_no_node_lists(state: State) -> State:
    (node,) = state.waiting.at
    return replace(state, waiting=state.waiting._replace(at=state.waiting.at.delete(node)))


def retired_and_not_first(state: State) -> State:
    ((tick, _),) = state.retired.in_order()
    return replace(state, retired=state.retired.remove(tick))


def victim_that_is_not_filed(state: State) -> State:
    leaf = min(state.ranking.filed)
    filed = state.ranking.filed.delete(leaf)
    return replace(state, ranking=state.ranking._replace(filed=filed))


def filed_at_another_cost(state: State) -> State:
    leaf = min(state.ranking.filed)
    wrong = state.ranking.filed[leaf]._replace(cost=64)
    filed = state.ranking.filed.set(leaf, wrong)
    return replace(state, ranking=state.ranking._replace(filed=filed))


def class_that_lists_nobody(state: State) -> State:
    return replace(state, ranking=state.ranking._replace(idle=empty(state.config).ranking.idle))


CORRUPTIONS: dict[Callable[[State], State], set[str]] = {
    place_that_no_node_lists: {"queue-kept"},
    ticket_that_was_never_given: {"queue-kept"},
    retired_and_not_first: {"ranking-kept"},
    victim_that_is_not_filed: {"ranking-kept"},
    filed_at_another_cost: {"ranking-kept"},
    class_that_lists_nobody: {"ranking-kept"},
}


def test_a_good_state_has_no_violation() -> None:
    state = good()
    assert check_state(state) == []
    assert (state.retired.size, len(state.waiting.order), len(state.ranking.filed)) == (1, 1, 3)


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda corrupt: corrupt.__name__)
def test_a_corrupted_state_is_named(corrupt: Callable[[State], State]) -> None:
    found = check_state(corrupt(good()))
    assert {violation.invariant for violation in found} == CORRUPTIONS[corrupt], found
