"""Two tiers: state and step invariants name themselves, and are silent on runs of the core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penelope.policy import (
    Config,
    Copy,
    Free,
    InsufficientSpace,
    Lease,
    MoveId,
    NodeId,
    Receipt,
    ReceiptId,
    Residency,
    State,
    Totals,
    Transfer,
    admit,
    begin_move,
    checkpoint,
    empty,
    end_move,
    evict,
    fail_move,
    insert,
    match,
    next_demotion,
    next_transfer,
    pack,
    plan,
    release,
    settle_promise,
    touch,
)
from penelope_spec import (
    INVARIANTS,
    Facts,
    Kind,
    Trace,
    check_refused,
    check_slots,
    check_state,
    check_step,
)
from tests.spec.test_states import CORRUPTIONS, changed, counted, find, names
from tests.spec.test_steps import BROKEN, Step, lose

SHARED = list(range(4))
LEFT, RIGHT, OTHER = SHARED + [10] * 8, SHARED + [20] * 4, [5] * 6
HOST, DEVICE = Residency.HOST, Residency.DEVICE


def settled() -> State:
    """Both tiers hold KV, nothing runs.

    root ┬─ [0, 2) host ── [2, 4) ┬─ [4, 8) host         the least recent
         │                        └─ [4, 12)
         └─ [0, 6)                                        the most recent
    """
    state = empty(Config(16, 1, 2, host_capacity=16, swap_buffer=4))
    state = insert(state, pack(LEFT)).state
    state = insert(state, pack(RIGHT)).state
    state = touch(state, match(state, pack(LEFT), at_most=12)).state
    done = admit(state, plan(state, pack(OTHER)))
    state = settle_promise(carried(done.state, done.receipt), done.receipt).state
    state = checkpoint(state, done.receipt, pack(OTHER)).state
    return release(state, done.receipt).state


def carried(state: State, receipt: Receipt, until: Residency | None = None) -> State:
    """All transfers of the receipt, one after another; `until` stops before one to that tier."""
    while (transfer := next_transfer(state, receipt)) is not None and transfer.target is not until:
        begun = begin_move(state, transfer)
        state = end_move(begun.state, begun.move).state
    return state


def moving() -> State:
    """The right history comes back: its head is on its way to the device, KV that gave way to it
    stands in the swap buffer, and a piece of the left history is on its way to the host.

    root ┬─ [0, 2) host, arriving ── [2, 4) ┬─ [4, 8) host          locked down to here
         │                                  └─ [4, 11) host ── [11, 12) leaving
         └─ [0, 6)
    """
    state = settled()
    state = admit(state, plan(state, pack([*RIGHT, 1]))).state
    (receipt,) = (Receipt(number) for number in state.leases)
    state = carried(state, receipt, until=DEVICE)
    state = begin_move(state, required(next_transfer(state, receipt))).state
    return begin_move(state, required(next_demotion(state, 2))).state


def required(transfer: Transfer | None) -> Transfer:
    assert transfer is not None
    return transfer


def arriving(state: State) -> NodeId:
    return find(state, 0, 2, LEFT)


def leaving(state: State) -> NodeId:
    return find(state, 11, 12, LEFT)


# Corruptions


def host_too_full(state: State) -> State:
    return replace(state, config=replace(state.config, host_capacity=12))


def move_holds_no_lock(state: State) -> State:
    node = arriving(state)
    return changed(state, node, locks=state.nodes[node].locks - 1)


def mark_lost(state: State) -> State:
    return changed(state, arriving(state), move=None)


def marked_for_a_move_of_another_span(state: State) -> State:
    return changed(state, find(state, 4, 8, RIGHT), move=state.nodes[arriving(state)].move)


def move_of_half_a_node(state: State) -> State:
    number = state.nodes[arriving(state)].move
    assert number is not None
    short = state.moves[number]._replace(start=1)
    return counted(replace(state, moves=state.moves.set(number, short)), inbound=-1)


def move_that_never_began(state: State) -> State:
    return replace(state, next_move=MoveId(0))


def mark_of_no_move(state: State) -> State:
    return changed(state, find(state, 4, 8, RIGHT), move=MoveId(99))


def arrived_before_it_ended(state: State) -> State:
    arrived = changed(state, arriving(state), residency=DEVICE)
    return counted(arrived, device=2, locked=2, host=-2, locked_host=-2)


def leaving_while_in_use(state: State) -> State:
    """Somebody locked what is being demoted, and will read it there."""
    issued = ReceiptId(state.next_receipt)
    node: NodeId | None = leaving(state)
    state = replace(state, leases=state.leases.set(issued, Lease(leaving(state), 0)))
    state = replace(state, next_receipt=issued + 1)
    while node is not None:
        state = changed(state, node, locks=state.nodes[node].locks + 1)
        node = state.nodes[node].parent
    return state


def demotable_entry_missing(state: State) -> State:
    stamp = state.nodes[find(state, 0, 6, OTHER)].stamp
    return replace(state, demotable=state.demotable.remove(stamp))


def demotes_from_under_the_device(state: State) -> State:
    """The shared span leads to device KV: that would leave first."""
    node = state.nodes[find(state, 2, 4, LEFT)]
    return replace(state, demotable=state.demotable.insert(node.stamp, node.id))


def device_below_not_counted(state: State) -> State:
    return changed(state, find(state, 2, 4, LEFT), device_below=0)


def promised_less_than_nothing(state: State) -> State:
    (receipt,) = state.leases
    lease = state.leases[receipt]
    wrong = lease._replace(promote=-1)
    leases = state.leases.set(receipt, wrong)
    return counted(replace(state, leases=leases), promote=-1 - lease.promote)


TIER_CORRUPTIONS: dict[Callable[[State], State], set[str]] = {
    host_too_full: {"accounting", "bounded-swap"},
    move_holds_no_lock: {"lock-balance"},
    mark_lost: {"in-flight"},
    marked_for_a_move_of_another_span: {"in-flight"},
    move_of_half_a_node: {"in-flight"},
    move_that_never_began: {"in-flight"},
    mark_of_no_move: {"in-flight"},
    arrived_before_it_ended: {"one-copy"},
    leaving_while_in_use: {"in-flight"},
    demotable_entry_missing: {"victim-order"},
    demotes_from_under_the_device: {"victim-order"},
    device_below_not_counted: {"victim-order"},
    promised_less_than_nothing: {"accounting"},
}


def test_good_states_have_no_violation() -> None:
    assert check_state(settled()) == []
    state = moving()
    assert check_state(state) == []
    assert state.staged > 0
    assert {move.target for move in state.moves.values()} == {HOST, DEVICE}


@pytest.mark.parametrize("corrupt", TIER_CORRUPTIONS, ids=lambda corrupt: corrupt.__name__)
def test_a_corrupted_state_is_named(corrupt: Callable[[State], State]) -> None:
    corrupted = corrupt(moving())
    assert names(corrupted) == TIER_CORRUPTIONS[corrupt], check_state(corrupted)


def test_every_state_invariant_has_a_corruption() -> None:
    broken = set().union(*CORRUPTIONS.values(), *TIER_CORRUPTIONS.values())
    states = {i.name for i in INVARIANTS.values() if i.kind is Kind.STATE}
    # Of the first the next test is, of the others `test_orders`.
    assert broken == states - {"answers-accepted", "queue-kept", "ranking-kept"}


def test_an_answer_that_is_not_accepted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """No state is at fault then but the core: here one that would demote a part of a page."""

    def careless(state: State, units: int) -> Transfer | None:
        found = next_demotion(state, units)
        return None if found is None else found._replace(end=found.end - 1)

    monkeypatch.setattr("penelope_spec.flight.next_demotion", careless)
    config = Config(8, 2, 2, host_capacity=6, swap_buffer=2)
    state = insert(empty(config), pack([1, 2, 3, 4])).state
    assert names(state) == {"answers-accepted"}
    assert names(counted(state, due=1)) == {"accounting"}, "only sound states are asked"


def test_totals_are_all_recounted() -> None:
    """A counter that nobody recounts could drift unseen."""
    for name in Totals._fields:
        assert names(counted(moving(), **{name: 1})) == {"accounting"}, name


def test_one_tier_keeps_no_order_of_demotion() -> None:
    state = insert(empty(Config(16, 1, 2)), pack(LEFT)).state
    node = state.nodes[find(state, 0, 12, LEFT)]
    wrong = replace(state, demotable=state.demotable.insert(node.stamp, node.id))
    assert names(wrong) == {"victim-order"}
    assert names(changed(state, next(iter(state.roots.values())), device_below=1)) == {
        "victim-order"
    }


# Steps


def ended(state: State) -> MoveId:
    number = state.nodes[arriving(state)].move
    assert number is not None
    return number


def failed_promotion_drops() -> Step:
    """Neither the device copy is taken nor the host copy kept."""
    before = moving()
    number = ended(before)
    done = fail_move(before, number)
    after = changed(done.state, arriving(before), residency=Residency.HOLE)
    return Step(before, after, "fail_move", {"effects": done.effects, "move": number})


def failure_forgets_to_tell() -> Step:
    before = moving()
    done = end_move(before, ended(before))
    return Step(before, done.state, "fail_move", {"effects": (), "move": ended(before)})


def move_gives_kv_to_a_hole() -> Step:
    before = evict(settled(), 2).state
    (hole,) = (n for n in before.nodes.values() if n.residency is Residency.HOLE and n.parent)
    after = changed(before, hole.id, residency=HOST)
    transfer = required(next_demotion(before, 1))
    return Step(before, after, "begin_move", {"effects": (), "transfer": transfer})


def demotes_what_is_locked() -> Step:
    """The shared span, which the running request reads on the device."""
    before = moving()
    node = before.nodes[find(before, 2, 4, LEFT)]
    number = MoveId(before.next_move)
    after = changed(before, node.id, move=number)
    effects = (Copy(number, node.id, 2, 4, HOST),)
    transfer = Transfer(node.id, 2, 4, HOST)
    return Step(before, after, "begin_move", {"effects": effects, "transfer": transfer})


def drops_by_tier() -> Step:
    """The device drops its own least recent history, although the host holds an older one."""
    before = settled()
    after, effects = lose(before, find(before, 4, 12, LEFT))
    return Step(before, after, "evict", {"need": 8, "effects": effects})


def frees_more_than_both_tiers_must_lose() -> Step:
    """The device lacks 8 units; the tiers together lack 2."""
    before = settled()
    units = before.config.logical_capacity - before.logical_used + 2
    done = evict(before, 8)
    return Step(before, done.state, "reserve", {"units": units, "effects": done.effects})


TIER_BROKEN: dict[Callable[[], Step], set[str]] = {
    failed_promotion_drops: {"moves-do-not-evict", "no-in-use-eviction", "effects-tell-all"},
    failure_forgets_to_tell: {"effects-tell-all"},
    move_gives_kv_to_a_hole: {"history-intact", "effects-tell-all"},
    demotes_what_is_locked: {"no-in-use-eviction"},
    drops_by_tier: {"unified-order", "order-followed"},
    frees_more_than_both_tiers_must_lose: {"minimal-eviction", "unified-order"},
}


@pytest.mark.parametrize("make", TIER_BROKEN, ids=lambda make: make.__name__)
def test_a_broken_step_is_named(make: Callable[[], Step]) -> None:
    step = make()
    found = check_step(step.before, step.after, step.transition, **step.facts)
    assert {violation.invariant for violation in found} == TIER_BROKEN[make], found


def test_every_step_invariant_has_a_broken_step() -> None:
    registered = {i.name for i in INVARIANTS.values() if i.on_step is not None}
    assert set().union(*BROKEN.values(), *TIER_BROKEN.values()) == registered
    refusals = {i.name for i in INVARIANTS.values() if i.on_refusal is not None}
    assert refusals == {"progress"}
    assert registered | refusals == {i.name for i in INVARIANTS.values() if i.kind is Kind.STEP}


def test_a_host_copy_that_gives_way_is_not_lost() -> None:
    """Output that meets a host copy: the device copy is adopted, the host slots are free."""
    begun = begin_move(settled(), required(next_demotion(settled(), 4)))
    before = end_move(begun.state, begun.move).state
    done = insert(before, pack(LEFT[:2]))
    freed = [effect for effect in done.effects if isinstance(effect, Free)]
    assert sum(effect.end - effect.start for effect in freed) == 2
    assert {effect.tier for effect in freed} == {HOST}
    assert check_step(before, done.state, "insert", effects=done.effects) == []


def test_more_kv_than_both_tiers_keep_is_dropped_alike_in_one_tier() -> None:
    """What stands in the swap buffer outside an exchange counts against the two tiers together."""
    state = insert(empty(Config(2, 1, 1, host_capacity=1, swap_buffer=1)), pack([0])).state
    begun = begin_move(state, required(next_demotion(state, 1)))
    before = insert(end_move(begun.state, begun.move).state, pack([1, 0])).state
    assert before.logical_used > before.config.logical_capacity
    planned = plan(before, pack([0]), extra=1)
    done = admit(before, planned)
    assert done.freed == 3
    assert check_step(before, done.state, "admit", plan=planned, effects=done.effects) == []


def test_a_promise_that_cannot_be_kept_is_named() -> None:
    """`settle_promise` may be refused while there is something to move, and then only."""
    state = moving()
    (number,) = state.leases
    error = InsufficientSpace("no")
    facts: Facts = {"receipt": Receipt(number)}
    assert check_refused(state, "settle_promise", error, **facts) == []
    for move in list(state.moves):
        state = end_move(state, move).state
    assert check_refused(state, "settle_promise", error, **facts) == []
    state = carried(state, Receipt(number))
    (violation,) = check_refused(state, "settle_promise", error, **facts)
    assert violation.invariant == "progress"
    assert violation.text.endswith("there is nothing to move")


def test_an_eviction_around_a_move_suspends_one_hole() -> None:
    state = moving()
    trace = Trace()
    done = evict(state, 2)
    assert trace.step(state, done.state, "evict", need=2, effects=done.effects) == []
    assert not trace.promised


# Slots


def test_until_a_move_ends_its_span_has_slots_in_both_tiers() -> None:
    state = moving()
    fresh = iter(range(1000))
    owned: dict[Residency, dict[NodeId, list[int]]] = {DEVICE: {}, HOST: {}}
    for node in state.nodes.values():
        if node.residency in owned:
            owned[node.residency][node.id] = [next(fresh) for _ in range(node.length)]
    device, host = owned[DEVICE], owned[HOST]
    going = {n: [next(fresh) for _ in range(m.length)] for n, m in state.moves.items()}
    assert check_slots(state, device, host=host, moving=going) == []

    def told(**slots: dict[MoveId, list[int]] | list[int]) -> str:
        found = check_slots(state, device, host=host, **slots)  # type: ignore[arg-type]
        assert {violation.invariant for violation in found} == {"one-copy"}
        return "; ".join(violation.text for violation in found)

    number = ended(state)
    assert "owns 0 slots, 1 are due" in told(moving={number: going[number]})
    taken = next(slot for slots in device.values() for slot in slots)
    assert f"and to move {number}" in told(moving={**going, number: [taken, 999]})
    assert "is not in flight" in told(moving={**going, MoveId(99): [998]})
    assert "belongs to" in told(moving=going, host_free=[next(iter(host.values()))[0]])
