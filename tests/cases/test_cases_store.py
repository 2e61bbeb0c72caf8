"""Faults from the field, about real memory: slots, copies between the tiers, and what they hold.

Every slot of the symbolic store holds a digest of the history it was computed for, and every read
is checked.  Numbers: docs/faults.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from penelope.policy import (
    Config,
    InsufficientSpace,
    MoveId,
    NothingToMove,
    Receipt,
    Residency,
    State,
    Transfer,
    begin_move,
    end_move,
    next_demotion,
    next_transfer,
    pack,
    settle_promise,
)
from penelope.runtime.cache import Cache
from penelope.runtime.replay import arms
from penelope.runtime.replay.caches import Ask
from penelope.runtime.store import StoreError
from penelope.runtime.symbolic import SymbolicStore
from penelope_spec import check_slots, check_state
from tests.cases.scene import Scene
from tests.unit.serving import audit, cached, serve

G, C = Residency.DEVICE, Residency.HOST


class BrokenLink(SymbolicStore):
    """Its copies fail while it is told so, and some of its calls of `free`."""

    broken = False
    bad_frees = 0

    def free(self, slots: Sequence[int], host: Sequence[int] = ()) -> None:
        self.bad_frees -= 1
        if self.bad_frees >= 0:
            raise StoreError("free is out of order")
        super().free(slots, host)

    def copy(self, source: Sequence[int], target: Sequence[int], tier: Residency) -> None:
        if self.broken:
            raise StoreError("the link between the tiers is down")
        super().copy(source, target, tier)


def tiers(
    device: int, keeps: int, swap: int, block: int = 1, page: int = 1
) -> tuple[Cache, BrokenLink]:
    host = keeps + swap
    store = BrokenLink(device, host)
    config = Config(device, page, block, host_capacity=host, swap_buffer=swap)
    return Cache(config, store), store


def demote_all(cache: Cache) -> None:
    while (transfer := next_demotion(cache.state, cache.state.config.device_capacity)) is not None:
        cache.transfer(transfer)


def where(cache: Cache, history: Sequence[int]) -> str:
    """G or C for each unit, _ for a hole; what is gone at the end is left out."""
    letters = {G: "G", C: "C", Residency.HOLE: "_"}
    spans = cache.match(pack([*history, 99])).spans
    return "".join(letters[span.residency] * span.length for span in spans)


@pytest.mark.parametrize(
    "act",
    [
        lambda store, a: store.free([a, a]),
        lambda store, a: store.free([-1]),
        lambda store, a: store.free([4]),
        lambda store, a: (store.free([a]), store.free([a])),
        lambda store, a: store.free([], [a]),
    ],
    ids=["twice in one call", "no slot", "beyond the pool", "already free", "of another tier"],
)
def test_case_25_a_bad_free_changes_nothing_and_later_slots_are_different(
    act: Callable[[SymbolicStore, int], object],
) -> None:
    store = SymbolicStore(4)
    (a,) = store.allocate(1)
    with pytest.raises(StoreError):
        act(store, a)
    taken = store.allocate(4 - store.allocated)
    assert len({*taken}) == len(taken)
    assert len(store.held()) == 4


def test_case_37_a_copy_that_fails_leaves_the_kv_where_it_is_and_says_so() -> None:
    cache, store = tiers(4, keeps=2, swap=2, block=2)
    wxyz = [1, 2, 3, 4]
    cached(cache, store, wxyz)
    store.broken = True
    with pytest.raises(StoreError, match="link"):
        serve(cache, store, [7, 8])
    assert where(cache, wxyz) == "GGGG"
    assert (cache.flow.failed, cache.flow.demoted, store.held(C)) == (2, 0, {})
    audit(cache, store)
    # Eviction needs no host: it drops, and never calls what it dropped saved.
    assert cache.evict(1) == 2
    assert (where(cache, wxyz), cache.flow.dropped) == ("__GG", 2)
    store.broken = False
    cache.release(serve(cache, store, [7, 8]))
    audit(cache, store)


@pytest.mark.parametrize("bad", [1, 2])
def test_case_37_a_move_whose_old_slots_cannot_be_freed_is_not_in_flight_for_ever(bad: int) -> None:
    cache, store = tiers(4, keeps=2, swap=2, block=2)
    wxyz = [1, 2, 3, 4]
    cached(cache, store, wxyz)
    store.bad_frees = bad
    with pytest.raises(StoreError, match="free is out of order"):
        serve(cache, store, [7, 8])
    # One failure is undone at once; after two in a row the move is given up with the next.
    assert len(cache.state.moves) == bad - 1
    assert cache.state.totals.device == 4
    running = serve(cache, store, [7, 8])
    assert not cache.state.moves
    audit(cache, store, running)


def test_case_38_an_exchange_never_loses_what_it_is_loading() -> None:
    cache, store = tiers(3, keeps=2, swap=1)
    x, y = [1, 2], [7, 8, 9]
    cached(cache, store, x)
    demote_all(cache)
    cached(cache, store, y)
    assert (where(cache, x), where(cache, y)) == ("CC", "GGG")
    # Full on both sides, with one buffer unit: the new token costs one unit, of the idle history.
    running = serve(cache, store, [*x, 3])
    assert (where(cache, [*x, 3]), where(cache, y)) == ("GGG", "_CC")
    assert (cache.flow.promoted, cache.flow.dropped, cache.flow.dropped_unread) == (2, 1, 0)
    audit(cache, store, running)


def test_case_44_a_demotion_never_takes_the_slot_that_is_being_promoted_from() -> None:
    cache, store = tiers(4, keeps=2, swap=2, block=2, page=2)
    k, v = [1, 2], [7, 8]
    cached(cache, store, k)
    demote_all(cache)
    cached(cache, store, v)
    # Both device blocks are needed while the host is full: v leaves through the buffer.
    running = serve(cache, store, [*k, 3, 4])  # reads every slot of its history
    assert (where(cache, k), where(cache, v)) == ("GG", "CC")
    audit(cache, store, running)


def test_case_43_a_thousand_exchanges_between_equal_tiers_leave_the_books_right() -> None:
    cache, store = tiers(8, keeps=8, swap=2)
    rng = random.Random(43)
    sessions = [[10 * i + j for j in range(4)] for i in range(4)]
    exchanges = 0
    while exchanges < 1_000:
        before = cache.flow.promoted
        cached(cache, store, rng.choice(sessions))
        exchanges += cache.flow.promoted > before
        audit(cache, store)
    assert min(cache.flow.demoted, cache.flow.promoted) > 1_000
    host = next(node for node, _ in cache.resident() if node.residency is C)
    with pytest.raises(NothingToMove):
        cache.transfer(Transfer(host.id, host.start, host.end, C))


def test_case_56_two_exchanges_share_the_buffer_and_both_end_however_they_interleave() -> None:
    """Nobody holds a part of the buffer and waits for the rest: every order of the moves ends."""
    s = Scene(capacity=6, block=1, keeps=4, swap=2)
    for history in ("ab", "cd"):
        s.insert(history)
        s.move(history, 0, C)
    s.insert("uvwxyz")
    for history in ("ab", "cd"):
        s.touch(history)
    one, other = s.begin("abA"), s.begin("cdB")
    assert s.state.totals.promote == 4
    pending, seen, both_wait = [s.state], {fingerprint(s.state)}, 0
    while pending:
        state = pending.pop()
        assert check_state(state) == []
        following = [end_move(state, move).state for move in state.moves]
        for receipt in (one, other):
            lease = state.leases[receipt.id]
            if not lease.due and not lease.promote:
                continue
            transfer = next_transfer(state, receipt)
            if transfer is not None:
                following.append(begin_move(state, transfer).state)
            elif not any(move.receipt == receipt.id for move in state.moves.values()):
                following += [done] if (done := settled(state, receipt)) else []
        finished = not state.totals.due and not state.totals.promote and not state.moves
        assert following or finished, f"both wait for ever: {state}"
        both_wait += len(state.moves) > 1
        for after in following:
            mark = fingerprint(after)
            if mark not in seen:
                seen.add(mark)
                pending.append(after)
    assert len(seen) > 20
    assert both_wait > 3, "moves of both were in flight at once"


def settled(state: State, receipt: Receipt) -> State | None:
    """Once its moves are done; None while it waits for those of the other."""
    try:
        return settle_promise(state, receipt).state
    except InsufficientSpace:
        return None


def fingerprint(state: State) -> object:
    """All of a state but the numbers by which its moves go."""
    moves = sorted((m.node, m.start, m.end, m.target.value) for m in state.moves.values())
    nodes = {
        n.id: n._replace(move=None if n.move is None else MoveId(0)) for n in state.nodes.values()
    }
    return str((moves, sorted(nodes.items()), sorted(state.leases.items())))


def test_case_58_copies_made_when_kv_is_evicted_keep_a_working_set_that_early_copies_lose() -> None:
    sessions = [[10 * i + j for j in range(4)] for i in range(3)]
    cache, store = tiers(5, keeps=8, swap=1)
    for turn in range(10):
        for session in sessions:
            plan = cache.plan(pack(session))
            # From the second round on only the last token is computed: twelve units fit 5 + 8.
            assert plan.match.compute == (4 if turn == 0 else 1)
            cached(cache, store, session)
            audit(cache, store)
    assert (cache.flow.dropped, cache.flow.dropped_unread) == (0, 0)
    assert cache.flow.promoted >= 9 * 2 * 3
    # Copied as soon as it is computed, twelve units go round in eight places and are never met.
    config = Config(5, 1, 1, *arms.switches("sglang-hicache"), host_capacity=8, swap_buffer=1)
    mirror, hits = arms.cache("sglang-hicache", config), 0
    for turn in range(10):
        for session in sessions:
            admission = mirror.admit(Ask(pack(session), 3, 0))
            assert admission is not None
            hits += admission.host if turn else 0
            mirror.computed(admission, pack(session))
            mirror.finished(admission, pack(session))
    assert hits == 0


def test_case_23_the_audit_sees_a_block_in_both_tiers_and_a_slot_that_is_also_free() -> None:
    cache, store = tiers(4, keeps=4, swap=1)
    cached(cache, store, [1, 2])
    demote_all(cache)
    cached(cache, store, [7, 8])
    state = cache.state
    (host,) = (node.id for node, _ in cache.resident() if node.residency is C)
    (device,) = (node.id for node, _ in cache.resident() if node.residency is G)
    assert check_slots(state, {device: [0, 1]}, host={host: [2, 3]}) == []
    for broken in (
        check_slots(state, {device: [0, 1], host: [2, 3]}, host={host: [2, 3]}),
        check_slots(state, {device: [0, 1]}, host={}),
        check_slots(state, {device: [0, 1]}, host={host: [2, 3]}, host_free=[3]),
        check_slots(state, {device: [0, 1]}, host={host: [2, 3]}, free=[0]),
    ):
        assert {v.invariant for v in broken} == {"one-copy"}
    off = replace(state, totals=state.totals._replace(host=state.totals.host + 1))
    assert "accounting" in {v.invariant for v in check_state(off)}
    moved = state.nodes.set(host, state.nodes[host]._replace(residency=G))
    assert "accounting" in {v.invariant for v in check_state(replace(state, nodes=moved))}
