"""What each router does with what it knows."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from penelope.policy import pack
from penelope.policy.errors import InvalidConfigError
from penelope.runtime.replay.routers import (
    FAR_ABS,
    ROUTERS,
    Asked,
    Dynamo,
    LeastCost,
    PrefixAware,
    Replica,
    RoundRobin,
    SessionAffinity,
    block_names,
    router,
)
from tests.unit.replaying import TOY, UNIT, span

KEYS = st.lists(st.integers(0, 3), max_size=6)


def asked(units: list[int], session: int = 0) -> Asked:
    key = pack(units)
    return Asked(session, key, len(units) * UNIT, block_names(key))


def fleet(count: int) -> list[Replica]:
    return [Replica(number) for number in range(count)]


@given(KEYS, KEYS)
def test_a_block_is_named_by_all_that_comes_before_it(one: list[int], other: list[int]) -> None:
    names = block_names(pack(one)), block_names(pack(other))
    assert len(set(names[0])) == len(one), "the same unit again is another block"
    for at, (a, b) in enumerate(zip(*names, strict=False), 1):
        assert (a == b) == (one[:at] == other[:at])
    assert all(0 <= name < 1 << 63 for name in names[0])


def test_round_robin_goes_round_those_that_are_alive() -> None:
    by_turn, replicas = RoundRobin(), fleet(3)
    turns = [by_turn.route(asked([1]), replicas).replica.number for _ in range(4)]
    assert turns == [0, 1, 2, 0]
    left = [replicas[0], replicas[2]]
    assert [by_turn.route(asked([1]), left).replica.number for _ in range(3)] == [2, 0, 2]


def test_a_session_stays_where_the_idlest_was_and_moves_when_that_is_gone() -> None:
    affine, replicas = SessionAffinity(), fleet(3)
    replicas[0].open = 1
    assert affine.route(asked([1], 7), replicas).replica.number == 1
    assert affine.route(asked([1], 8), replicas).replica.number == 2, "as idle, and no session yet"
    replicas[1].open = 9
    assert affine.route(asked([1], 7), replicas).replica.number == 1
    assert affine.route(asked([1], 7), [replicas[0], replicas[2]]).replica.number == 2
    assert affine.route(asked([1], 7), replicas).replica.number == 2, "it does not go back"


def test_the_longest_prefix_if_it_is_more_than_half_and_the_loads_are_in_balance() -> None:
    aware, replicas = PrefixAware(3), fleet(3)
    question = asked([1, 2, 3, 4])
    aware.stored(1, question.blocks[:2], None)
    assert aware.route(question, replicas).replica.number == 0, "half is not more than half"
    aware.stored(1, question.blocks[2:3], question.blocks[1])
    found = aware.route(question, replicas)
    assert (found.replica.number, found.tokens) == (1, UNIT)
    # What comes behind a gap does not count.
    aware.stored(2, question.blocks[:1], None)
    aware.stored(2, question.blocks[2:], question.blocks[1])
    assert aware.route(question, replicas).replica.number == 1
    replicas[1].open = FAR_ABS
    assert aware.route(question, replicas).replica.number == 1
    replicas[1].open += 1
    assert aware.route(question, replicas).replica.number == 0
    replicas[1].open = 0
    aware.removed(1, question.blocks[:1])
    assert aware.route(question, replicas).replica.number == 0
    aware.stored(1, question.blocks, None)
    aware.cleared(1)
    assert aware.route(question, replicas).replica.number == 0


def test_the_least_cost_counts_positions_and_the_queue() -> None:
    least, replicas = LeastCost(2, TOY, UNIT), fleet(2)
    question = asked([1, 2, 3, 4])
    least.stored(0, question.blocks[:3], None)
    # As many blocks, and the cheap one is missing.
    least.stored(1, question.blocks[1:], None)
    found = least.route(question, replicas)
    last = span(39, 40)
    assert (found.replica.number, found.tokens) == (1, UNIT + 1)
    assert found.cost == span(0, 10) + last
    replicas[1].queued_cost = span(30, 40) - found.cost
    assert least.route(question, replicas).replica.number == 0, "of equals the first"
    replicas[1].queued_cost -= 1
    assert least.route(question, replicas).replica.number == 1
    assert least.route(question, replicas).cost == found.cost, "without what waits there"


class Tree:
    """In the place of Dynamo's index."""

    def __init__(self, scores: dict[tuple[int, int], int]) -> None:
        self.scores = scores
        self.events: list[tuple[int, Any]] = []

    def apply_event(self, worker: int, event: bytes) -> None:
        self.events.append((worker, json.loads(event)["data"]))
        if "removed" in self.events[-1][1]:
            raise RuntimeError("Failed to find block")

    def find_matches(self, hashes: list[int]) -> Any:
        del hashes
        return SimpleNamespace(scores=self.scores)


def test_dynamos_selector_adds_what_is_computed_and_what_is_in_use() -> None:
    tree = Tree({(1, 0): 3})
    chosen, replicas = Dynamo(UNIT, tree), fleet(2)
    question = asked([1, 2, 3, 4])
    found = chosen.route(question, replicas)
    assert (found.replica.number, found.tokens) == (1, UNIT)
    replicas[1].running_tokens = 3 * UNIT
    assert chosen.route(question, replicas).replica.number == 0
    replicas[0].queued_tokens = 1
    assert chosen.route(question, replicas).replica.number == 1
    chosen.stored(1, [5, 6], 4)
    chosen.removed(1, [6])
    chosen.cleared(0)
    named = [{"block_hash": b, "tokens_hash": b} for b in (5, 6)]
    assert tree.events == [
        (1, {"stored": {"parent_hash": 4, "blocks": named}}),
        (1, {"removed": {"block_hashes": [6]}}),
        (0, "cleared"),
    ]


def test_a_router_is_made_by_its_name() -> None:
    assert isinstance(router("cost", 2, TOY, UNIT), LeastCost)
    with pytest.raises(InvalidConfigError, match=f"choose from {', '.join(ROUTERS)}"):
        router("best", 2, TOY, UNIT)
