"""Matching, planning, locking and inserting: what is easy to get wrong, as examples."""

from __future__ import annotations

import pytest

from penelope.policy import (
    Adopt,
    InsufficientSpace,
    InUse,
    Namespace,
    NotAPrefix,
    NotBeingRefilled,
    OverCapacity,
    Receipt,
    ReceiptId,
    RequestTooLarge,
    Residency,
    StalePlan,
    Surplus,
    UnknownReceipt,
    acquire,
    admit,
    touch,
)
from tests.cases.scene import Scene, freed


def holed() -> Scene:
    """[hole ab | cdef]"""
    s = Scene(block=2)
    s.insert("abcdef")
    s.evict(1)
    assert s.show("abcdef") == "__GGGG"
    return s


# --- what an insertion answers: adopted, resident already, surplus --------------------------------


def test_refilling_a_hole_adopts_exactly_what_is_offered() -> None:
    s = holed()
    r = s.begin("abcdefg")
    done = s.refill(r, 0, 2)
    assert (done.adopted, done.resident) == (2, 0)
    assert [e[1:] for e in done.effects if isinstance(e, Adopt)] == [(0, 2)]


def test_insert_answers_adopted_and_resident_and_unaligned_apart() -> None:
    s = Scene(page=2, block=2)
    s.insert("abcdef")
    s.evict(1)
    done = s.insert("abcdefghi")
    assert (done.adopted, done.resident, done.unaligned) == (2 + 2, 4, 1)
    assert [e[1:] for e in done.effects if isinstance(e, Surplus)] == [(2, 6)]
    assert [e[1:] for e in done.effects if isinstance(e, Adopt)] == [(0, 2), (6, 8)]


def test_the_same_offer_again_is_resident_and_changes_no_span() -> None:
    s = Scene()
    s.insert("abcd")
    done = s.insert("abcd")
    assert (done.adopted, done.resident) == (0, 4)
    assert s.ends() == [(0, 4)]


def test_output_that_meets_a_hole_refills_it_and_that_meets_kv_is_surplus() -> None:
    s = holed()
    r = s.lock("abcdef")
    assert s.show("abcdef") == "__GGGG"
    s.reserve(r, 2)
    done = s.insert("abcd")
    assert (done.adopted, done.resident) == (2, 2)


def test_more_than_is_free_is_not_adopted() -> None:
    s = Scene(capacity=4)
    s.insert("abc")
    with pytest.raises(OverCapacity, match="2 units are offered for adoption, 1 more than"):
        s.insert("xy")


def test_an_offer_must_continue_what_the_tree_has() -> None:
    s = Scene()
    s.insert("abcd")
    with pytest.raises(NotAPrefix, match="leaves the tree at 2, before 4"):
        s.insert("abxyz", start=4)


# --- what a match answers -------------------------------------------------------------------------


def test_a_match_answers_five_different_numbers() -> None:
    s = Scene(block=2)
    s.insert("abcdefgh")
    s.lock("abcd")
    s.evict(2)  # "ef"
    m = s.match("abcdefghij")
    assert s.show("abcdefgh") == "GGGG__GG"
    assert (m.device_prefix, m.reusable, m.host, m.hole, m.compute) == (4, 6, 0, 2, 2 + 2)
    assert (m.end, m.length) == (8, 10)


def test_at_least_one_token_of_a_request_is_always_computed() -> None:
    s = Scene()
    s.insert("abcd")
    assert s.match("abcd").compute == 1
    assert s.match("abcd", at_most=4).compute == 0
    assert s.match("").compute == 0


def test_only_whole_pages_match() -> None:
    s = Scene(page=4, block=4)
    s.insert("abcdefgh")
    assert s.match("abcdefgh").end == 4
    assert s.match("abcdefghi").end == 8
    assert s.match("abcdefxx?").end == 4


def test_a_match_ends_where_the_last_kv_does() -> None:
    s = Scene(block=2)
    s.insert("abcdef")
    s.evict(1)
    assert s.match("abx").end == 0
    assert s.match("abcx").end == 3


def test_a_match_changes_nothing_not_even_recency() -> None:
    s = Scene(block=1)
    s.insert("old")
    s.insert("new")
    s.match("old")
    s.evict(1)
    assert s.show("old") == "_GG"


# --- locks belong to token ranges -----------------------------------------------------------------


def test_a_split_copies_a_lock_and_one_release_undoes_both_halves() -> None:
    s = Scene()
    s.insert("abcd")
    r = s.lock("abcd")
    s.insert("abxy")
    assert (s.state.protected, s.state.evictable) == (4, 2)
    s.release(r)
    assert (s.state.protected, s.state.evictable) == (0, 6)


def test_what_is_locked_stays_when_all_below_it_has_gone() -> None:
    s = Scene(block=1)
    r = s.lock("")  # the beginning of every history: an empty match
    s.insert("abcd")
    s.evict(4)
    assert (s.ends(), len(s.state.nodes)) == ([], 1)
    s.release(r)
    assert not s.state.nodes


