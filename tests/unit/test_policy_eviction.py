"""Which history loses KV and where: what is easy to get wrong, as examples."""

from __future__ import annotations

import pytest

from penelope.policy import (
    POLICIES,
    InsufficientSpace,
    Stop,
    private_span,
)
from tests.cases.scene import Scene, freed


def stop_of(s: Scene) -> tuple[int, Stop]:
    """Where the private span of the first victim begins, and why there."""
    leaf = s.state.victims.first()
    assert leaf is not None
    span, reason = private_span(s.state.config, s.state.nodes, leaf)
    return s.state.nodes[span[0]].start, reason


# --- the victim -----------------------------------------------------------------------------------


def test_a_victim_is_an_unlocked_leaf_and_the_least_recently_used_goes_first() -> None:
    s = Scene(block=1)
    s.insert("old")
    s.insert("new")
    s.evict(1)
    assert (s.show("old"), s.show("new")) == ("_GG", "GGG")
    s.touch("old")
    s.evict(1)
    assert (s.show("old"), s.show("new")) == ("_GG", "_GG")


def test_a_locked_history_is_passed_over() -> None:
    s = Scene(block=1)
    s.insert("old")
    s.insert("new")
    s.lock("old")
    s.evict(3)
    assert (s.show("old"), s.show("new")) == ("GGG", "...")


def test_what_lies_below_a_lock_may_go() -> None:
    s = Scene(block=1)
    s.insert("abcdef")
    s.lock("abc")
    s.evict(3)
    assert s.show("abcdef") == "GGG..."


# --- where the walk stops -------------------------------------------------------------------------


def test_the_walk_stops_below_the_root() -> None:
    s = Scene()
    s.insert("abcd")
    assert stop_of(s) == (0, Stop.ROOT)


def test_the_walk_stops_below_a_shared_prefix() -> None:
    s = Scene()
    s.insert("abcd")
    s.insert("abxy")
    assert stop_of(s) == (2, Stop.SHARED)
    s.evict(2)
    assert (s.show("abcd"), s.show("abxy")) == ("GG..", "GGGG")


def test_the_walk_stops_below_a_lock() -> None:
    s = Scene()
    s.insert("abcd")
    s.lock("abc")
    assert stop_of(s) == (3, Stop.LOCKED)


def test_the_walk_stops_below_a_hole() -> None:
    s = Scene()
    s.insert("abcdef")
    s.evict(1)
    assert stop_of(s) == (2, Stop.HOLE)


def test_a_branch_of_holes_still_makes_its_parent_shared() -> None:
    s = Scene(block=4)
    s.insert("abcdefghij")
    s.insert("abcdxyzw")
    s.touch("abcdefghij")
    s.lock("abcdxyzw")
    held = s.begin("abcdefghij")
    s.release(held)
    s.touch("abcdefghij")
    s.evict(2)
    # "efgh" is a hole now; the branch is still there, so "abcd" stays shared.
    assert s.show("abcdefghij") == "GGGG____GG"
    assert stop_of(s) == (8, Stop.HOLE)


def test_a_prefix_whose_last_other_user_has_gone_looks_private_unless_sharing_is_sticky() -> None:
    for sticky, left in ((False, "_GGG"), (True, "GG_G")):
        s = Scene(block=1, sticky=sticky)
        s.insert("abxy")
        s.insert("abcd")
        s.evict(2)
        assert s.show("abxy") == "GG.."
        s.evict(1)
        assert s.show("abcd") == left


# --- pruning --------------------------------------------------------------------------------------


def test_no_hole_ends_a_history() -> None:
    s = Scene(block=2)
    s.insert("abcdef")
    s.evict(2)
    assert s.show("abcdef") == "__GGGG"
    s.evict(4)
    assert s.show("abcdef") == "......"
    assert not s.state.nodes


def test_a_resident_piece_above_a_hole_stays_evictable() -> None:
    s = Scene(block=2)
    s.insert("abcdefgh")
    s.insert("abcdxy")
    s.evict(1)
    s.touch("abcdefgh")
    s.evict(2)
    assert s.show("abcdefgh") == "GGGG__GG"
    assert s.show("abcdxy") == "GGGG.."
    s.evict(1)  # the walk stops at the hole, so the piece behind it goes first
    assert s.show("abcdefgh") == "GGGG...."
    s.evict(4)
    assert not s.state.nodes


# --- how much goes, in which order ----------------------------------------------------------------


@pytest.mark.parametrize("need", range(1, 13))
def test_eviction_frees_the_need_and_less_than_a_block_more(need: int) -> None:
    s = Scene(block=4)
    s.insert("abcdefghijkl")
    assert need <= s.evict(need).freed < need + 4


