"""Faults from the field on the adapter: who is admitted, who has to go, what is freed for it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sglang.steps import Steps

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.smoke,
    pytest.mark.usefixtures("sglang_settings"),
]

X = list(range(1, 25))
Y = list(range(101, 125))
Z = list(range(201, 225))


@pytest.mark.parametrize("way_out", ["abort", "retract", "finish"])
def test_case_1_a_gapped_request_waits_or_is_refilled_in_steps_and_lets_go(way_out: str) -> None:
    s = Steps(pool=96)
    s.serve(X)
    s.press(80)
    assert s.show(X) == "__GGGG"
    r = s.request("r", [*X, 30, 31], new=3)
    # 8 hole tokens and 2 new ones in steps of 4 tokens: holes first, in position order.
    assert s.admit(r, chunk=3).can_run_list == [], "less than a page: nothing is begun"
    assert not s.cache.state.leases
    (phantom,) = s.prefill(r, chunk=4)
    assert (phantom.span, s.show(X)) == ((0, 4), "G_GGGG")
    assert s.refills(r)
    s.serve(Z)
    s.press(60)
    # Between the steps its path is locked: what was used later goes first.
    assert (s.show(X), s.show(Z)) == ("G_GGGG", "__GGGG")
    if way_out == "abort":
        s.cache.release_aborted_request(r.cache_request_handle)
    else:
        assert s.start(r, chunk=8) <= 3
        if way_out == "retract":
            s.finish(r, checkpoint=False)
        else:
            assert s.decode(r)
            s.finish(r)
    assert (s.cache.refilling.req, len(s.cache.state.leases)) == (None, 0)
    assert s.cache.state.protected == 0
    s.press(96)
    assert s.show(X) == ""


def test_case_8_a_request_never_evicts_its_own_hit() -> None:
    s = Steps(pool=32)
    s.serve(X[:16])
    before = s.cache.state.totals
    r = s.request("r", [*X[:16], *Y[:12]])
    assert s.admit(r).can_run_list == [], "12 and a page do not fit beside the 16 of its own"
    assert s.cache.state.totals == before
    assert not s.cache.state.leases
    # With room enough in all, what is not its own makes way, though it was used later.
    s = Steps(pool=40)
    s.serve(X[:16])
    s.serve(Z[:16])
    s.serve([*X[:16], *Y[:12]])
    assert s.show([*X[:16], *Y[:12]]) == "G" * 7
    assert s.show(Z[:16]) == "__GG"


def test_case_31_admission_counts_whole_pages() -> None:
    """A prompt takes its pages and SGLang keeps one more in reserve: two do not fit in three."""
    for free, admitted in ((8, 0), (12, 1), (20, 2)):
        s = Steps(pool=24 + free)
        holds = s.request("holds", X, new=1)
        s.prefill(holds)
        assert s.allocator.available_size() == free
        pair = [s.request("a", Y[:2], new=2), s.request("b", Z[:2], new=2)]
        ready = s.prefill(*pair)
        assert len(ready) == admitted, (free, ready)


@pytest.mark.parametrize(("own", "retracted"), [(True, 1), (False, 2)])
def test_case_31_retraction_counts_what_it_really_frees(own: bool, retracted: int) -> None:
    """Pages that another request reads too are not freed: then one victim is not enough."""
    s = Steps(pool=24 + 4 * (3 if own else 1) + 4)
    reqs = [s.request(str(i), [*X, 900 + i * own, 1, 2, 3], new=1) for i in range(3)]
    for req in reqs:
        s.settle(s.launch(s.admit(req).can_run_list or forced(s, req)))
    # One page is free, and each of the three needs one for its next token.
    assert s.allocator.available_size() == 4
    assert not s.decode(*reqs)
    gone = s.retract(*reqs)
    left = [req for req in reqs if req not in gone]
    assert len(gone) == retracted
    assert s.decode(*left)
    assert s.show(X) == "GGGGGG"


def forced(s: Steps, req: Any) -> list[Any]:
    """Admitted without the page that SGLang wants in reserve."""
    req.init_next_round_input(s.cache)
    req.lock, req.extend_end = s.cache.lock(req.last_node), len(req.full_untruncated_fill_ids)
    return [req]


def test_case_70_what_a_retracted_request_computed_is_freed_and_not_only_unlocked() -> None:
    s = Steps(pool=96)
    s.serve(X)
    r = s.request("r", [*X, 30], new=2)
    other = s.request("other", [*X, 40], new=2)
    s.prefill(r)
    s.prefill(other)
    for _ in range(9):
        assert s.decode(r, other)
    own = s.allocator.available_size()
    assert own == 96 - 24 - 2 * 12
    s.finish(r, checkpoint=False)
    assert s.allocator.available_size() == own + 12, "its own pages, all of them and at once"
    assert s.show(X) == "GGGGGG", "what it shared stays"
    assert s.decode(other)
    s.finish(other, checkpoint=False)
    assert s.allocator.available_size() == 96 - 24
    assert s.cache.evictable_size() == 24


def pressure(s: Steps) -> int:
    """Tokens that neither are free nor can be had."""
    return int(s.allocator.size - s.allocator.available_size() - s.cache.evictable_size())


@pytest.mark.parametrize("host", [0, 64], ids=["one-tier", "two-tiers"])
def test_case_73_every_path_that_allocates_evicts_and_an_idle_cache_is_no_pressure(
    host: int,
) -> None:
    s = Steps(pool=64, host=host, swap=8 if host else 0, block=8)

    def fill() -> None:
        for start in (300, 400, 500):
            s.serve(list(range(start, start + 24)))
        assert s.allocator.available_size() < 24
        assert pressure(s) == 0

    def prefilled(tokens: list[int], chunk: int | None = None) -> Any:
        fill()
        r = s.request("r", tokens, new=2)
        s.start(r, chunk)
        return r

    r = prefilled(X)
    assert pressure(s) == 24
    fill_around = [s.decode(r) for _ in range(30)]
    assert all(fill_around), "decoding"
    s.finish(r)
    s.finish(prefilled(Y, chunk=8))
    s.finish(prefilled([*X, 30]))
    s.finish(prefilled([*Y, 30], chunk=8))
    counts = s.cache.statistics.counts
    assert counts.evictions >= 4
    assert counts.promotions >= 1 if host else counts.phantoms >= 0
    assert pressure(s) == 0
