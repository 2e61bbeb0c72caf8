"""Faults from the field, about two tiers: what a move may do.  Numbers: docs/faults.md."""

from __future__ import annotations

import pytest

from penelope.policy import (
    Adopt,
    Config,
    Effect,
    Free,
    InFlight,
    InsufficientSpace,
    InvalidConfigError,
    Moved,
    NothingToMove,
    Residency,
    StalePlan,
    Transfer,
    UnknownMove,
    next_demotion,
)
from penelope.runtime.gauges import Flow, Gauge, gauge
from tests.cases.scene import Scene, key
from tests.property.ledger import Ledger
from tests.property.reading import units_of

G, C = Residency.DEVICE, Residency.HOST


def on_host(s: Scene, history: str) -> None:
    """Put a history there, and then all of it on the host."""
    s.insert(history)
    s.move(history, 0, C)
    assert s.show(history) == "C" * len(history)


@pytest.mark.parametrize("way_out", ["before its moves", "in the middle", "after its moves"])
def test_case_1_a_request_that_waits_for_moves_lets_go_on_every_exit(way_out: str) -> None:
    s = Scene(capacity=6, keeps=4, swap=2)
    on_host(s, "abcd")
    r = s.begin("abcde")
    assert s.state.totals.promote == 4
    if way_out == "in the middle":
        moving = s.next(r)
        assert moving is not None
        s.arrive(s.depart(moving._replace(end=2)))
    elif way_out == "after its moves":
        s.carry_out(r)
    s.release(r)
    totals = s.state.totals
    assert (totals.promote, totals.due, totals.reserved, s.state.protected) == (0, 0, 0, 0)
    assert s.evict(4).freed == 4


def test_case_8_a_request_never_evicts_its_own_hit_on_the_host() -> None:
    s = Scene(capacity=6, keeps=4, swap=2)
    on_host(s, "abcd")  # least recently used, and what the request continues
    s.insert("uvwxyz")
    done = s.admit(s.plan("abcdef"))
    assert [(e.start, e.end, e.tier) for e in done.effects if isinstance(e, Free)] == [(0, 2, G)]
    s.carry_out(done.receipt)
    assert s.checkpoint(done.receipt, "abcdef").adopted == 2
    assert (s.show("abcdef"), s.show("uvwxyz")) == ("GGGGGG", "__CCCC")


def test_case_14_a_move_and_a_request_never_undo_each_others_lock() -> None:
    s = Scene(capacity=6, keeps=4, swap=2)
    s.insert("abcd")
    r = s.lock("abcd")
    # Ours: what is in use may not leave at all.
    with pytest.raises(NothingToMove, match="in use"):
        s.move("abcd", 0, C)
    s.release(r)
    s.move("abcd", 0, C)
    r = s.lock("abcd")
    move = s.depart(s.transfer("abcd", 0, G))
    (node,) = (n for n in s.state.nodes.values() if not n.is_root)
    assert node.locks == 2
    s.arrive(move)
    (node,) = (n for n in s.state.nodes.values() if not n.is_root)
    assert (node.locks, s.state.protected) == (1, 4)
    s.release(r)


def test_case_16_what_an_aborted_request_was_loading_has_an_owner_and_can_be_failed() -> None:
    s = Scene(capacity=6, keeps=4, swap=2)
    on_host(s, "abcd")
    r = s.begin("abcde")
    transfer = s.next(r)
    assert transfer is not None
    move = s.depart(transfer)
    s.release(r)  # aborted, and the completion never comes
    for _ in range(1_000):
        s.release(s.begin("x"))
    assert gauge(s.state, G) == Gauge(resident=0, evictable=0, in_transfer=4, orphaned=4)
    assert s.state.free == 2
    s.give_up(move)
    assert (s.state.free, gauge(s.state, G).in_transfer) == (6, 0)
    # The slots have a new owner when the completion comes after all.
    s.release(s.serve("uvwxyz"))
    before = s.state
    with pytest.raises(UnknownMove):
        s.arrive(move)
    assert s.state is before
    assert (s.show("abcd"), s.show("uvwxyz")) == ("CCCC", "GGGGGG")


def test_case_17_a_request_whose_hits_are_all_on_the_device_pins_nothing_on_the_host() -> None:
    s = Scene(capacity=6, keeps=4, swap=2)
    on_host(s, "wxyz")
    s.insert("abcd")
    for _ in range(100):
        r = s.begin("abcde")
        assert s.next(r) is None
        s.release(r)
        assert gauge(s.state, C) == Gauge(resident=4, evictable=4, in_transfer=0, orphaned=0)
    assert s.evict(8).freed == 8


