"""Two tiers, step by step: what moves next, what a move leaves behind, and what is promised."""

from __future__ import annotations

import pytest

from penelope.policy import (
    InsufficientSpace,
    MoveId,
    OverCapacity,
    Receipt,
    Residency,
    Transfer,
    Unmoved,
    forgo_promise,
    next_demotion,
    plan,
    settle_promise,
)
from tests.cases.scene import Scene, key

G, C = Residency.DEVICE, Residency.HOST


def tiers(name: str = "penelope", *, capacity: int = 8) -> Scene:
    return Scene(name, capacity=capacity, keeps=8, swap=2)


def span(transfer: Transfer | None) -> tuple[int, int] | None:
    return transfer and (transfer.start, transfer.end)


def waiting() -> tuple[Scene, Receipt]:
    """A full device, and a request that waits for abcd from the host and for 1 new unit."""
    s = tiers(capacity=6)
    s.insert("abcd")
    s.move("abcd", 0, C)
    s.insert("uvwxyz")
    return s, s.begin("abcde")


# What leaves the device next


def test_what_is_shared_on_the_device_stays_until_one_branch_has_left() -> None:
    s = tiers()
    s.insert("abcd")
    s.insert("abxy")
    assert span(next_demotion(s.state, 4)) == (2, 4)
    s.move("abcd", 2, C)
    # Only abxy leads to device KV now, so the prefix is the head of what it has there.
    assert span(next_demotion(s.state, 4)) == (0, 2)


def test_a_span_that_leads_to_device_kv_twice_is_no_head() -> None:
    s = tiers()
    s.insert("abcd")
    s.insert("abxy")
    s.insert("abkl")
    s.move("abcd", 2, C)
    assert span(next_demotion(s.state, 4)) == (2, 4)


@pytest.mark.parametrize(
    ("name", "left"),
    [("tail-block", (3, 6)), ("leaf-head-block", (2, 5)), ("penelope", (0, 3))],
)
def test_what_leaves_lies_where_eviction_would_begin(name: str, left: tuple[int, int]) -> None:
    s = tiers(name)
    s.insert("ab")
    s.insert("abcdef")
    assert span(next_demotion(s.state, 3)) == left


def test_nothing_leaves_where_nothing_is_asked_for_or_nothing_may() -> None:
    s = tiers()
    assert next_demotion(s.state, 4) is None
    s.insert("abcd")
    assert next_demotion(s.state, 0) is None
    assert next_demotion(s.state, -1) is None
    assert span(next_demotion(s.state, 1)) == (0, 1)
    s.lock("abcd")
    assert next_demotion(s.state, 1) is None


def test_a_use_that_ends_on_the_host_is_a_use_of_what_leads_there() -> None:
    s = tiers()
    s.insert("abcd")
    s.arrive(s.depart(s.transfer("abcd", 0, C)._replace(start=2)))
    s.insert("xy")
    s.touch("abcd")
    leaving = next_demotion(s.state, 2)
    assert leaving is not None
    assert leaving.node == s.match("xyz").node


# Ends of moves


def test_moves_are_numbered_one_after_another_and_a_reset_goes_on_counting() -> None:
    s = tiers()
    s.insert("abcd")
    assert s.depart(s.transfer("abcd", 0, C)) == MoveId(0)
    s.arrive(MoveId(0))
    assert s.depart(s.transfer("abcd", 0, G)) == MoveId(1)
    s.arrive(MoveId(1))
    nodes, receipts = s.state.next_node, s.state.next_receipt
    s.reset()
    assert (s.state.next_node, s.state.next_receipt, s.state.next_move) == (nodes, receipts, 2)


def test_a_move_that_failed_says_what_stays_where() -> None:
    s = tiers()
    s.insert("abcd")
    move = s.depart(s.transfer("abcd", 0, C))
    assert s.give_up(move).effects == (Unmoved(move, 0, 4, C),)
    assert s.show("abcd") == "GGGG"


