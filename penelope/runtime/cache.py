"""A cache: the one mutable cell that holds a state, and the store that follows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from penelope import policy
from penelope.policy import (
    DEFAULT_NAMESPACE,
    Config,
    Effect,
    Key,
    Match,
    MoveId,
    Namespace,
    Node,
    PenelopeError,
    Plan,
    Receipt,
    Residency,
    State,
    Transfer,
)
from penelope.runtime.gauges import Flow, Gauge, gauge
from penelope.runtime.slots import SlotTable, Staged
from penelope.runtime.store import KVStore, StoreError

Observer = Callable[[State, str, State, tuple[Effect, ...]], None]
"""Called before a transition is committed: (before, its name, after, effects).

It may raise, and then nothing has happened: the place for an invariant monitor.
"""


@dataclass(eq=False, slots=True)
class Request:
    """A running request: its lock, and the slots that it owns outside the tree."""

    receipt: Receipt
    holes: dict[tuple[int, int], list[int]]
    """Slots for the spans that this request has still to refill."""
    start: int
    """Where `tail` begins: the end of the locked path."""
    tail: list[int]
    """Slots from `start` on: computed or to be computed, not in the tree yet."""

    @property
    def owned(self) -> list[int]:
        """Every slot that the request owns."""
        return [*chain.from_iterable(self.holes.values()), *self.tail]


class Offered(NamedTuple):
    """The answers to an offer of slots."""

    adopted: int
    """Units whose slots the tree owns now."""
    resident: int
    """Units that the tree had already."""
    surplus: list[int]
    """Offered slots that nobody needs: the end that fills no page, and true duplicates.

    The very slot that the tree owns, offered again, is not among them.
    """


class Cache:
    """Owns a state and keeps a store in step with it.

    Each method does all or nothing: when the core refuses or the store fails, the state, the
    store and the request are as they were.  Errors are those of the core's transition of the
    same name, and `StoreError`.
    """

    def __init__(self, config: Config, store: KVStore, observer: Observer | None = None) -> None:
        self._state = policy.empty(config)
        self._store = store
        self._slots: SlotTable[list[int]] = SlotTable(lambda pieces: [*chain(*pieces)])
        self._observer = observer
        self._flow = Flow()

    @property
    def flow(self) -> Flow:
        """What has been moved and dropped so far: counters to export."""
        return self._flow

    def gauge(self, tier: Residency) -> Gauge:
        """What a tier holds now: gauges to export."""
        return gauge(self._state, tier)

    @property
    def state(self) -> State:
        """The current state: a value, safe to keep."""
        return self._state

    def match(self, key: Key, namespace: Namespace = DEFAULT_NAMESPACE) -> Match:
        """What the cache holds of a key.  Changes nothing."""
        return policy.match(self._state, key, namespace)

    def plan(self, key: Key, namespace: Namespace = DEFAULT_NAMESPACE, *, extra: int = 0) -> Plan:
        """What a request would compute and allocate.  Changes nothing."""
        return policy.plan(self._state, key, namespace, extra=extra)

    def touch(self, matched: Match) -> None:
        """Count a match as a use."""
        state, effects = policy.touch(self._state, matched)
        self._commit(state, self._stage("touch", state, effects))

    def admit(self, plan: Plan) -> Request:
        """Start a planned request: lock its path, evict the shortfall, give it its slots.

        Where KV moves between the tiers for it and a copy fails, the request is given up: what
        was moved stays where it is, and nothing is lost but what the plan had to evict.
        """
        state, effects, receipt, _, pending = policy.admit(self._state, plan)
        staged = self._stage("admit", state, effects)
        if pending:
            try:
                slots = self._after_moves(state, staged, receipt, plan.compute)
            except PenelopeError:
                if receipt.id in self._state.leases:
                    state, effects = policy.release(self._state, receipt)
                    self._commit(state, self._stage("release", state, effects))
                raise
        else:
            slots = self._exchange(staged, plan.compute)
            self._commit(state, staged)
        holes = {}
        for start, end in plan.holes:
            holes[start, end], slots = slots[: end - start], slots[end - start :]
        return Request(receipt, holes, plan.match.end, slots)

    def table(self, request: Request, beside: Iterable[Request] = ()) -> list[int]:
        """The slot of each position of a running request, from 0 on.

        Holes that requests of the same batch (`beside`) refill are read from their slots.
        Raises `StoreError` while a hole on the path is being refilled by any other request.
        """
        slots: list[int] = []
        owners = (request, *beside)
        for node in self._path(request):
            if node.residency is Residency.HOLE:
                slots += _owned(owners, node.start, node.end)
            else:
                slots += chain(*self._slots.slots(node.id, node.start, node.end))
        return slots + request.tail

    def refill(self, request: Request, start: int, end: int) -> Offered:
        """Hand over a refilled span, or the next part of it, to the tree."""
        mine = _owned((request,), start, end)
        state, effects, adopted, resident = policy.refill(self._state, request.receipt, start, end)
        surplus = self._adopt("refill", state, effects, mine, start)
        holes: dict[tuple[int, int], list[int]] = {}
        for (low, high), slots in request.holes.items():
            for left, right in ((low, min(high, start)), (max(low, end), high)):
                if left < right:
                    holes[left, right] = slots[left - low : right - low]
        request.holes = holes
        return Offered(adopted, resident, surplus)

    def checkpoint(self, request: Request, key: Key) -> Offered:
        """Hand over what the request has computed of `key`, and extend its lock over it."""
        state, effects, adopted, resident, _ = policy.checkpoint(self._state, request.receipt, key)
        surplus = self._adopt("checkpoint", state, effects, request.tail, request.start)
        done = adopted + resident
        request.start, request.tail = request.start + done, request.tail[done:]
        return Offered(adopted, resident, surplus)

    def grow(self, request: Request, units: int) -> None:
        """Give a running request room for `units` more, evicting the shortfall."""
        state, effects = policy.reserve(self._state, request.receipt, units)
        staged = self._stage("reserve", state, effects)
        if state.leases[request.receipt.id].due:
            slots = self._after_moves(state, staged, request.receipt, units)
        else:
            slots = self._exchange(staged, units)
            self._commit(state, staged)
        request.tail = request.tail + slots

    def release(self, request: Request) -> None:
        """End a request, finished or aborted: unlock its path, free what only it owns."""
        state, effects = policy.release(self._state, request.receipt)
        staged = self._stage("release", state, effects)
        self._free(request.owned, [])
        self._commit(state, staged)
        request.holes, request.tail = {}, []

    def insert(
        self,
        key: Key,
        slots: Sequence[int],
        namespace: Namespace = DEFAULT_NAMESPACE,
        *,
        start: int = 0,
    ) -> Offered:
        """Offer slots that the caller owns for key[start:], one a unit.

        The surplus stays the caller's, to be freed.
        """
        expected = len(key) // self._state.config.unit_bytes - start
        if len(slots) != expected:
            raise StoreError(f"{len(slots)} slots are offered for {expected} units: one for each")
        state, effects, adopted, resident, unaligned = policy.insert(
            self._state, key, namespace, start=start
        )
        mine = list(slots)
        staged = self._stage("insert", state, effects, mine, start)
        surplus = _duplicates(staged, mine, start) + mine[len(mine) - unaligned :]
        self._free_all(staged)
        self._commit(state, staged)
        return Offered(adopted, resident, surplus)

    def evict(self, need: int) -> int:
        """Drop at least `need` units, in either tier; how many were dropped."""
        self._abandon()
        state, effects, freed = policy.evict(self._state, need)
        staged = self._stage("evict", state, effects)
        self._free_all(staged)
        self._commit(state, staged)
        return freed

    def reset(self) -> None:
        """Forget every history and free every slot that the tree holds."""
        self._abandon()
        state, effects = policy.reset(self._state)
        staged = self._stage("reset", state, effects)
        self._free_all(staged)
        self._commit(state, staged)

    def resident(self) -> Iterable[tuple[Node, list[int]]]:
        """Every resident node with its slots: for audits."""
        for node_id in list(self._slots.nodes()):
            node = self._state.nodes[node_id]
            yield node, [*chain(*self._slots.slots(node_id, node.start, node.end))]

    def arriving(self) -> Iterable[tuple[MoveId, list[int]]]:
        """Every move in flight with the slots that it fills: for audits."""
        for move, pieces in self._slots.arriving():
            yield move, [*chain(*pieces)]

    def _path(self, request: Request) -> list[Node]:
        """The nodes that a request locks, from the root's child on."""
        nodes = self._state.nodes
        node = nodes[self._state.leases[request.receipt.id].node]
        path = []
        while node.parent is not None:
            path.append(node)
            node = nodes[node.parent]
        return path[::-1]

    def _stage(
        self,
        name: str,
        state: State,
        effects: tuple[Effect, ...],
        mine: list[int] | None = None,
        start: int = 0,
    ) -> Staged[list[int]]:
        if self._observer is not None:
            self._observer(self._state, name, state, effects)
        if mine is None:
            return self._slots.stage(effects)
        return self._slots.stage(effects, lambda low, high: mine[low - start : high - start])

    def _adopt(
        self, name: str, state: State, effects: tuple[Effect, ...], mine: list[int], start: int
    ) -> list[int]:
        """Let the tree take a request's slots; free and return those that it had already."""
        staged = self._stage(name, state, effects, mine, start)
        surplus = _duplicates(staged, mine, start)
        self._free_all(staged, surplus)
        self._commit(state, staged)
        return surplus

    def _exchange(self, staged: Staged[list[int]], need: int) -> list[int]:
        """`need` slots: evicted ones first, handed over without a detour through the store."""
        evicted = [*chain(*staged.freed)]
        excess = evicted[need:]
        fresh = self._store.allocate(need - len(evicted)) if need > len(evicted) else []
        try:
            self._free(excess, [*chain(*staged.freed_host)])
        except StoreError:
            self._free(fresh, [])
            raise
        return evicted[:need] + fresh

    def _free_all(self, staged: Staged[list[int]], surplus: Sequence[int] = ()) -> None:
        """Free what the tree gives up, and surplus that a request gives up."""
        self._free([*chain(*staged.freed), *surplus], [*chain(*staged.freed_host)])

    def _free(self, device: list[int], host: list[int]) -> None:
        if device or host:
            self._store.free(device, host)

    def _after_moves(
        self, state: State, staged: Staged[list[int]], receipt: Receipt, units: int
    ) -> list[int]:
        """Carry out the moves that make room for a promise, and take the slots."""
        self._free_all(staged)
        self._commit(state, staged)
        try:
            self._abandon()
            while (transfer := policy.next_transfer(self._state, receipt)) is not None:
                self.transfer(transfer)
            state, effects = policy.settle(self._state, receipt)
            staged = self._stage("settle", state, effects)
            slots = self._store.allocate(units)
        except PenelopeError:
            state, effects = policy.forgo(self._state, receipt)
            self._commit(state, self._stage("forgo", state, effects))
            raise
        self._commit(state, staged)
        return slots

    def transfer(self, transfer: Transfer) -> None:
        """Move a span to the other tier; if the copy fails it stays where it is."""
        self._abandon()
        state, effects, move = policy.begin(self._state, transfer)
        fresh = self._store.allocate(transfer.length, transfer.target)
        self._commit(state, self._stage("begin", state, effects, fresh, transfer.start))
        try:
            self._store.copy(self._copied(move, transfer), fresh, transfer.target)
            self._end(policy.end, move)
        except StoreError:
            self._end(policy.fail, move)
            raise

    def _abandon(self) -> None:
        """Give up what a store that would not free has left in flight."""
        for move in sorted(self._state.moves):
            self._end(policy.fail, move)

    def _end(self, end: Callable[[State, MoveId], policy.Step], move: MoveId) -> None:
        """Let a move have happened, or not, and free the slots that it leaves."""
        state, effects = end(self._state, move)
        staged = self._stage(end.__name__, state, effects)
        self._free_all(staged)
        self._commit(state, staged)

    def _copied(self, move: MoveId, transfer: Transfer) -> list[int]:
        """The slots that a move in flight copies from."""
        node = self._state.moves[move].node
        return [*chain(*self._slots.slots(node, transfer.start, transfer.end))]

    def _commit(self, state: State, staged: Staged[list[int]]) -> None:
        self._slots.commit(staged)
        self._flow = self._flow.after(staged.effects)
        self._state = state


def _owned(requests: Iterable[Request], start: int, end: int) -> list[int]:
    """The slots that one of the requests owns for a part of a hole that it refills."""
    for request in requests:
        for (low, high), slots in request.holes.items():
            if low <= start and end <= high:
                return slots[start - low : end - low]
    raise StoreError(
        f"[{start}, {end}) is a hole that another request refills: wait for it, and plan again "
        f"if it ends without having done so"
    )


def _duplicates(staged: Staged[list[int]], mine: list[int], start: int) -> list[int]:
    """Offered slots for spans that the tree had already, apart from its very own."""
    return [
        offered
        for low, own in staged.surplus
        for offered, owned in zip(mine[low - start :], own, strict=False)
        if offered != owned
    ]
