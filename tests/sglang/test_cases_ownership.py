"""Faults from the field on the adapter: who owns which slot, from when, until when."""

from __future__ import annotations

import random

import pytest

from penelope.policy import Refused
from tests.sglang.steps import Steps

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.smoke,
    pytest.mark.usefixtures("sglang_settings"),
]

X = list(range(1, 25))
Y = list(range(101, 125))


def test_case_2_what_a_phantom_fills_is_not_freed_as_a_duplicate() -> None:
    s = Steps(pool=64)
    s.serve(X)
    s.press(48)
    assert s.show(X) == "__GGGG"
    (phantom, r) = s.prefill(s.request("r", [*X, 30, 31], new=2))
    filled = s.slots(r, 0, 8)
    free = {int(page) * s.page for page in s.allocator.get_all_free_pages()}
    assert not free & set(filled)
    assert s.cache.statistics.counts.phantom_tokens == 8
    # The same triple once more: the same slots are no duplicates.
    before = s.allocator.available_size()
    s.cache.checkpoint(r, up_to=26)
    assert (s.slots(r, 0, 8), s.allocator.available_size()) == (filled, before)
    s.finish(r)
    assert phantom.kv.req_pool_idx is None
    assert s.show(X) == "GGGGGG"


def test_case_2_of_a_row_that_meets_a_hole_and_kv_only_the_duplicate_is_freed() -> None:
    """A request for log-probabilities computes it all again: holes take it, KV makes it surplus."""
    s = Steps(pool=96)
    s.serve(X)
    s.press(80)
    assert s.show(X) == "__GGGG"
    again = s.request("again", X, return_logprob=True, new=2)
    again.logprob_start_len = 0
    s.prefill(again)
    assert s.show(X) == "GGGGGG"
    # 24 tokens of the tree; the 16 that it had already are free again, the token to come is not.
    assert s.allocator.available_size() == 96 - 24
    s.finish(again)


def test_case_11_a_duplicate_is_freed_and_the_lock_is_on_what_the_tree_kept() -> None:
    s = Steps(pool=96)
    r1, r2 = s.prefill(s.request("r1", X, new=9), s.request("r2", X, new=9))
    assert s.slots(r1, 0, 24) == s.slots(r2, 0, 24), "the row of the second was repointed"
    assert s.allocator.available_size() == 96 - 24
    s.finish(r1)
    for _ in range(5):
        assert s.decode(r2)
    s.press(64)
    assert s.show(X) == "GGGGGG", "locked by the request that goes on"
    s.finish(r2)
    s.press(96)
    assert s.show(X) == ""


@pytest.mark.parametrize("new", [1, 2, 3, 4, 5, 8])
def test_case_19_the_last_decode_slot_is_freed_once(new: int) -> None:
    s = Steps(pool=32)
    r = s.request("r", X[:7], new=new)
    s.prefill(r)
    for _ in range(new - 1):
        assert s.decode(r)
    committed = 7 + new - 1
    assert (r.kv.kv_committed_len, r.kv.kv_allocated_len) == (committed, committed)
    s.finish(r)
    kept = committed // 4 * 4
    assert s.cache.state.totals.device == kept
    assert s.allocator.available_size() == 32 - kept
    with pytest.raises(AssertionError):
        s.finish(r)
    s.running.clear()
    s.audit()


def test_case_20_only_tokens_that_are_known_are_published() -> None:
    """Under overlap SGLang asks for a token more than it has: that page is not final yet."""
    s = Steps(pool=32)
    r = s.request("r", X[:7], new=4)
    s.prefill(r)
    r.full_untruncated_fill_ids = r.full_untruncated_fill_ids[:7]
    s.cache.checkpoint(r, up_to=8)
    assert r.kv.cache_protected_len == 4
    assert s.show(X[:8]) == "G"
    # What was published is not offered again, whatever becomes of the token array behind it.
    own = s.slots(r, 0, 4)
    s.cache.checkpoint(r, up_to=7)
    s.cache.checkpoint(r, up_to=4)
    assert (s.slots(r, 0, 4), s.cache.state.totals.device) == (own, 4)
    s.audit()