def test_what_arrives_is_joined_to_what_is_there_although_it_was_cut_on_its_way() -> None:
    s = tiers()
    s.insert("abcdef")
    s.arrive(s.depart(s.transfer("abcdef", 0, C)._replace(end=2)))
    move = s.depart(s.transfer("abcdef", 2, C))
    s.touch("abcd")
    assert s.ends() == [(0, 2), (2, 4), (4, 6)]
    s.arrive(move)
    # abcd was used later than what follows it: only that distinguishes two spans now.
    assert s.ends() == [(0, 4), (4, 6)]


def test_what_has_left_hands_its_last_use_on_to_what_is_left_of_its_history() -> None:
    s = tiers(capacity=12)
    s.insert("abkl")
    s.insert("xy")
    s.insert("abcd")
    for history in ("abkl", "abcd"):
        s.move(history, 2, C)
    leaving = next_demotion(s.state, 2)
    assert leaving is not None
    assert leaving.node == s.match("xyz").node  # used before abcd, although after abkl


def test_what_is_on_its_way_is_not_joined_to_what_stays() -> None:
    s = tiers()
    s.insert("abcdef")
    s.depart(s.transfer("abcdef", 0, C)._replace(start=2, end=4))
    s.touch("abcdef")
    assert s.show("abcdef") == "GG>>GG"
    assert s.ends() == [(0, 2), (2, 4), (4, 6)]


def test_all_that_leaves_or_arrives_is_counted_although_it_was_cut_on_its_way() -> None:
    s = tiers()
    s.insert("abcdef")
    s.depart(s.transfer("abcdef", 0, C))
    s.touch("ab")
    found = s.match("abcdefg")
    assert (len(found.spans), found.leaving, found.arriving, found.reusable) == (2, 6, 0, 0)
    s.arrive(MoveId(0))
    s.depart(s.transfer("abcdef", 2, G))
    s.touch("abcd")
    found = s.match("abcdefg")
    assert (len(found.spans), found.leaving, found.arriving, found.host) == (3, 0, 4, 2)


# Promises


def test_an_exchange_stages_no_more_than_the_swap_buffer_holds() -> None:
    s = Scene(capacity=8, block=1, keeps=5, swap=2)
    for history in ("k", "abcd"):
        s.insert(history)
        s.move(history, 0, C)
    s.insert("rstuvwxy")
    r = s.begin("abcde")  # k is dropped for it, and both tiers are full
    steps = []
    while (transfer := s.next(r)) is not None:
        s.arrive(s.depart(transfer))
        steps.append((transfer.target, transfer.length, s.state.staged))
    assert steps == [(C, 3, 2), (G, 3, 0), (C, 2, 1), (G, 1, 0)]


def test_a_promise_is_not_made_twice() -> None:
    s, _ = waiting()
    planned = s.plan("kl")
    assert (planned.admissible, planned.available) == (False, 1)


def test_a_settled_promise_is_a_reservation_and_nothing_else() -> None:
    s, r = waiting()
    assert (s.state.totals.due, s.state.totals.promote, s.state.totals.reserved) == (1, 4, 0)
    s.carry_out(r)
    assert (s.state.totals.due, s.state.totals.promote, s.state.totals.reserved) == (0, 0, 1)


def test_what_another_request_has_promoted_is_promised_no_more() -> None:
    s = tiers(capacity=12)
    s.insert("abcd")
    s.move("abcd", 0, C)
    first, second = s.begin("abcde"), s.begin("abcdf")
    assert s.state.totals.promote == 8
    s.carry_out(first)
    assert (s.state.totals.promote, s.next(second)) == (4, None)
    s.state = settle_promise(s.state, second).state
    assert (s.state.totals.promote, s.state.totals.due, s.state.totals.reserved) == (0, 0, 2)


def test_host_kv_that_a_receipt_was_not_promised_does_not_keep_it_waiting() -> None:
    s = tiers()
    s.insert("abcd")
    s.move("abcd", 0, C)
    r = s.lock("abcd")
    assert settle_promise(s.state, r).state.totals == s.state.totals
    assert s.next(r) is None


