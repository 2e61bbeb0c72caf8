"""A state and a store in step: what is committed has happened in both, or in neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from penelope import policy
from penelope.policy import (
    Config,
    Effect,
    MoveId,
    PenelopeError,
    Receipt,
    Residency,
    State,
    Transfer,
)
from penelope.runtime.exchange import exchange
from penelope.runtime.gauges import Flow
from penelope.runtime.slots import SlotTable, Staged
from penelope.runtime.store import KVStore, StoreError

Observer = Callable[[State, str, State, tuple[Effect, ...]], None]
"""Called before a transition is committed: (before, its name, after, effects).

It may raise, and then nothing has happened: the place for an invariant monitor.
"""


class Moment(NamedTuple):
    """A state, and what has happened until then: they belong together."""

    state: State
    flow: Flow


class Keeper:
    """Owns a state, the slots of its nodes, and the store's slots that it has taken."""

    def __init__(self, config: Config, store: KVStore, observer: Observer | None) -> None:
        self.now = Moment(policy.empty(config), Flow())
        self.store = store
        self.slots: SlotTable[list[int]] = SlotTable(lambda pieces: [*chain(*pieces)])
        self._ours: set[int] = set()
        """Every device slot that the tree or a request owns."""
        self._observer = observer

    @property
    def state(self) -> State:
        return self.now.state

    def stage(
        self,
        name: str,
        state: State,
        effects: tuple[Effect, ...],
        mine: list[int] | None = None,
        start: int = 0,
    ) -> Staged[list[int]]:
        """Show a transition to the observer, and work out what it does to the slots.

        `mine` are the caller's slots, from position `start` on.
        """
        if self._observer is not None:
            self._observer(self.state, name, state, effects)
        if mine is None:
            return self.slots.stage(effects)
        return self.slots.stage(effects, lambda low, high: mine[low - start : high - start])

    def commit(self, state: State, staged: Staged[list[int]]) -> None:
        self.slots.commit(staged)
        # One assignment: whoever reads from another thread sees both or neither.
        self.now = Moment(state, self.now.flow.after(staged.effects))

    def do(self, name: str, state: State, effects: tuple[Effect, ...]) -> None:
        """Commit a transition, and free what the tree gives up."""
        staged = self.stage(name, state, effects)
        self.free_all(staged)
        self.commit(state, staged)

    # Slots

    def take(self, units: int) -> list[int]:
        """Device slots of our own."""
        slots = self.store.allocate(units)
        self._ours.update(slots)
        return slots

    def free(self, device: list[int], host: Sequence[int] = ()) -> None:
        if device or host:
            self.store.free(device, host)
            self._ours.difference_update(device)

    def free_all(self, staged: Staged[list[int]], surplus: Sequence[int] = ()) -> None:
        """Free what the tree gives up, and surplus that a request gives up."""
        self.free([*chain(*staged.freed), *surplus], [*chain(*staged.freed_host)])

    def hand_over(self, staged: Staged[list[int]], need: int) -> list[int]:
        """`need` slots: evicted ones first, without a detour through the store."""
        evicted = [*chain(*staged.freed)]
        excess = evicted[need:]
        fresh = self.take(need - len(evicted)) if need > len(evicted) else []
        try:
            self.free(excess, [*chain(*staged.freed_host)])
        except StoreError:
            self.free(fresh)
            raise
        return evicted[:need] + fresh

    def adopt(
        self, name: str, state: State, effects: tuple[Effect, ...], mine: list[int], start: int
    ) -> list[int]:
        """Let the tree take a request's slots; free and return those that it had already."""
        staged = self.stage(name, state, effects, mine, start)
        surplus = _duplicates(staged, mine, start)
        self.free_all(staged, surplus)
        self.commit(state, staged)
        return surplus

    def adopt_from_caller(
        self,
        state: State,
        effects: tuple[Effect, ...],
        mine: list[int],
        start: int,
        unaligned: int,
    ) -> list[int]:
        """As `adopt`, of slots that were the caller's; the unaligned end is surplus too.

        Raises `StoreError` unless all are the caller's, each named once.
        """
        staged = self.stage("insert", state, effects, mine, start)
        surplus = _duplicates(staged, mine, start) + mine[len(mine) - unaligned :]
        new = self._require_the_callers(staged, mine, start)
        self.free_all(staged, surplus)
        self._ours |= new.difference(surplus)
        self.commit(state, staged)
        return surplus

    def _require_the_callers(
        self, staged: Staged[list[int]], mine: list[int], start: int
    ) -> set[int]:
        """The offered slots that are not the tree's own: all the caller's, each named once.

        Costs what is offered, whatever the cache holds.
        """
        own = {slot for slot, owned in _met(staged, mine, start) if slot == owned}
        offered = set(mine)
        if len(offered) != len(mine):
            raise StoreError("a slot is offered twice in one call: one slot for each unit")
        new = offered - own
        if not new.isdisjoint(self._ours):
            raise StoreError(
                f"slot {min(new & self._ours)} is offered and belongs to the cache or to a "
                f"request: hand over what a request has computed with checkpoint()"
            )
        return new

    # Moves

    def after_moves(
        self, state: State, staged: Staged[list[int]], receipt: Receipt, units: int
    ) -> list[int]:
        """Carry out the moves that make room for a promise, and take the slots."""
        self.free_all(staged)
        self.commit(state, staged)
        try:
            for _ in exchange(self, receipt):
                pass
            state, effects = policy.settle_promise(self.state, receipt)
            staged = self.stage("settle_promise", state, effects)
            slots = self.take(units)
        except PenelopeError:
            self.do("forgo_promise", *policy.forgo_promise(self.state, receipt))
            raise
        self.commit(state, staged)
        return slots

    def depart(self, transfer: Transfer) -> MoveId:
        state, effects, move = policy.begin_move(self.state, transfer)
        on_device = transfer.target is Residency.DEVICE
        if on_device:
            fresh = self.take(transfer.length)
        else:
            fresh = self.store.allocate(transfer.length, Residency.HOST)
        try:
            staged = self.stage("begin_move", state, effects, fresh, transfer.start)
        except BaseException:  # an observer that objects may raise anything
            self.free(fresh if on_device else [], [] if on_device else fresh)
            raise
        self.commit(state, staged)
        return move

    def copy(self, move: MoveId, transfer: Transfer) -> None:
        source = self.slots.part(self.state.moves[move].node, transfer.start, transfer.end)
        self.store.copy(source, self.slots.fresh(move), transfer.target)

    def arrive(self, move: MoveId) -> None:
        self.do("end_move", *policy.end_move(self.state, move))

    def give_up(self, move: MoveId) -> None:
        self.do("fail_move", *policy.fail_move(self.state, move))

    def abandon(self) -> None:
        """Give up what a store that would not free has left in flight."""
        for move in sorted(self.state.moves):
            self.give_up(move)


def _duplicates(staged: Staged[list[int]], mine: list[int], start: int) -> list[int]:
    """Offered slots for spans that the tree had already, apart from its very own."""
    return [slot for slot, owned in _met(staged, mine, start) if slot != owned]


def _met(staged: Staged[list[int]], mine: list[int], start: int) -> Iterator[tuple[int, int]]:
    """Offered slots for spans that the tree had already, each with the tree's own."""
    for low, own in staged.surplus:
        yield from zip(mine[low - start :], own, strict=False)
