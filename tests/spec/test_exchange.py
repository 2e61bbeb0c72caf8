"""T1, T2 and T3 are about this code: real exchanges, step by step, in the numbers of the lemmas."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest

from penelope.policy import (
    Config,
    Receipt,
    Refused,
    Residency,
    State,
    admit,
    begin_move,
    checkpoint,
    empty,
    end_move,
    evict,
    insert,
    next_demotion,
    next_transfer,
    pack,
    plan,
    refill,
    release,
    reserve,
    settle_promise,
)
from penelope_spec.logic import Truth
from penelope_spec.smt import true_of
from penelope_spec.swap import DEMOTION, IN_PAGES, PLAN, PROMOTION
from tests.spec.test_tiers import carried, moving, required, settled
from tests.spec.tiered import Tiered, tiered_configs

CONFIGS = list(tiered_configs())


def holds(claims: Mapping[str, Truth], **numbers: int) -> bool:
    """Whether the claims of the lemmas are true of these numbers."""
    return all(true_of(claim, numbers) for claim in claims.values())


def numbers(state: State, receipt: Receipt) -> dict[str, int]:
    """Where an exchange for the receipt stands, in pages."""
    lease, page = state.leases[receipt.id], state.config.page_size
    free, rest = divmod(state.free, page)
    due = max(0, -((rest - lease.due) // page))
    if lease.due > rest:
        counted = {"page": page, "rest": rest, "due_units": lease.due, "free_units": state.free}
        assert holds(IN_PAGES, free=free, due=due, **counted)
    moved = {
        "keeps": state.config.host_resident,
        "buffer": state.config.swap_buffer,
        "host": state.host_used,
        "promote": lease.promote,
    }
    assert not any(units % page for units in moved.values()), "what moves is whole pages"
    return {"free": free, "due": due, **{name: units // page for name, units in moved.items()}}


def exchanges(config: Config, seed: int) -> Iterator[tuple[State, Receipt]]:
    """Sessions that take turns and do not fit both tiers: each waits for moves, one at a time."""
    chance, state = random.Random(seed), empty(config)
    length = config.device_capacity * 3 // 4 // config.page_size * config.page_size
    sessions = [[name] * length for name in range(2 + config.logical_capacity // length)]
    for _ in range(30):
        units = chance.choice(sessions)
        planned = plan(state, pack([*units, 99]))
        done = admit(state, planned)
        state = done.state
        if done.pending:
            yield state, done.receipt
        state = settle_promise(carried(state, done.receipt), done.receipt).state
        grown = 1 + chance.randrange(2 * config.page_size)  # an output: any number of units
        with suppress(Refused):
            state = reserve(state, done.receipt, grown).state
            if state.leases[done.receipt.id].due:
                yield state, done.receipt
            state = settle_promise(carried(state, done.receipt), done.receipt).state
        for start, stop in planned.holes:
            state = refill(state, done.receipt, start, stop).state
        state = checkpoint(state, done.receipt, pack(units)).state
        state = release(state, done.receipt).state


def test_every_exchange_goes_as_the_lemmas_say() -> None:
    """Sound at every step, each step within its bounds, done in the end, the buffer empty."""
    promoted = demoted = staged = limited = 0
    for config in CONFIGS:
        for seed in range(1):
            for state, receipt in exchanges(config, seed):
                assert holds(PLAN.sound(), **numbers(state, receipt))
                while (transfer := next_transfer(state, receipt)) is not None:
                    pages = transfer.length // config.page_size
                    now = {**numbers(state, receipt), "units": pages}
                    promotes = transfer.target is Residency.DEVICE
                    assert holds(PROMOTION if promotes else DEMOTION, **now), now
                    limited += not promotes and pages < min(
                        now["due"] + now["promote"] - now["free"],
                        state.nodes[transfer.node].length // config.page_size,
                    )
                    begun = begin_move(state, transfer)
                    state = end_move(begun.state, begun.move).state
                    assert holds(PLAN.sound(), **numbers(state, receipt)), now
                    promoted, demoted = promoted + promotes, demoted + (not promotes)
                    staged += state.staged > 0
                state = settle_promise(state, receipt).state
                assert state.staged == 0
    assert min(promoted, demoted) > 50
    assert staged > 10
    assert limited > 10, "the buffer, and nothing else, must have limited a demotion"
    assert any(config.page_size > 1 for config in CONFIGS)


def test_what_fits_the_device_can_be_dropped_for() -> None:
    """T1: the device check alone decides, wherever its premise about locked host KV holds."""
    decided = {True: 0, False: 0}
    for config in CONFIGS:
        for done in Tiered(config, seed=3).run(150):
            state, totals = done.before, done.before.totals
            if done.transition != "admit":
                continue
            planned = done.facts["plan"]
            premise = totals.locked_host <= (config.host_resident + totals.promote + totals.inbound)
            fits = planned.allocate <= state.free + planned.available
            if premise and not planned.match.leaving:
                assert not fits or planned.evict <= planned.droppable
                decided[fits] += 1
    assert min(decided.values()) > 50, decided


def test_the_next_demotion_may_always_begin() -> None:
    """What the walk finds is idle KV on the device that nobody holds."""
    begun = 0
    for config in CONFIGS:
        for done in Tiered(config, seed=5).run(100):
            state = done.after
            transfer = next_demotion(state, config.page_size)
            if transfer is not None and state.host_used + transfer.length <= config.host_capacity:
                begin_move(state, transfer)
                begun += 1
            elif transfer is None:
                assert all(
                    node.locks or node.residency is not Residency.DEVICE
                    for node in state.nodes.values()
                ), "below unlocked device KV there is some to demote"
    assert begun > 250


# Where z3 breaks a variant, the core does right


def test_the_buffer_is_never_filled_by_one_block_more() -> None:
    """`staging one block too many`: the core asks for no more than promotions will empty."""
    state = settled()
    done = admit(state, plan(state, pack([0, 1, 2, 3, *[20] * 4, 1])))
    state = done.state
    most = 0
    while (transfer := next_transfer(state, done.receipt)) is not None:
        begun = begin_move(state, transfer)
        state = end_move(begun.state, begun.move).state
        most = max(most, state.staged)
    assert 0 < most <= state.config.swap_buffer


def test_a_span_that_is_read_may_not_leave() -> None:
    """`depart takes a locked span off the device`."""
    state = moving()
    locked = next(
        n
        for n in state.nodes.values()
        if n.residency is Residency.DEVICE and n.locks and n.move is None
    )
    transfer = required(next_demotion(settled(), 1))._replace(
        node=locked.id, start=locked.start, end=locked.end
    )
    with pytest.raises(Refused, match="in use"):
        begin_move(state, transfer)


def test_what_is_promoted_is_on_the_host_no_more() -> None:
    """`arrive keeps the host copy of what is promoted`."""
    state = settled()
    done = admit(state, plan(state, pack([0, 1, 2, 3, *[20] * 4, 1])))
    matched = plan(state, pack([0, 1, 2, 3, *[20] * 4, 1])).match
    assert matched.host > 0
    after = carried(done.state, done.receipt)
    way = [n for n in after.nodes.values() if n.locks and n.parent is not None]
    assert {node.residency for node in way} == {Residency.DEVICE}
    assert after.totals.host + after.totals.device == 22 - done.freed


def test_the_order_of_drops_is_not_decided_per_tier() -> None:
    """`drop decided per tier`: the oldest goes first, on the host too.

    The older history lies on the host.  Tiers that evict independently would drop, for room on
    the device, the younger one that lies there.
    """
    state = insert(_small(), pack([1] * 4)).state
    state = insert(state, pack([2] * 4)).state
    older = required(next_demotion(state, 4))
    begun = begin_move(state, older)
    state = end_move(begun.state, begun.move).state
    state = insert(state, pack([3] * 4)).state
    dropped = evict(state, 4)
    left = {bytes(n.key[:4]) for n in dropped.state.nodes.values() if n.parent is not None}
    assert left == {bytes(pack([2])), bytes(pack([3]))}


def _small() -> State:
    return empty(Config(8, 1, 4, host_capacity=8, swap_buffer=4))
