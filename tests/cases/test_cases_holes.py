"""Faults from the field, about holes and block boundaries.  Numbers: docs/faults.md."""

from __future__ import annotations

import pytest

from penelope.policy import (
    Adopt,
    Config,
    InsufficientSpace,
    RequestTooLarge,
    Surplus,
    evict,
)
from penelope.runtime.cache import Cache
from penelope.runtime.symbolic import SymbolicStore
from tests.cases.scene import Scene, freed, key


@pytest.mark.parametrize("way_out", ["abort", "preempt", "finish"])
def test_case_1_a_gapped_history_is_planned_for_and_let_go_on_every_exit(way_out: str) -> None:
    s = Scene(block=2)
    s.insert("abcdefghijkl")
    s.evict(4)
    assert s.show("abcdefghijkl") == "____GGGGGGGG"
    planned = s.plan("abcdefghijklmn")
    # 4 hole tokens and 2 new ones: a scheduler with a budget of 3 sees 6 before anything changes.
    assert planned.match.compute == 4 + 2
    assert s.show("abcdefghijkl") == "____GGGGGGGG"
    r = s.admit(planned).receipt
    if way_out == "finish":
        assert s.refill(r, 0, 4).adopted == 4
        assert s.checkpoint(r, "abcdefghijklmn").adopted == 2
    elif way_out == "preempt":
        s.refill(r, 0, 2)
    s.release(r)
    assert (s.state.protected, s.state.totals.reserved, s.state.leases.get(r.id)) == (0, 0, None)
    assert all(node.filler is None for node in s.state.nodes.values())


def test_case_1_a_shared_block_is_never_the_head_victim_while_a_private_one_exists() -> None:
    s = Scene(block=2)
    s.insert("abcdefgh")
    s.insert("abcdwxyz")
    assert freed(s.evict(2)) == [(4, 6)]
    assert freed(s.evict(2)) == [(6, 8)]
    assert s.show("abcdwxyz") == "GGGGGGGG"
    # Ours: with its last other user gone the prefix is private, and the next victim's head.
    assert freed(s.evict(2)) == [(0, 2)]


def test_case_2_what_fills_a_hole_is_not_handed_back_as_surplus() -> None:
    store = SymbolicStore(100)
    cache = Cache(Config(100, 1, 2), store)
    a_b = store.allocate(4)
    assert cache.insert(key("abcd"), a_b).surplus == []
    cache.evict(2)
    assert cache.match(key("abcde")).hole == 2
    c, d, e = store.allocate(2), store.allocate(2), store.allocate(2)
    b = a_b[2:]
    done = cache.insert(key("abcdef"), [*c, *b, *d])
    assert (done.adopted, done.resident, done.surplus) == (4, 2, [])
    again = cache.insert(key("abcdef"), [*c, *b, *d])
    assert (again.adopted, again.surplus) == (0, [])
    # The variant: block 1 was recomputed privately; only that is a true duplicate.
    variant = cache.insert(key("abcdef"), [*c, *e, *d])
    assert (variant.adopted, variant.surplus) == (0, e)


def test_case_2_the_core_answers_the_three_parts_of_an_offer_apart() -> None:
    s = Scene(block=2)
    s.insert("abcd")
    s.evict(1)
    effects = s.insert("abcdef").effects
    assert [(e.start, e.end) for e in effects if isinstance(e, Adopt)] == [(0, 2), (4, 6)]
    assert [(e.start, e.end) for e in effects if isinstance(e, Surplus)] == [(2, 4)]


def test_case_4_prefix_hit_reusable_and_to_compute_are_three_numbers() -> None:
    s = Scene(block=2)
    s.insert("abcdefghij")
    s.lock("abcd")
    s.evict(2)
    assert s.show("abcdefghij") == "GGGG__GGGG"
    m = s.match("abcdefghij", at_most=10)
    assert (m.device_prefix, m.reusable, m.hole, m.compute) == (4, 8, 2, 2)
    # The last-token rule: a request for exactly this computes one token more.
    assert s.match("abcdefghij").compute == 3


def test_case_4_of_blocks_inserted_in_one_call_the_victim_is_always_the_same() -> None:
    s = Scene(block=2, capacity=6)
    s.insert("abcdef")
    results = [evict(s.state, 1) for _ in range(200)]
    assert all(r == results[0] for r in results)
    assert freed(results[0]) == [(0, 2)]


def test_case_28_a_fully_cached_prompt_still_computes_a_token() -> None:
    s = Scene(page=4, block=4)
    s.insert("abcd")
    planned = s.plan("abcd")
    assert planned.new == (0, 4)
    assert planned.match.compute >= 1
    s.insert("abcdefgh")
    s.evict(1)
    planned = s.plan("abcdefgh")
    # Ours: the last page is computed again whole, and a hole that then leads to no matched KV is
    # part of the real request rather than a phantom one.
    assert (planned.holes, planned.new) == ((), (0, 8))
    # With a token more behind it, the hole is a phantom request and the real one is not empty.
    planned = s.plan("abcdefghi")
    assert (planned.holes, planned.new) == (((0, 4),), (8, 9))


def test_case_34_what_is_being_refilled_is_a_range_that_a_split_covers_on_both_sides() -> None:
    s = Scene(block=2)
    s.insert("abcdefghij")
    s.evict(8)
    r = s.begin("abcdefghijk")
    # Another history forks inside the hole that is in flight, and brings the part before the fork.
    s.insert("abcdxx")
    assert s.show("abcdefghij") == "GGGG~~~~GG"
    done = s.refill(r, 0, 8)
    assert (done.adopted, done.resident) == (4, 4)
    assert s.show("abcdefghij") == "G" * 10


def test_case_8_a_request_never_evicts_its_own_hit() -> None:
    s = Scene(capacity=6, block=2)
    s.insert("abcd")
    with pytest.raises(RequestTooLarge):
        s.plan("abcdefgh")
    s = Scene(capacity=8, block=2)
    s.insert("abcd")
    s.insert("xy")
    done = s.admit(s.plan("abcdefgh"))
    assert freed(done) == [(0, 2)]
    assert (s.show("abcd"), s.show("xy")) == ("GGGG", "..")


def test_case_8_what_does_not_fit_beside_running_requests_changes_nothing() -> None:
    s = Scene(capacity=8, block=2)
    s.insert("abcd")
    s.lock("")
    s.begin("uv")
    planned = s.plan("abcdefgh")
    before = s.state
    with pytest.raises(InsufficientSpace):
        s.admit(planned)
    assert s.state is before
    assert s.show("abcd") == "GGGG"
