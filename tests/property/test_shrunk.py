"""Histories that once went wrong, shrunk: what random testing found stays found."""

from __future__ import annotations

import pytest

from penelope.policy import POLICIES, Config, Granularity, Position
from tests.property.naive import Units
from tests.property.twin import DEFAULT, Twin

HEAD = (Position.PRIVATE_HEAD, Granularity.BLOCK)
TAIL = (Position.TAIL, Granularity.BLOCK)


def grow(twin: Twin, *units: int) -> int:
    """A request that computes its whole history and keeps running; its receipt's number."""
    number = begin(twin)
    twin.checkpoint(number, units)
    return number


def begin(twin: Twin, *units: int) -> int:
    number = twin.model.issued
    twin.plan(DEFAULT, units)
    assert twin.admit(len(twin.asked) - 1)
    return number


def hold(twin: Twin, units: Units) -> int:
    number = twin.model.issued
    twin.look(DEFAULT, units)
    twin.acquire(len(twin.asked) - 1)
    return number


def test_a_head_is_cut_at_a_block_boundary_although_a_node_ends_before() -> None:
    twin = Twin(Config(16, block_size=4))
    twin.insert(DEFAULT, tuple(range(8)))
    # A sibling that has gone leaves the boundary at 3, and its use is not later than the other's.
    twin.insert(DEFAULT, (0, 1, 2, 9))
    twin.look(DEFAULT, tuple(range(8)), 8)
    twin.touch(0)
    twin.evict(1)
    twin.evict(2)
    assert twin.model.device() == 4


def test_a_tail_is_cut_at_a_block_boundary_although_its_node_begins_after() -> None:
    twin = Twin(Config(16, 1, 4, *TAIL))
    twin.insert(DEFAULT, tuple(range(3)))
    # A sibling keeps the boundary at 3 while it lives; after that nothing should remember it.
    twin.insert(DEFAULT, (0, 1, 2, 9))
    twin.insert(DEFAULT, tuple(range(8)))
    twin.evict(1)
    twin.evict(5)
    assert twin.model.device() == 0


def test_the_last_leaves_of_two_namespaces_go_in_one_eviction() -> None:
    twin = Twin(Config(12, 1, 1, Position.TAIL, Granularity.NODE))
    twin.insert(("a", None), (1,))
    twin.insert(("b", None), (2,))
    twin.evict(2)
    assert not twin.state.nodes
    assert not twin.state.roots


@pytest.mark.parametrize("start", [2, -4, 1, 9])
def test_an_offer_off_the_page_grid_is_refused(start: int) -> None:
    twin = Twin(Config(16, page_size=4, block_size=4))
    twin.insert(DEFAULT, tuple(range(8)))
    twin.evict(2)
    twin.insert(DEFAULT, tuple(range(8)), start)
    assert twin.seen["insert: NotAPrefix"] == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_negative_amounts_are_refused(policy: str) -> None:
    twin = Twin(Config(16, 4, 4, *POLICIES[policy]))
    twin.insert(DEFAULT, tuple(range(8)))
    held = hold(twin, tuple(range(8)))
    twin.reserve(held, -7)
    twin.evict(-1)
    assert twin.plan(DEFAULT, (1, 2), -100) is None
    assert twin.look(DEFAULT, (1, 2), -1) is None
    twin.refill(held, -4, 4)
    refusals = ("reserve: InvalidAmount", "evict: InvalidAmount", "plan: InvalidAmount")
    for refusal in (*refusals, "match: InvalidAmount", "refill: NotBeingRefilled"):
        assert twin.seen[refusal] == 1


def test_a_release_merges_the_whole_path_although_its_own_node_merges_away() -> None:
    twin = Twin(Config(36, 1, 4, *HEAD))
    hold(twin, ())
    twin.checkpoint(0, (1, 0, 0, 2))
    held = begin(twin, 1, 0, 0, 1, 0, 2)
    twin.insert(DEFAULT, (1, 0, 2, 2, 1, 2))
    more = begin(twin, 1, 0, 0, 2, 2)
    twin.checkpoint(more, (1, 0, 0, 2, *range(21)))
    twin.release(more)
    twin.reserve(held, 6)
    twin.release(held)
    assert twin.seen["Merge"] > 0


def test_an_eviction_merges_above_a_node_that_has_itself_been_merged() -> None:
    twin = Twin(Config(20, 1, 1, *HEAD))
    first, second = begin(twin), begin(twin)
    twin.checkpoint(second, (1, 0, 2, 2, 1))
    twin.release(grow(twin, 1, 0, 0, 1, 2))
    twin.checkpoint(first, (1, 0, 2, 2, 0))
    begin(twin, 1, 0, 2, 2, 1, 1)
    twin.release(first)
    begin(twin)
    twin.evict(4)
    assert twin.seen["Merge"] > 0


def test_merging_climbs_as_far_as_a_raised_stamp_allows() -> None:
    twin = Twin(Config(48, 2, 2, *TAIL))
    stem = (0, 1, 2, 2, 0, 2, 0, 2)
    twin.release(grow(twin, *stem, 1, 2))
    hold(twin, (*stem, 1, 2, 1))
    twin.release(grow(twin, *stem, 2, 2))
    twin.release(grow(twin, 0, 1, 0, 2))
    twin.insert(DEFAULT, (*stem, 1, 2, 1, 1))
    begin(twin)
    twin.evict(3)
    twin.evict(1)
    assert twin.seen["Merge"] > 0


def test_an_offer_of_nothing_that_ends_inside_a_hole_leaves_no_cut() -> None:
    twin = Twin(Config(36, 1, 3, *HEAD))
    twin.insert(DEFAULT, (1, 1, 0, 2))
    twin.evict(1)
    twin.insert(DEFAULT, (1,), 1)
    assert len(twin.state.nodes) == 3