def test_a_receipt_releases_once() -> None:
    s = Scene()
    s.insert("abcd")
    first, second = s.lock("abcd"), s.lock("abcd")
    s.release(first)
    with pytest.raises(UnknownReceipt, match="receipt 0 is not live"):
        s.release(first)
    assert s.state.protected == 4
    s.release(second)
    with pytest.raises(UnknownReceipt):
        s.release(Receipt(ReceiptId(7)))


# --- admission: lock first, then evict, all or nothing --------------------------------------------


def test_admission_never_counts_the_requests_own_prefix_as_evictable() -> None:
    s = Scene(capacity=6)
    s.insert("abcd")
    s.lock("")
    r = s.begin("xy")
    planned = s.plan("abcdef")
    assert (planned.evict, planned.available, planned.admissible) == (2, 0, False)
    with pytest.raises(InsufficientSpace, match="must free 2 units where 0 are evictable"):
        s.admit(planned)
    s.release(r)
    s.begin("abcdef")


def test_admission_counts_pages_not_tokens() -> None:
    s = Scene(page=4, block=4, capacity=8)
    assert s.plan("abcde").allocate == 8
    with pytest.raises(RequestTooLarge, match="needs 12 units and the device holds 8"):
        s.plan("abcdefgh", extra=1)


def test_holes_are_part_of_what_must_be_allocated() -> None:
    s = holed()
    planned = s.plan("abcdefgh", extra=3)
    assert (planned.holes, planned.new, planned.allocate) == (((0, 2),), (6, 8), 2 + 2 + 3)


def test_the_matched_path_is_locked_before_anything_is_evicted_for_it() -> None:
    """Or the eviction would take the tail and with it the holes that are about to be filled."""
    s = Scene(block=2, capacity=8)
    s.insert("abcdef")
    s.evict(2)
    s.insert("xy")
    s.touch("xy")
    s.begin("abcdefgh")
    assert (s.show("abcdef"), s.show("xy")) == ("~~GGGG", "..")


# --- plans and what is in flight ------------------------------------------------------------------


def test_a_plan_is_applied_only_to_the_state_it_was_made_on() -> None:
    s = Scene()
    s.insert("abcd")
    planned = s.plan("abcdef")
    s.insert("xy")
    with pytest.raises(StalePlan, match="match again"):
        s.admit(planned)
    with pytest.raises(StalePlan):
        touch(s.state, planned.match)
    with pytest.raises(StalePlan):
        acquire(s.state, planned.match)
    assert admit(s.state, s.plan("abcdef")).freed == 0


def test_a_hole_that_somebody_refills_is_awaited_not_computed_twice() -> None:
    s = holed()
    first = s.begin("abcdefg")
    planned = s.plan("abcdefh")
    assert (planned.holes, planned.awaits) == ((), ((0, 2),))
    assert (planned.match.arriving, planned.match.hole, planned.allocate) == (2, 0, 1)
    second = s.admit(planned).receipt
    with pytest.raises(NotBeingRefilled, match="has not undertaken"):
        s.refill(second, 0, 2)
    s.refill(first, 0, 2)
    assert s.match("abcdefh").device_prefix == 6


def test_what_an_ended_request_had_undertaken_is_a_plain_hole_again() -> None:
    s = holed()
    first = s.begin("abcdefg")
    assert s.show("abcdef") == "~~GGGG"
    s.release(first)
    assert s.show("abcdef") == "__GGGG"
    assert s.plan("abcdefg").holes == ((0, 2),)


def test_a_hole_may_be_refilled_in_parts() -> None:
    s = Scene(block=4)
    s.insert("abcdef")
    s.evict(4)
    r = s.begin("abcdefg")
    s.refill(r, 0, 1)
    assert s.show("abcdef") == "G~~~GG"
    s.refill(r, 1, 4)
    assert s.ends() == [(0, 6)]


def test_a_refill_of_what_somebody_else_has_filled_is_surplus() -> None:
    s = Scene(block=4)
    s.insert("abcdef")
    s.evict(4)
    r = s.begin("abcdefg")
    s.insert("ab")
    assert s.show("abcdef") == "GG~~GG"
    done = s.refill(r, 0, 4)
    assert (done.adopted, done.resident) == (2, 2)
    assert [(type(e), *e[1:3]) for e in done.effects if isinstance(e, Surplus | Adopt)] == [
        (Surplus, 0, 2),
        (Adopt, 2, 4),
    ]


def test_a_refill_needs_a_place_for_what_it_adopts() -> None:
    """A request that has spent its reservation on new tokens has none left for its hole."""
    s = Scene(capacity=6, block=2)
    s.insert("abcd")
    s.evict(2)
    r = s.begin("abcdef")
    s.checkpoint(r, "abcdefgh")
    with pytest.raises(OverCapacity, match="2 units are offered for adoption, 2 more than"):
        s.refill(r, 0, 2)
    assert s.show("abcdefgh") == "~~GGGGGG"


