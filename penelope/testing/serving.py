"""A cache in use: operations as plain data, carried out one after another and checked.

An operation is a name and a few small integers, taken modulo whatever there is to choose from, so
that any sequence of operations means something and a shorter one can be tried in its place.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from penelope.policy import (
    UNIT_BYTES,
    Config,
    Effect,
    Key,
    PenelopeError,
    Plan,
    Receipt,
    Refused,
    Residency,
    State,
    Transfer,
    pack,
)
from penelope.runtime import symbolic
from penelope.runtime.cache import Offered, Request
from penelope.runtime.keeping import Observer
from penelope.runtime.store import KVStore, StoreError
from penelope.testing.audit import TIERS, Audited, audit
from penelope.testing.errors import ConformanceError
from penelope.testing.watch import WatchedStore
from penelope_spec import Facts, Trace, Violation, check_refused, check_state, check_step


class ServingCache(Audited, Protocol):
    """What the suite asks of a cache: the methods of `penelope.runtime.cache.Cache`."""

    def plan(self, key: Key, /) -> Plan: ...
    def admit(self, plan: Plan) -> Request: ...
    def table(self, request: Request) -> list[int]: ...
    def refill(self, request: Request, start: int, end: int) -> Offered: ...
    def checkpoint(self, request: Request, key: Key) -> Offered: ...
    def grow(self, request: Request, units: int) -> None: ...
    def release(self, request: Request) -> None: ...
    def insert(self, key: Key, slots: list[int], /) -> Offered: ...
    def evict(self, need: int) -> int: ...
    def reset(self) -> None: ...


MakeCache = Callable[[Config, KVStore, Observer], ServingCache]


class Operation(NamedTuple):
    name: str
    numbers: tuple[int, ...]
    """Three."""


_WEIGHTS: Final = {
    "start": 10,
    "finish": 6,
    "abort": 2,
    "grow": 3,
    "offer": 3,
    "evict": 4,
    "fail": 3,
    "use_all": 1,
    "reset": 1,
    "misuse": 2,
}


_AT_ONCE: Final = 1
"""With more requests than so many running, one ends before the next: or all would be locked."""


def drawn(seed: int, count: int, *, misuse: bool) -> list[Operation]:
    """So many operations, the same for the same seed.  `misuse`: calls that must be refused too."""
    rng = random.Random(seed)
    names = [name for name, weight in _WEIGHTS.items() for _ in range(weight)]
    if not misuse:
        names = [name for name in names if name != "misuse"]
    return [
        Operation(rng.choice(names), (rng.randrange(64), rng.randrange(64), rng.randrange(64)))
        for _ in range(count)
    ]


def marks(key: Key) -> list[int]:
    """What stands for the KV of each unit of a history: it depends on all units up to it."""
    return [1 + (int.from_bytes(d[:4]) >> 2) for d in symbolic.prefill(key)]


@dataclass(slots=True)
class Running:
    request: Request
    units: list[int]


class Serving:
    """Uses a cache as an engine would, and checks every invariant after every step."""

    def __init__(self, config: Config, store: WatchedStore, make_cache: MakeCache) -> None:
        self.store = store
        self.seen: Counter[str] = Counter()
        self.text: list[str] = []
        """What the operations came to, in words."""
        self.running: list[Running] = []
        self.histories: list[list[int]] = [[]]
        self._facts: Facts = {}
        self._trace = Trace()
        self.cache = make_cache(config, store, self._observe)
        self.page = config.page_size

    def do(self, operation: Operation) -> None:
        """Raises `ConformanceError`; what is refused rightly is counted."""
        before, self._facts = self.cache.state, {}
        self.text.append(operation.name)
        try:
            getattr(self, operation.name)(*operation.numbers)
        except (Refused, StoreError) as error:
            self.seen[f"refused {type(error).__name__}"] += 1
            self.text[-1] += f" (refused: {type(error).__name__})"
            self._after_refusal(operation.name, before, error)
        self._settled(operation.name)

    def end(self) -> None:
        """Everybody leaves, and every slot comes back."""
        self.store.failing_in = 0
        self.text.append("the end of all requests")
        for one in self.running:
            self.cache.release(one.request)
        self.running = []
        self._settled("the end of all requests")
        self.cache.reset()
        for tier in TIERS:
            if self.store.books[tier]:
                raise ConformanceError(
                    "one-copy",
                    f"after a reset {tier.value} slots {sorted(self.store.books[tier])} are "
                    f"allocated and nobody owns them",
                )

    # Operations

    def start(self, which: int, cut: int, code: int) -> None:
        if len(self.running) > _AT_ONCE:
            self.finish(which, cut, code)
        units = self._units(which, cut, code)
        self.text[-1] += f" {units}"
        plan = self.cache.plan(pack(units))
        self._facts = {"plan": plan}
        request = self.cache.admit(plan)
        one = Running(request, units)
        self.running.append(one)
        self.seen["admitted"] += 1
        try:
            self._prefill(one, plan)
        except PenelopeError:  # such as the store out of order: the request is aborted
            self._release(one)
            raise

    def _prefill(self, one: Running, plan: Plan) -> None:
        """Compute what the request lacks and hand it to the tree, its holes first."""
        request = one.request
        self._compute(one, plan)
        for start, end in list(request.holes):
            # A hole is handed over in two parts where it has two pages, in position order.
            middle = start + (end - start) // self.page // 2 * self.page
            for low, high in ((start, middle), (middle, end)):
                if low < high:
                    self._facts = {"receipt": request.receipt, "start": low}
                    self.cache.refill(request, low, high)
            self.seen["refilled"] += end - start
        self._facts = {"receipt": request.receipt}
        self.cache.checkpoint(request, pack(one.units))

    def _compute(self, one: Running, plan: Plan) -> None:
        """Write what a prefill writes, where the table says; all the rest must be there already."""
        written = marks(pack(one.units))
        table = self.cache.table(one.request)
        mine = set(one.request.owned)
        for at, (slot, mark) in enumerate(zip(table, written, strict=False)):
            if slot in mine:
                self.store.write([slot], [mark])
            elif self.store.books[Residency.DEVICE].get(slot) != mark:
                raise ConformanceError(
                    "exact-refill",
                    f"position {at} would be read from slot {slot}, which has "
                    f"other KV than that of its history",
                )
        if plan.match.host:
            self.seen["read from the host"] += plan.match.host

    def finish(self, which: int, more: int, code: int) -> None:
        """A request ends: its output, as far as it has room, goes to the tree."""
        one = self._one(which)
        if one is None:
            return
        room = len(one.request.tail) - (len(one.units) - one.request.start)
        output = [code >> at & 1 for at in range(min(more % 4, room))]
        at = len(one.units)
        one.units = one.units + output
        slots = one.request.tail[at - one.request.start : len(one.units) - one.request.start]
        self.store.write(slots, marks(pack(one.units))[at:])
        self._facts = {"receipt": one.request.receipt}
        self.cache.checkpoint(one.request, pack(one.units))
        self.histories = [*self.histories[-7:], one.units]
        self._release(one)

    def abort(self, which: int, *_: int) -> None:
        if (one := self._one(which)) is not None:
            self._release(one)

    def _release(self, one: Running) -> None:
        self._facts = {"receipt": one.request.receipt}
        self.cache.release(one.request)
        self.running.remove(one)

    def grow(self, which: int, units: int, _: int) -> None:
        if (one := self._one(which)) is not None:
            units = units % 4 * self.page
            self._facts = {"units": units}
            self.cache.grow(one.request, units)

    def offer(self, which: int, cut: int, code: int) -> None:
        """KV that was computed outside any request."""
        units = self._units(which, cut, code)
        if len(units) > self.store.room(Residency.DEVICE):
            return
        self.text[-1] += f" {units}"
        slots = self.store.allocate(len(units))
        self.store.write(slots, marks(pack(units)))
        try:
            self.cache.insert(pack(units), slots)
        except PenelopeError:
            # A refused offer hands nothing over.
            self.store.failing_in = 0
            self.store.free(slots)
        self.histories = [*self.histories[-7:], units]

    def evict(self, need: int, *_: int) -> None:
        need = 1 + need % 6
        if need % 2:
            need = min(need, max(1, self.cache.state.evictable))
        self.text[-1] += f" {need}"
        self._facts = {"need": need}
        freed = self.cache.evict(need)
        self.seen["evicted"] += freed

    def fail(self, calls: int, *_: int) -> None:
        """The store will be out of order for one call."""
        self.store.failing_in = 1 + calls % 4
        self.text[-1] = f"fail store call {self.store.failing_in} from here on"

    def reset(self, *_: int) -> None:
        self.cache.reset()

    def use_all(self, code: int, *_: int) -> None:
        """Every free slot of a tier can be had, holds what is put there, and one more cannot."""
        self.store.failing_in = 0
        for tier in TIERS:
            room = self.store.room(tier)
            with suppress(StoreError):
                self.store.allocate(room + 1, tier)
            slots = self.store.allocate(room, tier)
            put = [1 + 64 * at + code for at in range(room)]
            if slots:
                self.store.inner.write(slots, put, tier)
                self.store.books[tier].update(zip(slots, put, strict=True))
                self.store.verify(f"a mark in each {tier.value} slot", "one-copy")
                ours = (slots, []) if tier is Residency.DEVICE else ([], slots)
                self.store.free(*ours)

    def misuse(self, kind: int, tier: int, _: int) -> None:
        """Calls that must be refused, and then have changed nothing."""
        self.store.failing_in = 0
        where = TIERS[tier % 2]
        if self.store.room(where) == 0:
            return
        (slot,) = self.store.allocate(1, where)
        other = TIERS[1 - tier % 2]
        tries: list[Callable[[], None]] = [
            lambda: self._free(where, [slot, slot]),
            lambda: self._free(other, [max(self.store.books[other], default=-1) + 1]),
            lambda: self._free(where, [-1]),
            lambda: self.store.copy([slot], [], other),
        ]
        try:
            tries[kind % len(tries)]()
        except StoreError:
            self.seen["misuse refused"] += 1
        self._free(where, [slot])

    def _free(self, tier: Residency, slots: list[int]) -> None:
        self.store.free(*((slots, []) if tier is Residency.DEVICE else ([], slots)))

    # Choices

    def _one(self, which: int) -> Running | None:
        return self.running[which % len(self.running)] if self.running else None

    def _units(self, which: int, cut: int, code: int) -> list[int]:
        """Continue a history that is known, mostly whole, by a few of two kinds of units."""
        known = (which % 2 and self._missing()) or self.histories
        base = known[-1 - which // 2 % len(known)]
        if cut % 4 == 0:
            base = base[: cut // 4 % (len(base) + 1)]
        more = [code >> at & 1 for at in range(1 + code % 5)]
        return (base + more)[: self.cache.state.config.device_capacity]

    def _missing(self) -> list[list[int]]:
        """Histories of which a part is not on the device: what to continue to see it come back."""
        state, found = self.cache.state, []
        for node in state.nodes.values():
            if not node.children and node.parent is not None:
                above = node
                while above.parent is not None and above.residency is Residency.DEVICE:
                    above = state.nodes[above.parent]
                if above.parent is not None:
                    key = node.key[: node.end * UNIT_BYTES]
                    found.append([key[at] for at in range(0, len(key), UNIT_BYTES)])
        return sorted(found)

    # Checks

    def _observe(self, before: State, name: str, after: State, effects: tuple[Effect, ...]) -> None:
        facts: Facts = {**_derived(before, after), **self._facts, "effects": effects}
        wrong = check_state(after)
        if name != "admit" or "plan" in facts:
            wrong += check_step(before, after, name, **facts)
            wrong += self._trace.step(before, after, name, **facts)
        _raise_first(wrong, f"in {name}")
        for effect in effects:
            self.seen[type(effect).__name__] += 1
        if after.staged:
            self.seen["staged"] += 1

    def _settled(self, name: str) -> None:
        state = self.cache.state
        live = {one.request.receipt.id for one in self.running}
        if {*state.leases} != live:
            raise ConformanceError(
                "lock-balance",
                f"after {name} receipts {sorted(state.leases)} are live, and requests have "
                f"{sorted(live)}",
            )
        requests = [one.request for one in self.running]
        _raise_first(audit(self.cache, self.store.held(), requests, marks), f"after {name}")

    def _after_refusal(self, name: str, before: State, error: PenelopeError) -> None:
        """The refusal was right, and where no moves had to be made before it, changed nothing."""
        transition = _TRANSITION.get(name)
        if transition is None or not self._facts:
            return
        if "plan" in self._facts:
            before = self._facts["plan"].match.made_on
        if self.cache.state is before:
            if isinstance(error, Refused):
                wrong = check_refused(before, transition, error, **self._facts)
                _raise_first(wrong, f"in {transition}, which was refused")
        elif name != "start" and not before.config.host_capacity:
            raise ConformanceError("accounting", f"a refused {transition} has changed the state")


_TRANSITION: Final = {"start": "admit", "grow": "reserve", "evict": "evict"}
"""What the core is asked for first by an operation that it may refuse."""


def _raise_first(wrong: list[Violation], when: str) -> None:
    if wrong:
        raise ConformanceError(wrong[0].invariant, f"{wrong[0].text}, {when}")


def _derived(before: State, after: State) -> Facts:
    """Facts of a step that the two states show."""
    facts: Facts = {}
    for number in {*after.moves} - {*before.moves}:
        move = after.moves[number]
        node = move.node
        if node not in before.nodes:  # cut off the head of one that keeps the rest
            (node,) = after.nodes[node].children.values()
        receipt = None if move.receipt is None else Receipt(move.receipt)
        facts["transfer"] = Transfer(node, move.start, move.end, move.target, receipt)
    for number in {*before.moves} - {*after.moves}:
        facts["move"] = number
    for lease in {*before.leases} & {*after.leases}:
        if before.leases[lease] != after.leases[lease]:
            facts["receipt"] = Receipt(lease)
    return facts