def test_case_34_a_span_that_is_split_while_it_leaves_arrives_whole() -> None:
    s = Scene(capacity=12, keeps=10, swap=2)
    s.insert("abcdefgh")
    move = s.depart(s.transfer("abcdefgh", 0, C))
    # Ours: KV is not offered for a span that is on its way; another use may still cut it.
    with pytest.raises(InFlight):
        s.insert("abcdxx")
    s.touch("abcd")
    s.touch("ab")
    assert s.ends() == [(0, 2), (2, 4), (4, 8)]
    effects = s.arrive(move).effects
    moved = [(e.start, e.end, e.target) for e in effects if isinstance(e, Moved)]
    assert moved == [(0, 2, C), (2, 4, C), (4, 8, C)]
    assert s.show("abcdefgh") == "CCCCCCCC"
    s.insert("abcdxx")
    # What was offered beside the host copy is on the device now, and only there.
    assert (s.show("abcdefgh"), s.show("abcdxx")) == ("GGGGCCCC", "GGGGGG")


def test_case_37_what_does_not_fit_the_host_is_dropped_and_never_called_saved() -> None:
    s = Scene(capacity=4, keeps=2, swap=2)
    on_host(s, "ab")
    pinned = s.lock("ab")
    s.insert("wxyz")
    done = s.evict(1)
    assert done.freed == 2  # a block of two
    assert [(e.start, e.end, e.tier) for e in done.effects if isinstance(e, Free)] == [(0, 2, G)]
    assert (s.show("wxyz"), s.show("ab")) == ("__GG", "CC")
    s.release(pinned)


def test_case_40_any_mix_of_tiers_and_holes_on_a_history_is_legal() -> None:
    s = Scene(capacity=6, keeps=6, swap=2)
    s.insert("abcdef")
    head = next_demotion(s.state, 6)
    assert head is not None
    s.arrive(s.depart(head._replace(start=2, end=4)))
    assert s.show("abcdef") == "GGCCGG"
    # The host span in the middle is the next to go, because the one above it is in use.
    r = s.lock("ab")
    s.evict(2)
    assert s.show("abcdef") == "GG__GG"
    s.move("abcdef", 4, C)
    assert s.show("abcdef") == "GG__CC"
    s.move("abcdef", 4, G)
    s.release(r)
    assert s.show("abcdef") == "GG__GG"


def test_case_40_what_is_on_its_way_in_keeps_what_is_above_it() -> None:
    """Ours: a move locks its path, so what leads to it is not dropped until it has arrived."""
    s = Scene(capacity=6, keeps=6, swap=2)
    s.insert("abcdef")
    last = s.transfer("abcdef", 0, C)._replace(start=4)
    s.arrive(s.depart(last))
    move = s.depart(s.transfer("abcdef", 4, G))
    assert s.show("abcdef") == "GGGG<<"
    with pytest.raises(InsufficientSpace):
        s.evict(1)
    s.arrive(move)
    s.evict(1)
    assert s.show("abcdef") == "__GGGG"


def test_case_41_a_host_smaller_than_the_device_holds_other_kv_than_the_device() -> None:
    s = Scene(capacity=4, block=1, keeps=2, swap=1)
    s.release(s.serve("abcd"))
    assert (s.state.totals.device, s.state.totals.host) == (4, 0)
    r = s.begin("xy")
    s.carry_out(r)
    assert (s.state.totals.device, s.state.totals.host) == (2, 2)
    s.checkpoint(r, "xy")
    s.release(r)
    assert (s.state.totals.device, s.state.totals.host) == (4, 2)
    assert (s.show("abcd"), s.show("xy")) == ("CCGG", "GG")


def test_case_43_moving_a_span_to_where_it_is_is_refused() -> None:
    s = Scene(capacity=12, keeps=12, swap=2)
    s.insert("abcd")
    with pytest.raises(NothingToMove, match="idle KV on the host"):
        s.move("abcd", 0, G)
    s.move("abcd", 0, C)
    before = s.state
    with pytest.raises(NothingToMove, match="idle KV on the device"):
        s.move("abcd", 0, C)
    assert s.state is before
    move = s.depart(s.transfer("abcd", 0, G))
    for target in (G, C):
        with pytest.raises(NothingToMove):
            s.depart(s.transfer("abcd", 0, target))
    s.arrive(move)
    assert (s.show("abcd"), s.state.totals.inbound) == ("GGGG", 0)