@pytest.mark.parametrize(("start", "end"), [(0, 0), (2, 1), (-1, 2), (0, 9), (1, 3)])
def test_only_a_span_of_whole_pages_on_the_held_path_is_refilled(start: int, end: int) -> None:
    s = Scene(page=2, block=2)
    s.insert("abcdef")
    s.evict(2)
    r = s.begin("abcdefg")
    with pytest.raises(NotBeingRefilled):
        s.refill(r, start, end)


# --- namespaces -----------------------------------------------------------------------------------


def test_namespaces_are_kept_apart_part_by_part() -> None:
    s = Scene()
    s.insert("abcd", Namespace("ab", "c"))
    for other in (Namespace("a", "bc"), Namespace("abc"), Namespace(None, "abc"), Namespace()):
        assert s.match("abcde", other).end == 0
    assert s.match("abcde", Namespace("ab", "c")).end == 4


# Requests from beginning to end


def test_a_request_grows_its_lock_with_what_it_computes() -> None:
    s = Scene(capacity=8)
    r = s.begin("abcd", extra=2)
    assert s.state.totals.reserved == 6
    s.checkpoint(r, "abcd")
    assert (s.state.totals.reserved, s.state.protected) == (2, 4)
    s.checkpoint(r, "abcdef")
    assert (s.state.totals.reserved, s.state.protected) == (0, 6)
    s.reserve(r, 2)
    with pytest.raises(RequestTooLarge, match="holds 8 units and asks for 1 more where"):
        s.reserve(r, 1)
    s.release(r)
    assert (s.state.free, s.state.evictable) == (2, 6)


def test_never_is_told_from_not_now() -> None:
    s = Scene(capacity=8, block=1)
    r, other = s.serve("ab"), s.serve("xyz")
    with pytest.raises(InsufficientSpace, match="6 units are needed, 3 are free and 0 can be"):
        s.reserve(r, 6)  # beside the other request; alone it fits
    with pytest.raises(RequestTooLarge, match="holds 2 units and asks for 7 more where"):
        s.reserve(r, 7)
    s.release(other)
    s.reserve(r, 6)


def test_what_a_request_was_promised_counts_as_what_it_holds() -> None:
    """Beside a host tier: 2 units are on the device, 2 on the host are to come, 2 are due."""
    s = Scene(capacity=6, keeps=4, swap=2)
    s.insert("abcd")
    s.move("abcd", 0, Residency.HOST)
    s.insert("wxyz")
    r = s.admit(s.plan("abcde", extra=1)).receipt
    lease = s.state.leases[r.id]
    assert (lease.promote, lease.due) == (4, 2)
    with pytest.raises(RequestTooLarge, match="holds 6 units and asks for 1 more where"):
        s.reserve(r, 1)


def test_a_growing_output_evicts_its_shortfall() -> None:
    s = Scene(capacity=8, block=2)
    s.insert("uvwxyz")
    r = s.begin("ab")
    assert freed(s.reserve(r, 1)) == [(0, 2)]


def test_an_output_that_fits_in_part_evicts_only_the_rest() -> None:
    s = Scene(capacity=8, block=1)
    s.insert("vwxyz")
    r = s.begin("ab")
    assert s.state.free == 1
    assert freed(s.reserve(r, 3)) == [(0, 2)]


def test_a_checkpoint_must_continue_the_locked_path() -> None:
    s = Scene()
    r = s.begin("abcd")
    s.checkpoint(r, "abcd")
    with pytest.raises(NotAPrefix):
        s.checkpoint(r, "abxy")
    with pytest.raises(NotAPrefix):
        s.checkpoint(r, "ab")


def test_a_reset_waits_for_running_requests() -> None:
    s = Scene()
    r = s.begin("abcd")
    with pytest.raises(InUse, match="1 receipts are live"):
        s.reset()
    s.checkpoint(r, "abcd")
    s.release(r)
    tick = s.state.tick
    s.reset()
    assert (s.show("abcd"), s.state.tick) == ("....", tick)
    # Ids are never used again: an old receipt cannot release a new lock.
    assert s.begin("abcd") != r


def test_what_somebody_is_still_refilling_is_not_reusable() -> None:
    s = holed()
    s.begin("abcdefg")
    found = s.match("abcdefx")
    assert (found.arriving, found.reusable, found.compute) == (2, 4, 1)


def test_only_the_end_of_a_node_that_is_split_ever_branched() -> None:
    """With sticky sharing, a beginning that others only went through may be evicted later on."""
    s = Scene(block=1, sticky=True)
    s.insert("abcd")
    s.insert("abcx")  # the node abc branches at its end
    r = s.lock("a")  # and is split, above that end
    s.evict(4)
    assert s.show("abcd") == "G..."
    s.release(r)
    s.insert("abcd")
    assert freed(s.evict(1)) == [(0, 1)]