def test_case_20_an_excess_of_owners_is_reported_apart_from_a_deficit() -> None:
    from tests.sglang.auditing import audit

    s = Steps(pool=32)
    s.serve(X[:8])
    taken = s.allocator.free_pages[:1].clone()
    s.allocator.free_pages = s.allocator.free_pages[1:]
    with pytest.raises(AssertionError, match="7 pages have an owner, there are 8"):
        audit(s.cache, [])
    s.allocator.free_pages = s.torch.cat((s.allocator.free_pages, taken))
    audit(s.cache, [])
    (_, _, slots) = next(iter(s.cache.slots.items()))
    s.allocator.free_pages = s.torch.cat((s.allocator.free_pages, slots[:1] // s.page))
    with pytest.raises(AssertionError, match="a page has two owners"):
        audit(s.cache, [])


@pytest.mark.parametrize("step_done", [False, True])
def test_case_22_an_abort_between_chunks_leaves_complete_pages_and_no_others(
    step_done: bool,
) -> None:
    s = Steps(pool=64)
    r = s.request("r", X)
    batch = s.launch(s.admit(r, chunk=12).can_run_list)
    assert r.extend_end == 12
    # Launched: not in the tree before the result is there.
    assert s.show(X) == ""
    if step_done:
        s.settle(batch)
        assert s.show(X) == "GGG"
    s.finish(r, checkpoint=step_done)
    assert s.show(X) == ("GGG" if step_done else "")
    assert s.allocator.available_size() == 64 - (12 if step_done else 0)
    assert not s.cache.state.leases


def test_case_26_a_slot_that_was_evicted_and_used_again_answers_for_its_new_tokens_only() -> None:
    s = Steps(pool=20)
    s.serve(X[:14])
    before = owned(s)
    s.serve(Y[:14])
    # SGLang wants a page more than the prompt takes, so that all of the first history went.
    assert (s.show(X[:14]), s.show(Y[:14])) == ("", "GGG")
    assert before & owned(s), "slots of the first history hold the second now"
    s.serve(X[:14])
    assert (s.show(X[:14]), s.show(Y[:14])) == ("GGG", "")


def owned(s: Steps) -> set[int]:
    return {int(slot) for _, _, slots in s.cache.slots.items() for slot in slots}


def test_case_14_each_lock_is_released_by_its_own_receipt_once() -> None:
    s = Steps(pool=96, host=64, swap=8)
    s.serve(X)
    r = s.request("r", [*X, 30], new=4)
    s.prefill(r)
    held = s.cache.protected_size()
    lock = s.cache.lock(r.last_node)
    s.press(64)  # what can leave leaves
    s.cache.unlock(lock)
    assert s.cache.protected_size() == held, "the request's own lock is as it was"
    with pytest.raises(Refused):
        s.cache.unlock(lock)
    assert s.show(X) == "GGGGGG"
    s.finish(r)
    assert s.cache.protected_size() == 0


def test_case_17_requests_whose_hits_were_all_on_the_device_pin_nothing() -> None:
    s = Steps(pool=48, host=48, swap=8)
    s.serve(Y)
    s.press(48)
    s.serve(X)
    assert (s.show(Y), s.show(X)) == ("CCCCCC", "GGGGGG")
    for _ in range(100):
        s.serve([*X, 30])
        assert (s.cache.state.protected, len(s.cache.state.leases)) == (0, 0)
    totals = s.cache.state.totals
    assert s.cache.state.evictable == totals.device + totals.host


def test_case_34_a_node_that_is_split_in_transit_is_whole_on_both_sides() -> None:
    """A copy ends in the call that began it: a split comes before it or after it."""
    source = random.Random(2)
    for _ in range(30):
        s = Steps(pool=48, host=64, swap=8, block=8)
        s.serve(X)
        fork = source.randrange(0, 6) * 4
        s.press(source.choice((32, 40, 48)))
        s.serve([*X[:fork], *Y[: 24 - fork]])
        s.press(source.choice((8, 32)))
        assert set(s.show(X)) <= {"G", "C"}
        s.serve([*X, 30, 31])
        assert s.cache.statistics.counts.phantoms == 0, "nothing was lost: there was room for all"
