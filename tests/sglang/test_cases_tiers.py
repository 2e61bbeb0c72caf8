"""Faults from the field on the adapter: what moves between the tiers, fails, waits and is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penelope.policy import Residency
from penelope.runtime.store import StoreError
from tests.sglang.steps import Steps

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.smoke,
    pytest.mark.usefixtures("sglang_settings"),
]

X = list(range(1, 25))
Y = list(range(101, 125))
HOST = Residency.HOST


@contextmanager
def failing(s: Steps, monkeypatch: pytest.MonkeyPatch, *numbers: int) -> Iterator[list[str]]:
    """Copies fail by their number; what was asked for is told."""
    assert s.cache.host is not None
    memory, told = s.cache.host, list[str]()
    copy = memory.copy

    def sometimes(device: Any, host: Any, target: Residency) -> None:
        told.append(target.value)
        if len(told) in numbers:
            raise StoreError("the copy was made to fail")
        copy(device, host, target)

    with monkeypatch.context() as patch:
        patch.setattr(memory, "copy", sometimes)
        yield told


def on_host(s: Steps, tokens: list[int]) -> None:
    """Put a history there, and nothing on the device."""
    s.serve(tokens)
    s.press(s.allocator.size)
    assert s.show(tokens) == "C" * (len(tokens) // s.page)


def test_case_16_an_abort_while_kv_is_brought_back_leaves_nothing_in_transfer() -> None:
    """A load ends in the call that begins it: no completion can stay away or come too late."""
    s = Steps(pool=64, host=64, swap=8)
    on_host(s, X)
    r = s.request("r", [*X, 30])
    batch = s.launch(s.admit(r).can_run_list)
    assert not s.cache.state.moves
    s.finish(r, checkpoint=False)
    assert batch.reqs == [r]
    assert (s.show(X), s.allocator.available_size()) == ("GGGGGG", 64 - 24)
    assert not s.cache.state.leases


def test_case_37_a_copy_that_fails_makes_a_hole_and_nothing_that_is_called_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s = Steps(pool=48, host=64, swap=8)
    s.serve(X)
    with failing(s, monkeypatch, 1) as told:
        s.press(48 - 24 + 8)
    assert told == ["host"]
    assert s.show(X) == "__GGGG"
    counts = s.cache.statistics.counts
    assert (counts.failed_moves, counts.evicted_tokens, counts.demoted_tokens) == (1, 8, 0)
    # With no room on the host it is dropped without a copy being tried.
    small = Steps(pool=48, host=8, swap=8)
    small.serve(X)
    small.press(48 - 24 + 8)
    assert small.show(X) == "__GGGG"
    assert small.cache.state.totals.host == 0


LONG = [list(range(k, k + 56)) for k in (1, 101)]
"""Two histories, each of which fills a tier of 64 tokens but for what SGLang wants in reserve."""


def test_case_38_an_exchange_between_full_tiers_keeps_what_is_being_loaded() -> None:
    s = Steps(pool=64, host=60, swap=4)
    on_host(s, LONG[0])
    s.serve(LONG[1])
    s.serve([*LONG[0], 900])
    assert [s.show(history) for history in LONG] == ["G" * 14, "C" * 14]
    counts = s.cache.statistics.counts
    assert (counts.promoted_tokens, counts.evicted_tokens) == (56, 0)
    assert counts.swaps >= 4, "the two changed places through the buffer"


@pytest.mark.parametrize("swap", [4, 8])
def test_case_44_a_demotion_never_writes_over_what_is_being_promoted(swap: int) -> None:
    """Every slot is read after every step: the KV that a request finds is its own history's."""
    s = Steps(pool=64, host=56 + swap, swap=swap)
    for turn in range(12):
        s.serve([*LONG[turn % 2], 900 + turn])
        assert s.show(LONG[turn % 2]) == "G" * 14
    counts = s.cache.statistics.counts
    assert (counts.promoted_tokens, counts.evicted_tokens, counts.phantoms) == (10 * 56, 0, 0)
    assert counts.swaps >= 20


def test_case_46_a_match_that_eviction_has_overtaken_is_made_again() -> None:
    """SGLang matches a request, then serves others; before it is admitted it is matched anew."""
    s = Steps(pool=64, host=32, swap=8)
    on_host(s, X)
    r = s.request("r", [*X, 30])
    r.init_next_round_input(s.cache)
    assert r.host_hit_length == 24
    for start in (200, 300, 400):
        s.serve(list(range(start, start + 40)))
    assert set(s.show(X)) <= {"_", "C"}
    assert s.show(X) != "CCCCCC"
    assert r in s.prefill(r)
    s.finish(r)
    assert s.show(X) == "GGGGGG"