@pytest.mark.parametrize(
    ("history", "due", "promote"), [("kl", 2, 0), ("abcd", 0, 4)], ids=["new units", "host KV"]
)
def test_what_a_request_waits_for_is_not_locked_by_another(
    history: str, due: int, promote: int
) -> None:
    s = tiers(capacity=6)
    s.insert("abcd")
    s.move("abcd", 0, C)
    s.insert("uvwxyz")
    waits = s.admit(plan(s.state, key(history), at_most=4)).receipt
    assert (s.state.totals.due, s.state.totals.promote) == (due, promote)
    with pytest.raises(InsufficientSpace, match="are promised"):
        s.lock("uvwxyz")
    s.release(waits)
    s.lock("uvwxyz")


def test_what_both_tiers_keep_together_is_promised_too() -> None:
    s = Scene(capacity=8, block=1, keeps=4, swap=1)
    s.insert("abcd")
    s.move("abcd", 0, C)
    s.insert("wxyz")
    s.begin("k")  # has its unit
    assert s.admit(s.plan("lmno")).freed == 1  # waits for 4 where 3 are free
    assert (s.state.free, s.state.totals.due, s.state.totals.reserved) == (3, 4, 1)
    assert (s.state.logical_used, s.state.available) == (12, 3)
    with pytest.raises(OverCapacity, match="are promised"):
        s.insert("q")


def test_as_much_as_the_host_keeps_may_be_locked_there() -> None:
    s = Scene(capacity=8, block=1, keeps=4, swap=1)
    s.insert("abcd")
    s.move("abcd", 0, C)
    s.insert("uvwxyz")
    move = s.next(s.begin("klm"))
    assert move is not None
    s.arrive(s.depart(move))
    assert (s.show("abcd"), s.show("uvwxyz"), s.state.totals.due) == ("_CCC", "CGGGGG", 3)
    for history in ("abcd", "u"):
        s.lock(history)
    assert s.state.totals.locked_host == s.state.config.host_resident


def test_host_kv_on_its_way_to_the_device_is_not_held_against_the_host() -> None:
    s = Scene(capacity=10, keeps=4, swap=2)
    s.insert("abcd")
    s.move("abcd", 0, C)
    s.insert("uvwxyz")
    r = s.begin("abcde")
    first = s.next(r)
    assert first is not None
    s.depart(first)
    totals = s.state.totals
    assert (totals.inbound, totals.promote, totals.due, totals.locked_host) == (4, 0, 1, 4)
    s.lock("uvw")


def test_a_request_may_forgo_what_it_waits_for() -> None:
    s, r = waiting()
    with pytest.raises(InsufficientSpace):
        s.lock("uvwxyz")
    s.state = forgo_promise(s.state, r).state
    assert (s.state.totals.due, s.state.totals.promote, s.next(r)) == (0, 0, None)
    s.lock("uvwxyz")


# Sums over both tiers


def test_a_plan_counts_what_must_leave_the_device_and_what_may_be_dropped_apart() -> None:
    s = tiers()
    s.insert("abcd")
    s.arrive(s.depart(s.transfer("abcd", 0, C)._replace(start=2)))
    s.insert("uvwx")
    assert (s.show("abcd"), s.state.free) == ("GGCC", 2)
    planned = s.plan("abcdef")
    assert (planned.allocate, planned.compute, planned.new) == (2 + 2, 2, (4, 6))
    assert (planned.shortfall, planned.evict) == (2, 0)
    # Neither counts the request's own prefix, in whichever tier.
    assert (planned.available, planned.droppable) == (4, 4)
    s.lock("abcd")
    planned = s.plan("abcdef")
    assert (planned.available, planned.droppable) == (4, 4)
    assert s.plan("x").shortfall == 0