def test_case_43_a_load_that_failed_is_still_owed_and_asked_for_again() -> None:
    s = Scene(capacity=6, keeps=4, swap=2)
    on_host(s, "abcd")
    r = s.begin("abcde")
    first = s.next(r)
    assert first is not None
    s.give_up(s.depart(first))
    assert (s.state.totals.promote, s.next(r)) == (4, first)
    assert s.carry_out(r) == [first]


def test_case_46_another_requests_admission_takes_host_kv_that_a_plan_counted_on() -> None:
    s = Scene(capacity=8, keeps=6, swap=2)
    on_host(s, "abcdef")
    s.insert("stuvwxyz")
    stale = s.plan("abcdefg")
    assert (stale.match.host, stale.holes) == (6, ())
    s.release(s.serve("kl"))
    with pytest.raises(StalePlan):
        s.admit(stale)
    fresh = s.plan("abcdefg")
    assert (fresh.match.host, fresh.holes) == (4, ((0, 2),))


@pytest.mark.parametrize("way", ["cancel", "wait"])
def test_case_47_a_span_that_leaves_is_not_fetched_until_it_has_left_or_stays(way: str) -> None:
    s = Scene(capacity=6, keeps=4, swap=2)
    s.insert("abcd")
    move = s.depart(s.transfer("abcd", 0, C))
    found = s.match("abcde")
    assert (found.leaving, found.device, found.host, found.arriving) == (4, 0, 0, 0)
    with pytest.raises(InFlight):
        s.begin("abcde")
    for target in (G, C):
        with pytest.raises(NothingToMove):
            s.depart(s.transfer("abcd", 0, target))
    assert len(s.state.moves) == 1
    if way == "cancel":
        s.give_up(move)
        assert s.next(s.begin("abcde")) is None
    else:
        s.arrive(move)
        r = s.begin("abcde")
        assert [t.target for t in s.carry_out(r)] == [G]
    assert s.show("abcd") == "GGGG"


def test_case_55_a_slow_host_bounds_what_leaves_and_nobody_spins() -> None:
    s = Scene(capacity=5, block=1, keeps=2, swap=2)
    s.insert("abcde")
    done = s.admit(s.plan("vwxyz"))
    assert done.freed == 3  # the two tiers together lose three, and two will leave
    transfer = s.next(done.receipt)
    assert transfer is not None
    move = s.depart(transfer)
    for _ in range(100):
        assert gauge(s.state, C).in_transfer == 2
        assert s.next(done.receipt) is None  # wait: there is nothing else to do
        assert next_demotion(s.state, 1) is None
        before = s.state
        # Ours: room that was promised is nobody else's, and a refusal walks over nothing.
        with pytest.raises(InsufficientSpace):
            s.begin("q")
        assert s.state is before
    s.arrive(move)
    assert gauge(s.state, C) == Gauge(resident=2, evictable=2, in_transfer=0, orphaned=0)
    s.carry_out(done.receipt)
    assert s.checkpoint(done.receipt, "vwxyz").adopted == 5


def test_case_55_loads_go_before_stores() -> None:
    s = Scene(capacity=6, block=1, keeps=4, swap=2)
    on_host(s, "abcd")
    s.insert("vwxyz")
    done = s.admit(s.plan("abcdef"))
    # One was dropped, so two are free: they are loaded into before anything leaves.
    moved = [(t.target, t.length) for t in s.carry_out(done.receipt)]
    assert moved == [(G, 2), (C, 4), (G, 2)]


def test_case_55_more_than_fits_the_host_is_not_put_in_flight() -> None:
    s = Scene(capacity=8, block=1, keeps=1, swap=2)
    s.insert("abcdefgh")
    whole = s.transfer("abcdefgh", 0, C)
    with pytest.raises(NothingToMove, match="8 units do not fit the host, where 3 are free"):
        s.depart(whole)
    s.depart(whole._replace(end=3))
    with pytest.raises(NothingToMove, match="do not fit"):
        s.depart(s.transfer("abcdefgh", 3, C)._replace(end=4))


