"""`penelope.routing`: the least cost wins, and the index says who holds what."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penelope.cost import CostModel, preset
from penelope.routing import (
    Candidate,
    FleetIndex,
    RoutingError,
    candidates,
    choose,
    missing,
    quote,
)

MODEL = preset("qwen3-8b")
TINY = CostModel("tiny", Fraction(1, 2), 1, 1, 1)
LENGTH = 24


@st.composite
def spans(draw: st.DrawFn) -> list[tuple[int, int]]:
    cuts = sorted(draw(st.sets(st.integers(0, LENGTH), max_size=8)))
    cuts = cuts[: len(cuts) // 2 * 2]
    return list(zip(cuts[::2], cuts[1::2], strict=True))


@given(spans())
def test_what_is_missing_is_what_is_in_no_span_and_the_last_token(
    held: list[tuple[int, int]],
) -> None:
    there = {at for start, end in held for at in range(start, end)} - {LENGTH - 1}
    gone = missing(held, LENGTH)
    assert [at for start, end in gone for at in range(start, end)] == [
        at for at in range(LENGTH) if at not in there
    ]
    assert all(start < end for start, end in gone)


@given(st.lists(st.tuples(spans(), st.integers(0, 50)), min_size=1, max_size=4))
def test_the_cheapest_is_chosen_whatever_the_order(
    fleet: list[tuple[list[tuple[int, int]], int]],
) -> None:
    among = [Candidate("abcd"[at], held, queued) for at, (held, queued) in enumerate(fleet)]
    costs = {}
    for one in among:
        there = {at for start, end in one.spans for at in range(start, end)} - {LENGTH - 1}
        computed = [at for at in range(LENGTH) if at not in there]
        costs[one.name] = one.queued + sum(int(TINY.token(at) * TINY.scale) for at in computed)
        assert quote(TINY, LENGTH, one).cost == costs[one.name]
    best = min(costs, key=lambda name: (costs[name], name))
    for order in permutations(among):
        found = choose(TINY, LENGTH, order)
        assert (found.name, found.cost) == (best, costs[best])


def test_a_missing_head_is_cheaper_than_a_missing_tail() -> None:
    head = Candidate("lacks the head", [(8_000, 40_000)])
    tail = Candidate("lacks less of the tail", [(0, 34_000)])
    assert choose(MODEL, 40_001, [head, tail]).name == "lacks the head"
    busy = head._replace(queued=quote(MODEL, 40_001, tail).cost)
    assert choose(MODEL, 40_001, [busy, tail]).name == "lacks less of the tail"


@pytest.mark.parametrize(
    ("held", "length", "says"),
    [
        ([(0, 4), (2, 6)], 8, "span [2, 6) does not follow 4"),
        ([(4, 6), (0, 2)], 8, "span [0, 2) does not follow 6"),
        ([(3, 3)], 8, "span [3, 3)"),
        ([(-1, 3)], 8, "span [-1, 3)"),
        ([(0, 9)], 8, "inside a request of 8 tokens"),
        ([], 0, "the request has 0 tokens"),
    ],
)
def test_spans_that_are_none_are_refused(
    held: list[tuple[int, int]], length: int, says: str
) -> None:
    with pytest.raises(RoutingError) as found:
        missing(held, length)
    assert says in str(found.value)


def test_what_cannot_be_chosen_from_is_refused() -> None:
    for call, says in (
        (lambda: choose(MODEL, 8, []), "no replica"),
        (lambda: choose(MODEL, 8, [Candidate("a", [])] * 2), "one name"),
        (lambda: choose(MODEL, 8, [Candidate("a", [], -1)]), "queue of 'a' is -1"),
        (lambda: candidates({}, ["a"], block=0), "0 tokens"),
        (lambda: FleetIndex(most_blocks=0), "holds nothing"),
        (lambda: FleetIndex().stored("a", [1]), "'a' is not known"),
    ):
        with pytest.raises(RoutingError) as found:
            call()
        assert says in str(found.value)


NAMES = ("a", "b", "c")
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["stored", "removed", "removed", "cleared"]),
        st.sampled_from(NAMES),
        st.lists(st.integers(0, 9), max_size=6),
    ),
    max_size=30,
)


@given(EVENTS)
def test_the_index_holds_what_a_set_for_each_replica_would(
    events: list[tuple[str, str, list[int]]],
) -> None:
    index, sets = FleetIndex(NAMES), {name: set[int]() for name in NAMES}
    for kind, name, blocks in events:
        if kind == "cleared":
            index.cleared(name)
            sets[name].clear()
        elif kind == "stored":
            index.stored(name, blocks)
            sets[name].update(blocks)
        else:
            index.removed(name, blocks)
            sets[name].difference_update(blocks)
        held = index.held(range(10))
        for other in NAMES:
            inside = [at for start, end in held.get(other, []) for at in range(start, end)]
            assert inside == sorted(sets[other])
        assert all(before[1] < after[0] for one in held.values() for before, after in pairwise(one))
        assert len(index) == len(set().union(*sets.values()))


def test_the_index_is_bounded_and_says_too_little_rather_than_too_much() -> None:
    index = FleetIndex(["a", "b"], most_blocks=3)
    index.stored("a", [1, 2, 3, 4])
    index.stored("b", [3, 4])
    assert (len(index), index.dropped) == (3, 2)
    assert index.held([1, 2, 3, 4]) == {"a": [(0, 3)], "b": [(2, 3)]}
    index.removed("a", [1, 4])
    index.stored("a", [4])
    assert index.held([1, 2, 3, 4]) == {"a": [(1, 4)], "b": [(2, 3)]}


def test_candidates_are_in_tokens() -> None:
    found = candidates({"a": [(1, 3)]}, ["a", "b"], block=64, queued={"b": 7})
    assert found == [Candidate("a", [(64, 192)]), Candidate("b", [], 7)]