def test_the_tiers_are_counted_apart_and_together() -> None:
    s = tiers()
    s.insert("abcdef")
    s.move("abcdef", 0, C)
    s.arrive(s.depart(s.transfer("abcdef", 0, G)._replace(end=2)))
    found = s.match("abcdefg")
    assert (found.device, found.host, found.reusable, found.compute) == (2, 4, 6, 1)
    assert (s.state.evictable, s.state.protected, s.state.logical_used) == (6, 0, 6)
    s.lock("abcdef")
    assert (s.state.evictable, s.state.protected, s.state.available) == (0, 6, 6)


def test_what_stands_in_the_swap_buffer_is_what_the_host_does_not_keep() -> None:
    s = Scene(capacity=8, keeps=2, swap=4)
    s.insert("abcdef")
    assert s.state.staged == 0
    first = s.depart(s.transfer("abcdef", 0, C)._replace(end=2))
    assert (s.state.host_used, s.state.staged) == (2, 0)
    s.arrive(first)
    s.depart(s.transfer("abcdef", 2, C)._replace(end=5))
    assert (s.state.host_used, s.state.staged, s.state.free) == (5, 3, 4)


# What a promise is, move by move


def demote(s: Scene, history: str, start: int, end: int) -> None:
    """Move a part of one node of the history to the host."""
    found = s.match(history, at_most=len(history)).spans
    (node,) = [part.node for part in found if part.start <= start and end <= part.end]
    s.arrive(s.depart(Transfer(node, start, end, C)))


def branching() -> Scene:
    """abcdef on the host, in three nodes of two units: others part from it at 2 and at 4."""
    s = Scene(capacity=12, keeps=10, swap=2)
    for history in ("abcdef", "abcdZZ", "abYY"):
        s.insert(history)
    for history, start in (
        ("abcdef", 4),
        ("abcdZZ", 4),
        ("abYY", 2),
        ("abcdef", 2),
        ("abcdef", 0),
    ):
        s.move(history, start, C)
    assert s.show("abcdef") == "CCCCCC"
    assert len(s.match("abcdef", at_most=6).spans) == 3
    return s


def test_a_promotion_that_fails_is_promised_again_beside_what_is_left() -> None:
    s = branching()
    r = s.admit(plan(s.state, key("abcdef"), at_most=6)).receipt
    first = s.next(r)
    assert first is not None
    one = s.depart(first)
    second = s.next(r)
    assert second is not None
    other = s.depart(second)
    assert s.state.leases[r.id].promote == 2
    s.give_up(one)
    assert s.state.leases[r.id].promote == 4
    s.give_up(other)
    assert s.state.leases[r.id].promote == 6
    s.carry_out(r)
    assert s.show("abcdef") == "GGGGGG"


def test_a_promise_lasts_until_all_of_it_has_come_where_nothing_else_is_due() -> None:
    """As an engine with its own allocator asks: nothing is to be computed, KV is to be brought."""
    s = branching()
    s.insert("0123456789")
    admitted = s.admit(plan(s.state, key("abcdef"), at_most=6))
    lease = s.state.leases[admitted.receipt.id]
    assert (lease.due, lease.promote, s.state.free) == (0, 6, 2)
    assert len(s.carry_out(admitted.receipt)) > 3
    assert s.show("abcdef") == "GGGGGG"


def test_a_use_of_what_is_on_the_host_makes_all_that_leads_to_it_recent() -> None:
    """Two levels of the host lie between the use and what would leave the device next."""
    s = Scene(capacity=12, keeps=8, swap=2)
    s.insert("abcdef")
    s.insert("abcdgh")
    for history, start, end in (("abcdef", 4, 6), ("abcdgh", 4, 6), ("abcdef", 2, 4)):
        demote(s, history, start, end)
    assert s.show("abcdef") == "GGCCCC"
    s.insert("xy")
    assert span(next_demotion(s.state, 2)) == (0, 2)
    s.touch("abcdef")
    found = next_demotion(s.state, 2)
    assert found is not None
    assert s.state.nodes[found.node].key == key("xy")