def test_case_46_host_kv_that_is_evicted_between_admission_and_load_is_locked_instead() -> None:
    s = Steps(pool=64, host=32, swap=8)
    on_host(s, X)
    r = s.request("r", [*X, 30])
    r.init_next_round_input(s.cache)
    with s.admit()._lock_node(r.last_node):
        for start in (200, 300, 400):
            s.serve(list(range(start, start + 40)))
        assert s.show(X) == "CCCCCC"
        assert s.cache.bring(r.last_node)
        assert s.show(X) == "GGGGGG"


def test_case_47_what_a_retracted_request_wants_back_is_never_stored_and_loaded_at_once() -> None:
    s = Steps(pool=72, host=72, swap=8)
    s.serve(X)
    r = s.request("r", [*X, 30], new=2)
    other = s.request("other", Y, new=2)
    s.prefill(r, other)
    assert not all(s.decode(r, other) for _ in range(50))
    (gone,) = s.retract(r, other)
    # The one that goes on takes memory until what the other left has begun to leave.
    stays = other if gone is r else r
    for _ in range(50):
        if "C" not in s.show(X) + s.show(Y):
            assert s.decode(stays)
    left = s.show(list(gone.origin_input_ids)[:24])
    assert ("C" in left, len(s.cache.state.moves)) == (True, 0)
    s.finish(stays)
    assert gone in s.prefill(gone)
    counts = s.cache.statistics.counts
    assert (counts.promoted_tokens, counts.phantoms) == (4 * left.count("C"), 0)
    s.finish(gone)


@pytest.mark.parametrize("wrong", [1, 2, 3, 5, 8])
def test_case_52_a_failed_load_leaves_its_part_on_the_host_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    """Whichever copy of an exchange fails, nothing is computed on KV that did not come."""
    s = Steps(pool=64, host=60, swap=4)
    on_host(s, LONG[0])
    s.serve(LONG[1])
    r = s.request("r", [*LONG[0], 900])
    with failing(s, monkeypatch, wrong) as told:
        assert s.prefill(r) == []
    assert len(told) == wrong
    came = s.show(LONG[0]).count("G")
    assert s.show(LONG[0]) == "G" * came + "C" * (14 - came)
    counts = s.cache.statistics.counts
    assert (counts.failed_moves, counts.promoted_tokens) == (1, 4 * came)
    assert not s.cache.state.leases
    assert r in s.prefill(r)
    s.finish(r)
    assert s.show(LONG[0]) == "G" * 14
    assert (counts.promoted_tokens, counts.phantoms, counts.evicted_tokens) == (56, 0, 0)


def test_case_53_more_than_fits_the_host_is_dropped_and_the_next_calls_work() -> None:
    s = Steps(pool=48, host=16, swap=8)
    s.serve(X)
    s.press(48)
    counts = s.cache.statistics.counts
    assert (counts.demoted_tokens, counts.evicted_tokens) == (8, 16)
    assert s.show(X) == "____CC"
    s.serve([*X, 30])
    s.press(48)
    assert s.cache.state.totals.host == 8


def test_case_58_three_sessions_that_fit_both_tiers_together_lose_nothing() -> None:
    """Demoted when memory is short and in one tier only: 12 blocks fit in 6 + 8 but one."""
    s = Steps(pool=28, host=36, swap=4)
    sessions = [list(range(k, k + 17)) for k in (1, 101, 201)]
    for session in sessions:
        s.serve(session)
    for _ in range(9):
        for session in sessions:
            s.serve(session)
    counts = s.cache.statistics.counts
    assert counts.evicted_tokens == 0
    assert counts.promoted_tokens >= 9 * 2 * 16


def test_case_83_each_tier_tells_what_it_holds_and_what_of_that_can_be_had() -> None:
    s = Steps(pool=64, host=40, swap=8)
    s.serve(X)
    s.press(64 - 16)
    r = s.request("r", Y)
    s.prefill(r)
    told = s.cache.statistics.snapshot()
    assert (told["device_tokens"], told["host_tokens"], told["hole_tokens"]) == (40, 8, 0)
    assert (told["evictable_device_tokens"], told["evictable_host_tokens"]) == (16, 8)
    assert told["dropped_unread_tokens"] == 0
    assert (s.cache.evictable_size(), s.cache.protected_size()) == (16, 24)
    assert s.cache.total_size() == 40
    s.finish(r)
    # A full tier that is overrun is not the same as one that was never used.
    s.press(64)
    before = s.cache.statistics.snapshot()
    assert (before["host_tokens"], before["evictable_host_tokens"]) == (32, 32)
    s.serve([*range(300, 348)])
    s.press(64)
    told = s.cache.statistics.snapshot()
    assert (told["host_tokens"], told["promoted_tokens"]) == (32, 0)
    # Of the 48 that came 16 did not fit and were dropped from the device; 32 took the place of
    # what nobody had read.
    assert told["evicted_tokens"] - before["evicted_tokens"] == 48
    assert told["dropped_unread_tokens"] - before["dropped_unread_tokens"] == 32