def test_case_59_device_room_comes_with_the_completion_and_the_next_block_is_found() -> None:
    s = Scene(capacity=3, block=1, keeps=3, swap=1)
    s.insert("abc")
    first = next_demotion(s.state, 2)
    assert first is not None
    assert (first.start, first.end) == (0, 2)
    move = s.depart(first)
    assert s.state.free == 0
    s.arrive(move)
    assert s.state.free == 2
    rest = next_demotion(s.state, 1)
    assert rest is not None
    assert (rest.start, rest.end) == (2, 3)
    s.arrive(s.depart(rest))
    assert (s.state.free, s.show("abc")) == (3, "CCC")


def test_case_82_replaying_the_effects_rebuilds_the_tier_of_every_span() -> None:
    s, ledger = Scene(capacity=12, keeps=10, swap=2), Ledger()

    def followed(effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        ledger.follow(effects)
        ledger.check(s.state)
        return effects

    for history in ("abcdef", "abcdxy"):
        units = units_of(s.state.config, key(history))
        ledger.follow(s.insert(history).effects, ((None, None), units, 0), len(history))
        ledger.check(s.state)
    move = s.depart(s.transfer("abcdef", 4, C))
    ledger.check(s.state)  # what has not arrived is still where it was, and nowhere else
    followed(s.touch("abcde").effects)  # cuts what is on its way
    arrived = followed(s.arrive(move).effects)
    assert [(e.start, e.end) for e in arrived if isinstance(e, Moved)] == [(4, 5), (5, 6)]
    followed(s.touch("abcdef").effects)
    for target in (G, C):
        effects = followed(s.arrive(s.depart(s.transfer("abcdef", 4, target))).effects)
        assert [type(e) for e in effects] == [Moved], "neither a drop nor a store: one move"
    # The last copy goes from the tier that has it.
    gone = [e for _ in range(4) for e in followed(s.evict(2).effects) if isinstance(e, Free)]
    assert [(e.start, e.tier) for e in gone] == [(4, G), (0, G), (2, G), (4, C)]


def test_case_82_a_parent_is_adopted_before_its_child() -> None:
    s = Scene(block=2)
    s.insert("abcdef")
    s.lock("ab")
    s.evict(2)
    effects = s.insert("abcdefgh").effects
    assert [e.start for e in effects if isinstance(e, Adopt)] == [2, 6]


def test_case_83_idle_in_transfer_and_never_read_again_are_separate_numbers() -> None:
    s = Scene(capacity=6, block=1, keeps=4, swap=1)
    flow = Flow()
    for history in "abc":
        s.insert(history)
        flow = flow.after(s.arrive(s.depart(s.transfer(history, 0, C))).effects)
    s.insert("d")
    s.depart(s.transfer("d", 0, C))
    assert gauge(s.state, C) == Gauge(resident=3, evictable=3, in_transfer=1, orphaned=0)
    assert (flow.demoted, flow.dropped_unread) == (3, 0)
    flow = flow.after(s.evict(2).effects)
    assert gauge(s.state, C) == Gauge(resident=1, evictable=1, in_transfer=1, orphaned=0)
    assert (flow.demoted, flow.dropped_unread, flow.dropped) == (3, 2, 0)
    assert gauge(s.state, G) == Gauge(resident=1, evictable=0, in_transfer=0, orphaned=0)


def test_case_83_host_kv_that_is_computed_again_is_neither_read_nor_dropped() -> None:
    s = Scene(capacity=6, keeps=4, swap=2)
    on_host(s, "abcd")
    assert Flow().after(s.insert("abcd").effects) == Flow(replaced=4)
    assert gauge(s.state, C).resident == 0
    with pytest.raises(ValueError, match="no tier"):
        gauge(s.state, Residency.HOLE)


def test_two_tiers_need_a_swap_buffer() -> None:
    """Ours, for cases 38 and 44: there is no exchange without a buffer that could lose KV."""
    with pytest.raises(InvalidConfigError, match="at least one block"):
        Config(4, 1, 2, host_capacity=4, swap_buffer=0)


def test_a_transfer_that_the_state_did_not_offer_still_has_to_fit() -> None:
    s = Scene(capacity=4, page=2, keeps=2, swap=2)
    s.insert("abcd")
    node = s.transfer("abcd", 0, C).node
    for start, end in ((0, 3), (1, 2), (2, 2), (2, 6), (-2, 2)):
        with pytest.raises(NothingToMove):
            s.depart(Transfer(node, start, end, C))
    assert not s.state.moves
