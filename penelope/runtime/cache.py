"""A cache: the one mutable cell that holds a state, and the store that follows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from threading import Lock
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar, cast

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
    NotBeingRefilled,
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


class ConcurrentUse(PenelopeError):
    """A cache is entered while a call to it is under way, by another thread or by a callback."""


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
    """The answers to an offer of slots.

    An offer hands the slots over.  Once it is accepted they are the tree's or free again, but for
    the end of a request's history that fills no page, which stays with the request.
    """

    adopted: int
    """Units whose slots the tree owns now."""
    resident: int
    """Units that the tree had already."""
    surplus: list[int]
    """Offered slots that nobody needed: true duplicates, and after `insert` the end that fills no
    page.  The cache has freed them.

    The very slot that the tree owns, offered again, is not among them.
    """


class Moment(NamedTuple):
    """A state, and what has happened until then: they belong together."""

    state: State
    flow: Flow


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _alone(method: Callable[Concatenate[Cache, _P], _R]) -> Callable[Concatenate[Cache, _P], _R]:
    """One call at a time.  The method starts from a state in which no move is in flight."""

    @wraps(method)
    def entered(self: Cache, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not self._entry.acquire(blocking=False):
            raise ConcurrentUse(
                f"{method.__name__} is called while another call to this cache is under way: "
                f"let one thread use it, or put a lock around it"
            )
        try:
            self._abandon()
            return method(self, *args, **kwargs)
        finally:
            self._entry.release()

    return cast("Callable[Concatenate[Cache, _P], _R]", entered)


class Cache:
    """Owns a state and keeps a store in step with it.

    Each method does all or nothing: when the core refuses or the store fails, the state, the
    store and the request are as they were.  Errors are those of the core's transition of the
    same name, and `StoreError`.  What a store that failed has left in flight is given up first.

    For one thread: a call during another one is refused with `ConcurrentUse`.  `state`, `flow`,
    `now` and `gauge` may be read from any thread at any time.
    """

    def __init__(self, config: Config, store: KVStore, observer: Observer | None = None) -> None:
        self._now = Moment(policy.empty(config), Flow())
        self._store = store
        self._slots: SlotTable[list[int]] = SlotTable(lambda pieces: [*chain(*pieces)])
        self._ours: set[int] = set()
        """Every device slot that the tree or a request owns."""
        self._observer = observer
        self._entry = Lock()

    @property
    def now(self) -> Moment:
        """The current state and what has happened until then, as one."""
        return self._now

    @property
    def flow(self) -> Flow:
        """What has been moved and dropped so far: counters to export."""
        return self._now.flow

    def gauge(self, tier: Residency) -> Gauge:
        """What a tier holds now: gauges to export."""
        return gauge(self._now.state, tier)

    @property
    def state(self) -> State:
        """The current state: a value, safe to keep."""
        return self._now.state

    @property
    def _state(self) -> State:
        return self._now.state

    @_alone
    def match(self, key: Key, namespace: Namespace = DEFAULT_NAMESPACE) -> Match:
        """What the cache holds of a key.  Changes nothing."""
        return policy.match(self._state, key, namespace)

    @_alone
    def plan(self, key: Key, namespace: Namespace = DEFAULT_NAMESPACE, *, extra: int = 0) -> Plan:
        """What a request would compute and allocate.  Changes nothing."""
        return policy.plan(self._state, key, namespace, extra=extra)

    @_alone
    def touch(self, matched: Match) -> None:
        """Count a match as a use."""
        state, effects = policy.touch(self._state, matched)
        self._commit(state, self._stage("touch", state, effects))

    @_alone
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

    @_alone
    def table(self, request: Request, beside: Iterable[Request] = ()) -> list[int]:
        """The device slot of each position of a running request, from 0 on.

        Holes that requests of the same batch (`beside`) refill are read from their slots.
        Raises `UnknownReceipt`, and `StoreError` while a hole on the path is being refilled by
        any other request or KV on it is on the host.
        """
        slots: list[int] = []
        owners = (request, *beside)
        for node in self._path(request):
            if node.residency is Residency.DEVICE:
                slots += chain(*self._slots.slots(node.id, node.start, node.end))
            elif node.residency is Residency.HOLE:
                if (found := _owned(owners, node.start, node.end)) is None:
                    raise StoreError(
                        f"[{node.start}, {node.end}) is a hole that another request refills: wait "
                        f"for it, and plan again if it ends without having done so"
                    )
                slots += found
            else:
                raise StoreError(
                    f"[{node.start}, {node.end}) is on the host: release the request and plan it "
                    f"again"
                )
        return slots + request.tail

    @_alone
    def refill(self, request: Request, start: int, end: int) -> Offered:
        """Hand over a refilled span, or the next part of it, to the tree."""
        state, effects, adopted, resident = policy.refill(self._state, request.receipt, start, end)
        if (mine := _owned((request,), start, end)) is None:
            raise NotBeingRefilled(
                f"[{start}, {end}) is no part of a hole that the request has slots for: it has "
                f"{', '.join(f'[{low}, {high})' for low, high in request.holes) or 'none left'}"
            )
        surplus = self._adopt("refill", state, effects, mine, start)
        holes: dict[tuple[int, int], list[int]] = {}
        for (low, high), slots in request.holes.items():
            for left, right in ((low, min(high, start)), (max(low, end), high)):
                if left < right:
                    holes[left, right] = slots[left - low : right - low]
        request.holes = holes
        return Offered(adopted, resident, surplus)

    @_alone
    def checkpoint(self, request: Request, key: Key) -> Offered:
        """Hand over what the request has computed of `key`, and extend its lock over it.

        `key` ends where its KV does: the token that was sampled last has none yet.
        """
        state, effects, adopted, resident, unaligned = policy.checkpoint(
            self._state, request.receipt, key
        )
        if (units := adopted + resident + unaligned) > len(request.tail):
            raise StoreError(
                f"{units} units are offered and the request has {len(request.tail)} slots beyond "
                f"{request.start}: give the key as far as its KV is computed"
            )
        surplus = self._adopt("checkpoint", state, effects, request.tail, request.start)
        done = adopted + resident
        request.start, request.tail = request.start + done, request.tail[done:]
        return Offered(adopted, resident, surplus)

    @_alone
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

    @_alone
    def release(self, request: Request) -> None:
        """End a request, finished or aborted: unlock its path, free what only it owns."""
        state, effects = policy.release(self._state, request.receipt)
        staged = self._stage("release", state, effects)
        self._free(request.owned, [])
        self._commit(state, staged)
        request.holes, request.tail = {}, []

    @_alone
    def insert(
        self,
        key: Key,
        slots: Sequence[int],
        namespace: Namespace = DEFAULT_NAMESPACE,
        *,
        start: int = 0,
    ) -> Offered:
        """Hand over slots that the caller has allocated for key[start:], one a unit.

        Raises `StoreError` if a slot is named twice, or belongs to the cache or to one of its
        requests already; the tree's own slots for these very positions may be offered again.
        """
        mine = list(slots)
        state, effects, adopted, resident, unaligned = policy.insert(
            self._state, key, namespace, start=start
        )
        if len(mine) != (units := adopted + resident + unaligned):
            raise StoreError(f"{len(mine)} slots are offered for {units} units: one for each")
        staged = self._stage("insert", state, effects, mine, start)
        surplus = _duplicates(staged, mine, start) + mine[len(mine) - unaligned :]
        new = self._require_the_callers(staged, mine, start)
        self._free_all(staged, surplus)
        self._ours |= new.difference(surplus)
        self._commit(state, staged)
        return Offered(adopted, resident, surplus)

    @_alone
    def evict(self, need: int) -> int:
        """Drop at least `need` units, in either tier; how many were dropped."""
        state, effects, freed = policy.evict(self._state, need)
        staged = self._stage("evict", state, effects)
        self._free_all(staged)
        self._commit(state, staged)
        return freed

    @_alone
    def reset(self) -> None:
        """Forget every history and free every slot that the tree holds."""
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
        node = nodes[self._state.lease(request.receipt).node]
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
        fresh = self._take(need - len(evicted)) if need > len(evicted) else []
        try:
            self._free(excess, [*chain(*staged.freed_host)])
        except StoreError:
            self._free(fresh, [])
            raise
        return evicted[:need] + fresh

    def _free_all(self, staged: Staged[list[int]], surplus: Sequence[int] = ()) -> None:
        """Free what the tree gives up, and surplus that a request gives up."""
        self._free([*chain(*staged.freed), *surplus], [*chain(*staged.freed_host)])

    def _take(self, units: int) -> list[int]:
        """Device slots of our own."""
        slots = self._store.allocate(units)
        self._ours.update(slots)
        return slots

    def _free(self, device: list[int], host: list[int]) -> None:
        if device or host:
            self._store.free(device, host)
            self._ours.difference_update(device)

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

    def _after_moves(
        self, state: State, staged: Staged[list[int]], receipt: Receipt, units: int
    ) -> list[int]:
        """Carry out the moves that make room for a promise, and take the slots."""
        self._free_all(staged)
        self._commit(state, staged)
        try:
            while (transfer := policy.next_transfer(self._state, receipt)) is not None:
                self._transfer(transfer)
            state, effects = policy.settle(self._state, receipt)
            staged = self._stage("settle", state, effects)
            slots = self._take(units)
        except PenelopeError:
            state, effects = policy.forgo(self._state, receipt)
            self._commit(state, self._stage("forgo", state, effects))
            raise
        self._commit(state, staged)
        return slots

    @_alone
    def transfer(self, transfer: Transfer) -> None:
        """Move a span to the other tier; if the copy fails it stays where it is."""
        self._transfer(transfer)

    def _transfer(self, transfer: Transfer) -> None:
        state, effects, move = policy.begin(self._state, transfer)
        if transfer.target is Residency.DEVICE:
            fresh = self._take(transfer.length)
        else:
            fresh = self._store.allocate(transfer.length, Residency.HOST)
        try:
            staged = self._stage("begin", state, effects, fresh, transfer.start)
        except BaseException:  # an observer that objects may raise anything
            on_device = transfer.target is Residency.DEVICE
            self._free(fresh if on_device else [], [] if on_device else fresh)
            raise
        self._commit(state, staged)
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
        # One assignment: whoever reads from another thread sees both or neither.
        self._now = Moment(state, self._now.flow.after(staged.effects))


def _owned(requests: Iterable[Request], start: int, end: int) -> list[int] | None:
    """The slots that one of the requests owns for a part of a hole that it refills."""
    for request in requests:
        for (low, high), slots in request.holes.items():
            if low <= start and end <= high:
                return slots[start - low : end - low]
    return None


def _duplicates(staged: Staged[list[int]], mine: list[int], start: int) -> list[int]:
    """Offered slots for spans that the tree had already, apart from its very own."""
    return [slot for slot, owned in _met(staged, mine, start) if slot != owned]


def _met(staged: Staged[list[int]], mine: list[int], start: int) -> Iterator[tuple[int, int]]:
    """Offered slots for spans that the tree had already, each with the tree's own."""
    for low, own in staged.surplus:
        yield from zip(mine[low - start :], own, strict=False)
