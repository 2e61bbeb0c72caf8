"""A cache that gives requests their slots: the verbs of a request, over a state and a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from threading import Lock
from typing import ClassVar, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

from penelope import policy
from penelope.policy import (
    DEFAULT_NAMESPACE,
    Config,
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
from penelope.runtime.exchange import carry_out
from penelope.runtime.gauges import Flow, Gauge, gauge
from penelope.runtime.keeping import Keeper, Moment, Observer
from penelope.runtime.store import KVStore, StoreError


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
            self._kept.abandon()
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

    _keeper: ClassVar[type[Keeper]] = Keeper
    """Keeps state and store in step."""

    def __init__(self, config: Config, store: KVStore, observer: Observer | None = None) -> None:
        self._kept = self._keeper(config, store, observer)
        self._entry = Lock()

    @property
    def now(self) -> Moment:
        """The current state and what has happened until then, as one."""
        return self._kept.now

    @property
    def flow(self) -> Flow:
        """What has been moved and dropped so far: counters to export."""
        return self._kept.now.flow

    def gauge(self, tier: Residency) -> Gauge:
        """What a tier holds now: gauges to export."""
        return gauge(self.state, tier)

    @property
    def state(self) -> State:
        """The current state: a value, safe to keep."""
        return self._kept.now.state

    @_alone
    def match(self, key: Key, namespace: Namespace = DEFAULT_NAMESPACE) -> Match:
        """What the cache holds of a key.  Changes nothing."""
        return policy.match(self.state, key, namespace)

    @_alone
    def plan(self, key: Key, namespace: Namespace = DEFAULT_NAMESPACE, *, extra: int = 0) -> Plan:
        """What a request would compute and allocate.  Changes nothing."""
        return policy.plan(self.state, key, namespace, extra=extra)

    @_alone
    def touch(self, matched: Match) -> None:
        """Count a match as a use."""
        self._kept.do("touch", *policy.touch(self.state, matched))

    @_alone
    def admit(self, plan: Plan) -> Request:
        """Start a planned request: lock its path, evict the shortfall, give it its slots.

        Where KV moves between the tiers for it and a copy fails, the request is given up: what
        was moved stays where it is, and nothing is lost but what the plan had to evict.
        """
        state, effects, receipt, _, pending = policy.admit(self.state, plan)
        kept = self._kept
        staged = kept.stage("admit", state, effects)
        if pending:
            try:
                slots = kept.after_moves(state, staged, receipt, plan.compute)
            except PenelopeError:
                if receipt.id in self.state.leases:
                    kept.do("release", *policy.release(self.state, receipt))
                raise
        else:
            slots = kept.hand_over(staged, plan.compute)
            kept.commit(state, staged)
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
                slots += self._kept.slots.part(node.id, node.start, node.end)
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
        state, effects, adopted, resident = policy.refill(self.state, request.receipt, start, end)
        if (mine := _owned((request,), start, end)) is None:
            raise NotBeingRefilled(
                f"[{start}, {end}) is no part of a hole that the request has slots for: it has "
                f"{', '.join(f'[{low}, {high})' for low, high in request.holes) or 'none left'}"
            )
        surplus = self._kept.adopt("refill", state, effects, mine, start)
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
            self.state, request.receipt, key
        )
        if (units := adopted + resident + unaligned) > len(request.tail):
            raise StoreError(
                f"{units} units are offered and the request has {len(request.tail)} slots beyond "
                f"{request.start}: give the key as far as its KV is computed"
            )
        surplus = self._kept.adopt("checkpoint", state, effects, request.tail, request.start)
        done = adopted + resident
        request.start, request.tail = request.start + done, request.tail[done:]
        return Offered(adopted, resident, surplus)

    @_alone
    def grow(self, request: Request, units: int) -> None:
        """Give a running request room for `units` more, evicting the shortfall."""
        state, effects = policy.reserve(self.state, request.receipt, units)
        kept = self._kept
        staged = kept.stage("reserve", state, effects)
        if state.leases[request.receipt.id].due:
            slots = kept.after_moves(state, staged, request.receipt, units)
        else:
            slots = kept.hand_over(staged, units)
            kept.commit(state, staged)
        request.tail = request.tail + slots

    @_alone
    def release(self, request: Request) -> None:
        """End a request, finished or aborted: unlock its path, free what only it owns."""
        state, effects = policy.release(self.state, request.receipt)
        staged = self._kept.stage("release", state, effects)
        self._kept.free(request.owned)
        self._kept.commit(state, staged)
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
            self.state, key, namespace, start=start
        )
        if len(mine) != (units := adopted + resident + unaligned):
            raise StoreError(f"{len(mine)} slots are offered for {units} units: one for each")
        surplus = self._kept.adopt_from_caller(state, effects, mine, start, unaligned)
        return Offered(adopted, resident, surplus)

    @_alone
    def evict(self, need: int) -> int:
        """Drop at least `need` units, in either tier; how many were dropped."""
        state, effects, freed = policy.evict(self.state, need)
        self._kept.do("evict", state, effects)
        return freed

    @_alone
    def reset(self) -> None:
        """Forget every history and free every slot that the tree holds."""
        self._kept.do("reset", *policy.reset(self.state))

    @_alone
    def transfer(self, transfer: Transfer) -> None:
        """Move a span to the other tier; if the copy fails it stays where it is."""
        carry_out(self._kept, transfer)

    def resident(self) -> Iterable[tuple[Node, list[int]]]:
        """Every resident node with its slots: for audits."""
        for tier in (Residency.DEVICE, Residency.HOST):
            for node, _, slots in list(self._kept.slots.items(tier)):
                yield self.state.nodes[node], slots

    def arriving(self) -> Iterable[tuple[MoveId, list[int]]]:
        """Every move in flight with the slots that it fills: for audits."""
        for move in self.state.moves:
            yield move, self._kept.slots.fresh(move)

    def _path(self, request: Request) -> list[Node]:
        """The nodes that a request locks, from the root's child on."""
        nodes = self.state.nodes
        node = nodes[self.state.lease(request.receipt).node]
        path = []
        while node.parent is not None:
            path.append(node)
            node = nodes[node.parent]
        return path[::-1]


def _owned(requests: Iterable[Request], start: int, end: int) -> list[int] | None:
    """The slots that one of the requests owns for a part of a hole that it refills."""
    for request in requests:
        for (low, high), slots in request.holes.items():
            if low <= start and end <= high:
                return slots[start - low : end - low]
    return None
