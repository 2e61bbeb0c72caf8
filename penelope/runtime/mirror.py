"""A cache for an engine that owns its allocator: the core's state beside the engine's memory.

`Cache` gives requests their slots.  Here the engine allocates and frees for its requests as it
always did; the tree takes slots over from them and gives slots back.  The core is told what the
engine has given away when it matters, for the length of one exchange between the tiers.  No move
is in flight between two calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from penelope import policy
from penelope.policy import (
    DEFAULT_NAMESPACE,
    Config,
    Effect,
    Key,
    Match,
    MoveId,
    Namespace,
    Plan,
    Receipt,
    Residency,
    State,
    Transfer,
)
from penelope.runtime.exchange import Carried, exchange
from penelope.runtime.slots import Slots, SlotTable
from penelope.runtime.store import StoreError

S = TypeVar("S", bound=Slots)


class EngineMemory(Protocol[S]):
    """An engine's slots of KV, one a unit, in each tier."""

    def available(self) -> int:
        """Free device units."""

    def allocate(self, units: int, tier: Residency) -> S:
        """Take free slots.  Raises `StoreError` if there are fewer."""

    def free(self, slots: S, tier: Residency) -> None:
        """Give slots back: whole pages."""

    def copy(self, source: S, target: S, tier: Residency) -> None:
        """Copy KV, slot by slot, from the other tier into `tier`, as the engine's work is ordered.

        Raises `StoreError` if it could not be made.
        """


class Watcher(Protocol):
    """Who is told of what happens, after it has happened."""

    def followed(self, before: State, after: State, effects: tuple[Effect, ...]) -> None:
        """A transition was carried out."""

    def carried(self, done: Carried) -> None:
        """A span has come to the other tier."""

    def not_carried(self, error: StoreError) -> None:
        """A copy failed: its KV is where it was."""


class Mirror(Generic[S]):
    """Owns a state, and keeps the slots of its nodes.  For one thread.

    Every refusal of the core passes through and leaves all as it was.
    """

    def __init__(
        self,
        config: Config,
        memory: EngineMemory[S],
        concat: Callable[[list[S]], S],
        watcher: Watcher,
    ) -> None:
        """`concat` joins a non-empty list of slots into one."""
        self.state = policy.empty(config)
        self.slots: SlotTable[S] = SlotTable(concat)
        self._memory = memory
        self._watcher = watcher
        self._recent: Match | None = None

    def find(self, key: Key, namespace: Namespace, end: int) -> Match:
        """The first `end` units of a history, of which the tree has all.

        The last answer is kept: engines ask for one path several times in a row.
        """
        recent = self._recent
        if (
            recent is None
            or recent.made_on is not self.state
            or recent.end != end
            or recent.key != key
            or recent.namespace != namespace
        ):
            recent = policy.match(self.state, key, namespace, at_most=end)
            assert recent.end == end, f"{end} units were matched, {recent.end} are left"
            self._recent = recent
        return recent

    def apply(
        self,
        state: State,
        effects: tuple[Effect, ...],
        offer: Callable[[int, int], S] | None = None,
    ) -> list[tuple[int, int]]:
        """Commit a transition of `state`; the spans whose offered slots nobody needed.

        `offer(start, end)` gives the caller's slots for an adoption.
        """
        staged = self.slots.stage(effects, offer)
        before, self.state = self.state, state
        self.slots.commit(staged)
        for slots in staged.freed:
            self._memory.free(slots, Residency.DEVICE)
        for slots in staged.freed_host:
            self._memory.free(slots, Residency.HOST)
        self._watcher.followed(before, state, effects)
        return [(start, start + len(own)) for start, own in staged.surplus]

    # Locks

    def lock(self, matched: Match) -> Receipt:
        """Lock a matched path, holes included."""
        acquired = policy.acquire(self.state, matched)
        self.apply(acquired.state, acquired.effects)
        return acquired.receipt

    def undertake(self, matched: Match) -> Receipt:
        """Lock a matched path, all KV of which is on the device, and undertake to refill its holes.

        The engine allocates for them itself.
        """
        assert not matched.host, f"{matched.host} units are on the host: bring them first"
        return self._admit(policy.plan_matched(matched))[0]

    def release(self, receipt: Receipt) -> None:
        """Undo a lock, once."""
        self.apply(*policy.release(self.state, receipt))

    # Room

    def make_room(self, units: int) -> int:
        """Free `units` more on the device; how many units were dropped for it, in either tier.

        With a host tier, what it has room for goes there.  Where a copy fails, KV is dropped in
        the order of eviction instead.  Raises `InsufficientSpace` if fewer are unlocked.
        """
        if not self.state.config.host_capacity:
            return self._evict(units)
        wanted = self._memory.available() + units
        nothing = policy.match(self.state, Key(b""), DEFAULT_NAMESPACE)
        moved, dropped = self._exchange(policy.plan_matched(nothing, units=wanted, held=self._held))
        if not moved:
            while (short := wanted - self._memory.available()) > 0:
                dropped += self._evict(min(short, self.state.evictable))
        return dropped

    def bring(self, matched: Match) -> bool:
        """Bring the host KV of a locked path to the device; False if a copy failed."""
        return self._exchange(policy.plan_matched(matched, held=self._held))[0]

    @property
    def _held(self) -> int:
        """Device units that the engine has given away outside the tree."""
        state = self.state
        return state.config.device_capacity - self._memory.available() - state.totals.device

    def _exchange(self, plan: Plan) -> tuple[bool, int]:
        """Admit a plan and carry out its moves: whether all were, and how many units it dropped.

        What it reserved is for the engine to take at the end.
        """
        receipt, dropped = self._admit(plan)
        try:
            for done in exchange(self, receipt):
                self._watcher.carried(done)
        except StoreError as error:
            self._watcher.not_carried(error)
            return False, dropped
        finally:
            self.release(receipt)
        return True, dropped

    def _admit(self, plan: Plan) -> tuple[Receipt, int]:
        admitted = policy.admit(self.state, plan)
        self.apply(admitted.state, admitted.effects)
        return admitted.receipt, admitted.freed

    # Moves

    def depart(self, transfer: Transfer) -> MoveId:
        state, effects, move = policy.begin_move(self.state, transfer)
        fresh = self._memory.allocate(transfer.length, transfer.target)
        start = transfer.start
        self.apply(state, effects, lambda low, high: fresh[low - start : high - start])
        return move

    def copy(self, move: MoveId, transfer: Transfer) -> None:
        source = self.slots.part(self.state.moves[move].node, transfer.start, transfer.end)
        self._memory.copy(source, self.slots.fresh(move), transfer.target)

    def arrive(self, move: MoveId) -> None:
        self.apply(*policy.end_move(self.state, move))

    def give_up(self, move: MoveId) -> None:
        self.apply(*policy.fail_move(self.state, move))

    # Forgetting

    def forget(self, config: Config) -> None:
        """Begin anew, where the engine has cleared its memory itself, maybe with another size.

        Raises `InUse` while receipts are live.
        """
        policy.reset(self.state)  # refuses while a request holds a lock
        self.slots.clear()
        self.state = policy.empty(config)
        self._recent = None

    def drop_all(self) -> int:
        """Drop all that no request uses, in both tiers; how many units that were."""
        return self._evict(self.state.evictable)

    def _evict(self, units: int) -> int:
        evicted = policy.evict(self.state, units)
        self.apply(evicted.state, evicted.effects)
        return evicted.freed
