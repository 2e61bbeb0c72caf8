"""The cache of the server model: what it asks one, and the policy core as the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penelope import policy
from penelope.policy import (
    Config,
    Effect,
    Key,
    Match,
    MoveId,
    Plan,
    Receipt,
    State,
    Ticket,
    Transfer,
)
from penelope.runtime.exchange import exchange


class Ask(NamedTuple):
    """A request as the cache sees it."""

    prompt: Key
    at_most: int
    """Units of the prompt that may be taken from the cache."""
    extra: int
    """Further units that the request will fill, its output included."""


class Waiter(NamedTuple):
    """A request in the queue."""

    number: int
    """Its own, as long as it waits."""
    prompt: Key


@dataclass(frozen=True, slots=True)
class Admission:
    """What an admitted request found, and what was done for it.  Units."""

    receipt: Receipt
    holes: tuple[tuple[int, int], ...]
    """Spans to recompute before the new part, in position order."""
    new: int
    """Where the part begins that is computed anyway."""
    device: int
    """Found on the device, or computed for another request at the same time."""
    host: int
    """Found on the host, and copied to the device."""
    dropped: int
    """Units of which the last copy went."""
    excess: int = 0
    """Of these, what went beyond the need."""
    demoted: int = 0
    """Copied to the host first, so that the device has room."""
    swapped: int = 0
    """Of what came from the host: what passed while the swap buffer was in use."""


class ReplayCache(Protocol):
    """A cache under test.  Whatever it answers is carried out at once."""

    @property
    def nodes(self) -> int:
        """Nodes of its tree now."""

    def clock(self, now: float) -> None:
        """So late it is, in seconds: no policy that could run in an engine looks."""

    def line_up(self, waiting: Sequence[Waiter]) -> None:
        """The requests that wait now, in the order in which they will be served."""

    def expect(self, prompt: Key, arrival: float) -> None:
        """A request that will come then, with this prompt: only a clairvoyant cache may look."""

    def reusable(self, ask: Ask) -> int:
        """By how much a request comes first where the longest cached prefix does."""

    def admit(self, ask: Ask) -> Admission | None:
        """Make room for a request and lock its path; None where it must wait."""

    def computed(self, admission: Admission, prompt: Key) -> int:
        """The prompt is computed.  Units that are copied to the host without anyone waiting."""

    def finished(self, admission: Admission, history: Key) -> int:
        """The output is complete, and nothing of the request is locked any more.  As `computed`."""


Heard = Callable[[State, State, tuple[Effect, ...]], None]
"""The state before a transition, the state after it, and its effects."""


class CoreCache:
    """The policy core, with one tier or two; the shell's copies succeed and take no step."""

    def __init__(self, config: Config, *, queue_in_view: bool = False) -> None:
        self.state: State = policy.empty(config)
        self.queue_in_view = queue_in_view
        self.heard: Heard | None = None
        """Told of every transition that changes what is held: for routers."""
        self._tickets: dict[int, Ticket] = {}

    @property
    def nodes(self) -> int:
        return len(self.state.nodes)

    def clock(self, now: float) -> None:
        """Nothing is decided by the clock."""
        del now

    def line_up(self, waiting: Sequence[Waiter]) -> None:
        if not self.queue_in_view or [w.number for w in waiting] == list(self._tickets):
            return
        queue: list[Ticket | Match] = []
        for number, prompt in waiting:
            known = self._tickets.get(number)
            queue.append(policy.match(self.state, prompt) if known is None else known)
        self.state, _, tickets = policy.line_up(self.state, queue)
        numbers = (waiter.number for waiter in waiting)
        self._tickets = dict(zip(numbers, tickets, strict=False))

    def expect(self, prompt: Key, arrival: float) -> None:
        """It does not know the future."""
        del prompt, arrival

    def reusable(self, ask: Ask) -> int:
        return self._plan(ask).match.reusable

    def admit(self, ask: Ask) -> Admission | None:
        plan = self._plan(ask)
        if not plan.admissible:
            return None
        needed = self._needed(plan)
        admitted = policy.admit(self.state, plan)
        self._become(admitted.state, admitted.effects)
        dropped, demoted, swapped = admitted.freed, 0, 0
        if admitted.pending:
            more, demoted, swapped = self._make_room(admitted.receipt)
            dropped += more
        return Admission(
            admitted.receipt,
            plan.holes,
            plan.match.end,
            # In this model nothing is on its way but holes that a running request refills.
            plan.match.device + plan.match.arriving,
            plan.match.host,
            dropped,
            max(0, dropped - needed),
            demoted,
            swapped,
        )

    def computed(self, admission: Admission, prompt: Key) -> int:
        for start, end in admission.holes:
            refilled = policy.refill(self.state, admission.receipt, start, end)
            self._become(refilled.state, refilled.effects)
        stored = policy.checkpoint(self.state, admission.receipt, prompt)
        self._become(stored.state, stored.effects)
        return 0

    def finished(self, admission: Admission, history: Key) -> int:
        stored = policy.checkpoint(self.state, admission.receipt, history)
        self._become(stored.state, stored.effects)
        self._become(*policy.release(self.state, admission.receipt))
        return 0

    def _become(self, state: State, effects: tuple[Effect, ...]) -> None:
        before, self.state = self.state, state
        if self.heard is not None:
            self.heard(before, state, effects)

    def _plan(self, ask: Ask) -> Plan:
        return policy.plan(self.state, ask.prompt, extra=ask.extra, at_most=ask.at_most)

    def _needed(self, plan: Plan) -> int:
        """What must be lost for a plan at the least."""
        return plan.evict

    def _drop_for_moves(self, receipt: Receipt) -> int:
        """What else must be dropped before the next move; the plan has seen to it already."""
        del receipt
        return 0

    def _make_room(self, receipt: Receipt) -> tuple[int, int, int]:
        """Carry out the moves of a promise: units dropped, demoted, and promoted by swapping."""
        demoted = swapped = 0
        dropped = self._drop_for_moves(receipt)
        for done in exchange(self, receipt):
            demoted += done.transfer.length if done.demotion else 0
            swapped += done.transfer.length if done.swapped else 0
            dropped += self._drop_for_moves(receipt)
        self._become(*policy.settle_promise(self.state, receipt))
        return dropped, demoted, swapped

    # Moves

    def depart(self, transfer: Transfer) -> MoveId:
        state, effects, move = policy.begin_move(self.state, transfer)
        self._become(state, effects)
        return move

    def copy(self, move: MoveId, transfer: Transfer) -> None:
        """Nothing lies anywhere in this model."""

    def arrive(self, move: MoveId) -> None:
        self._become(*policy.end_move(self.state, move))

    def give_up(self, move: MoveId) -> None:
        self._become(*policy.fail_move(self.state, move))