def test_a_cut_lies_on_an_absolute_block_boundary() -> None:
    s = Scene(block=4)
    s.insert("abcde")
    s.insert("abcxyzuvw")
    s.evict(2)  # all of "de"
    assert freed(s.evict(4)) == [(0, 4)]


def test_more_than_is_evictable_is_refused_before_the_first_block_goes() -> None:
    s = Scene()
    s.insert("abcd")
    s.lock("ab")
    with pytest.raises(InsufficientSpace, match="2 are evictable and 2 are in use"):
        s.evict(3)
    assert s.show("abcd") == "GGGG"


def test_one_history_is_drained_before_the_next_is_begun() -> None:
    s = Scene(block=2)
    s.insert("abcdef")
    s.insert("uvwxyz")
    for left in ("__GGGG", "____GG", "......"):
        s.evict(2)
        assert (s.show("abcdef"), s.show("uvwxyz")) == (left, "GGGGGG")


def test_evicting_nothing_changes_nothing() -> None:
    s = Scene()
    s.insert("abcd")
    before = s.state
    assert s.evict(0).effects == ()
    assert s.state is before


# --- dead branches, merging, node boundaries ------------------------------------------------------


def test_a_dead_branch_hides_the_private_head_until_it_has_gone() -> None:
    s = Scene(block=1)
    s.insert("abcdX")  # an output that the next turn does not repeat
    s.insert("abcdefgh")
    assert freed(s.evict(1)) == [(4, 5)]
    assert freed(s.evict(1)) == [(0, 1)]


def test_neighbours_that_nothing_distinguishes_are_one_node() -> None:
    s = Scene(block=2)
    s.insert("abcdefgh")
    for end in ("ab", "abcd", "abcdef"):
        s.release(s.lock(end))
    assert s.ends() == [(0, 8)]
    s.evict(2)
    s.evict(2)
    assert s.ends() == [(0, 4), (4, 8)]


@pytest.mark.parametrize("use", ["touch", "insert", "checkpoint", "begin"])
def test_a_use_of_a_whole_path_leaves_no_cut_where_earlier_uses_ended(use: str) -> None:
    s = Scene()
    s.insert("abcdef")
    s.lock("abcd")
    running = s.lock("")
    s.touch("ab")
    assert s.ends() == [(0, 2), (2, 4), (4, 6)]
    if use == "touch":
        s.touch("abcdef")
    elif use == "insert":
        s.insert("abcdef")
    elif use == "checkpoint":
        s.checkpoint(running, "abcdef")
    else:
        s.begin("abcdefg")
    assert s.ends() == [(0, 4), (4, 6)]


@pytest.mark.parametrize("name", ["sglang-lru", "private-head-node"])
def test_node_granular_policies_keep_the_boundaries_of_what_was_inserted(name: str) -> None:
    s = Scene(name)
    s.insert("abc")
    s.insert("abcdef")
    assert s.ends() == [(0, 3), (3, 6)]
    assert s.evict(1).freed == 3


def test_where_earlier_uses_ended_does_not_move_the_cut() -> None:
    s = Scene(block=4)
    s.insert("abcdefgh")
    s.touch("abc")
    s.touch("abcdefgh")
    assert freed(s.evict(2)) == [(0, 4)]


def test_the_walk_stops_below_what_was_used_later() -> None:
    """Short requests that add nothing of their own still use the prefix, which shows no branch."""
    s = Scene(block=1)
    s.insert("abcdefgh")
    s.insert("wxyz")
    s.touch("abc")
    assert stop_of(s) == (3, Stop.USED_LATER)
    s.evict(5)
    assert (s.show("abcdefgh"), s.show("wxyz")) == ("GGG.....", "GGGG")
    s.evict(4)
    assert (s.show("abc"), s.show("wxyz")) == ("GGG", "....")


@pytest.mark.parametrize("name", POLICIES)
def test_the_largest_request_is_admissible_when_nothing_runs(name: str) -> None:
    s = Scene(name, capacity=8)
    s.insert("abcd")
    s.insert("abxy")
    s.begin("abcdefgh")
    assert s.state.free == 0


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("sglang-lru", "GGG..."),  # the whole leaf node
        ("tail-block", "GGGG.."),
        ("leaf-head-block", "GGG_GG"),
        ("private-head-node", "___GGG"),
        ("penelope", "__GGGG"),
    ],
)
def test_the_five_policies_differ_in_where_they_take_one_unit(name: str, left: str) -> None:
    s = Scene(name, block=2)
    s.insert("abc")
    s.insert("abcdef")
    s.evict(1)
    assert s.show("abcdef") == left
