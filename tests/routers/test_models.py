"""The indexes of four routers, as models: scores against truth after every operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from penelope.policy import pack
from penelope.runtime.announcing import Announce
from tests.routers import feeding
from tests.routers.dynamo_tree import DynamoTree
from tests.routers.feeding import SCORES, SMALL, delivered, recorded, scores_of_a_hole
from tests.routers.fleet import Fleet, Listener
from tests.routers.indexes import AibrixTable, Event, GatewayEvents, Index, LlmdScorer
from tests.routers.measured import OurIndex


def leading(spans: list[tuple[int, int]]) -> int:
    return spans[0][1] if spans and spans[0][0] == 0 else 0


def held(spans: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)


def reach(spans: list[tuple[int, int]]) -> int:
    return spans[-1][1] if spans else 0


def exactly(score: int, spans: list[tuple[int, int]]) -> bool:
    return score == leading(spans)


def at_most(score: int, spans: list[tuple[int, int]]) -> bool:
    return score <= leading(spans)


def at_least(score: int, spans: list[tuple[int, int]]) -> bool:
    return score >= leading(spans)


def to_the_last_block(score: int, spans: list[tuple[int, int]]) -> bool:
    """A history counts as far as anything of it is there, and not at all where nothing is behind.

    A request may end inside a hole, with the KV that is announced behind its own end.
    """
    return score >= reach(spans)


def all_of_it(score: int, spans: list[tuple[int, int]]) -> bool:
    return score == held(spans)


def jump_of_8() -> Index:
    return GatewayEvents(jump=8)


def ours() -> Index:
    return OurIndex(SMALL.replicas)


Rule = Callable[[int, list[tuple[int, int]]], bool]


@pytest.mark.parametrize(
    ("make", "mode", "rule"),
    [
        (DynamoTree, Announce.STICKY, to_the_last_block),
        (DynamoTree, Announce.PREFIX, exactly),
        (DynamoTree, Announce.EXACT, at_most),
        (jump_of_8, Announce.STICKY, to_the_last_block),
        (jump_of_8, Announce.PREFIX, exactly),
        (jump_of_8, Announce.EXACT, at_least),
        (LlmdScorer, Announce.STICKY, to_the_last_block),
        (LlmdScorer, Announce.PREFIX, exactly),
        (LlmdScorer, Announce.EXACT, exactly),
        (ours, Announce.STICKY, to_the_last_block),
        (ours, Announce.PREFIX, exactly),
        (ours, Announce.EXACT, all_of_it),
    ],
)
def test_scores_are_what_the_mode_promises_after_every_operation(
    make: Callable[[], Index], mode: Announce, rule: Rule
) -> None:
    compared: Counter[str] = Counter()
    for seed in range(3):
        index = make()
        fleet = Fleet(seed, SMALL, [Listener(mode, index)])
        lately: list[list[int]] = []
        fleet.after = _comparing(fleet, index, lately, rule, compared)
        for units in fleet.requests(60):
            lately += [units]
        assert index.refused == 0 or mode is Announce.EXACT
    assert (compared["scores"] > 2_000, compared["holes"] > 100) == (True, True)


def _comparing(
    fleet: Fleet, index: Index, lately: list[list[int]], rule: Rule, compared: Counter[str]
) -> Callable[[int], None]:
    def compare(replica: int) -> None:
        for units in lately[-28::4]:
            scores = index.scores(fleet.blocks.of(pack(units)))
            for other in range(SMALL.replicas):
                spans = fleet.resident(other, units)
                compared["holes"] += held(spans) > leading(spans)
                assert rule(scores.get(other, 0), spans), (other, units, spans, scores)
                compared["scores"] += 1

    return compare


def test_aibrix_forgets_a_block_everywhere_when_one_replica_drops_it() -> None:
    """So no mode makes its scores right; what it counts too low is measured in the table."""
    index = AibrixTable()
    for replica in (0, 1):
        index.apply(Event(replica, True, (1, 2, 3), None))
    assert index.scores([1, 2, 3, 4]) == {0: 3, 1: 3}
    index.apply(Event(0, False, (3, 2), 1))
    assert index.scores([1, 2, 3]) == {0: 1, 1: 1}
    index.apply(Event(1, True, (5,), 2))  # its parent is not known any more
    assert (index.scores([1, 2, 5]), index.refused) == ({0: 1, 1: 1}, 1)
    index.apply(Event(0, True, (2, 3), 1))
    assert index.scores([1, 2, 3]) == {0: 3, 1: 1}


def test_the_gateway_s_jump_counts_a_hole_that_it_does_not_look_at() -> None:
    index = GatewayEvents(jump=4)
    index.apply(Event(0, True, tuple(range(9)), None))
    index.apply(Event(0, False, (2,), 1))
    assert index.scores(range(9)) == {0: 9}
    assert index.scores(range(4)) == {0: 4}
    assert index.scores(range(3)) == {0: 2}


@pytest.mark.parametrize("mode", Announce)
def test_dynamo_s_rule_finds_104_of_104_after_hole_and_refill_where_events_are_closed(
    mode: Announce,
) -> None:
    assert scores_of_a_hole(DynamoTree(), mode) == SCORES[mode]


@pytest.mark.parametrize("mode", [Announce.STICKY, Announce.PREFIX])
@pytest.mark.parametrize("make", [DynamoTree, LlmdScorer], ids=["dynamo", "llm-d"])
def test_lost_events_err_to_the_side_that_one_expects_and_repeated_ones_do_nothing(
    make: Callable[[], Index], mode: Announce
) -> None:
    worse = {"lost_removes": 0, "lost_stores": 0}
    for seed in range(4):
        events, asked = recorded(seed, mode)
        whole = delivered(make(), events)
        twice = delivered(make(), feeding.repeated(Random(seed), events))
        more = delivered(make(), feeding.lost_removes(Random(seed), events))
        fewer = delivered(make(), feeding.lost_stores(Random(seed), events))
        for request in asked:
            scores = whole.scores(request)
            assert twice.scores(request) == scores
            for replica in range(SMALL.replicas):
                due = scores.get(replica, 0)
                over, under = (one.scores(request).get(replica, 0) for one in (more, fewer))
                assert under <= due <= over
                worse["lost_removes"] += over > due
                worse["lost_stores"] += under < due
    assert min(worse.values()) > 10, worse
