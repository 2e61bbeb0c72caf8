"""The policy beside an engine that does not run it: what it would have kept, at what saving.

The engine tells when a request starts, with the prompt and how much of it its own cache had, and
when the request ends, with its history.  The core follows over a device of the same size.  Nothing
is stored and nothing is decided for the engine.

A request's prompt counts as computed from its start on, and its output from its end on: between the
two the output takes no room here.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from penelope import policy
from penelope.cost import CostModel
from penelope.policy import Config, InsufficientSpace, Key, Namespace, Receipt, RequestTooLarge
from penelope.policy.errors import InvalidConfigError
from penelope.policy.keys import UNIT_BYTES


@dataclass(slots=True)
class Tally:
    """Sums over the requests that were followed.  Tokens, and cost in token positions of one layer.

    prompt   |== reused ==|~ refilled ~|== reused ==|-- computed anyway --|
    engine   |== reused ==|-------------- computed ----------------------|
    """

    requests: int = 0
    prompt_tokens: int = 0
    engine_reused_tokens: int = 0
    """Found by the engine in its own cache."""
    reused_tokens: int = 0
    """The policy would have found, KV behind holes included."""
    refilled_tokens: int = 0
    """Of what the policy would have computed: in holes, by phantom requests."""
    evicted_tokens: int = 0
    engine_cost: int = 0
    """Of computing what the engine did not find; 0 where the model's cost is not known."""
    cost: int = 0
    """Of computing what the policy would not have found."""
    unfollowed_requests: int = 0
    """For which the shadow had no room or no time: they are in no other sum."""
    unfollowed_outputs: int = 0
    """Of requests that were followed, for whose output the shadow had no room."""

    @property
    def saved(self) -> float | None:
        """The share of the engine's recomputation that the policy would have spared, at most 1.

        Negative where it would have computed more; None where nothing was computed.
        """
        return 1 - self.cost / self.engine_cost if self.engine_cost else None


@dataclass(frozen=True, slots=True)
class _Followed:
    receipt: Receipt
    room: int
    """Units that it holds, whole pages."""


class Shadow:
    """The core, following an engine of one tier.

    Raises `InvalidConfigError` for a configuration with a host tier: who copies what between the
    tiers, and when, is not known of another cache.
    """

    def __init__(self, config: Config, cost: CostModel | None = None) -> None:
        if config.host_capacity:
            raise InvalidConfigError(
                f"a shadow has one tier and the host holds {config.host_capacity} units: "
                f"leave out the host tier"
            )
        self.tally = Tally()
        self._config = config
        self._cost = cost
        self._state = policy.empty(config)
        self._running: dict[Hashable, _Followed] = {}

    @property
    def state(self) -> policy.State:
        """What the policy would hold now."""
        return self._state

    def follows(self, request: Hashable) -> bool:
        """Whether a request has started here and not ended."""
        return request in self._running

    def started(self, request: Hashable, prompt: Key, namespace: Namespace, reused: int) -> bool:
        """A request is about to be computed; the engine found `reused` tokens of its prompt.

        False where it is not followed because those that run leave no room for it.  A name that
        is running already is left alone (a prompt that is computed in steps).  Raises
        `InvalidKey`.
        """
        if request in self._running:
            return True
        length = len(prompt) // UNIT_BYTES
        # As in an engine: the last token is computed in any case, for its logits.
        try:
            plan = policy.plan(self._state, prompt, namespace, at_most=max(0, length - 1))
            admitted = policy.admit(self._state, plan)
        except (RequestTooLarge, InsufficientSpace):
            self.tally.unfollowed_requests += 1
            return False
        state = admitted.state
        for start, end in plan.holes:
            state = policy.refill(state, admitted.receipt, start, end).state
        self._state = policy.checkpoint(state, admitted.receipt, prompt).state
        self._running[request] = _Followed(admitted.receipt, self._pages(length))
        self._count(length, plan, admitted.freed, min(reused, length))
        return True

    def ended(self, request: Hashable, history: Key | None) -> None:
        """A request is over, with the tokens whose KV the engine keeps; None where it keeps none.

        A request that is not followed is left alone.  Raises `InvalidKey`.
        """
        followed = self._running.pop(request, None)
        if followed is None:
            return
        state = self._state
        if history is not None:
            more = self._pages(len(history) // UNIT_BYTES) - followed.room
            try:
                if more > 0:
                    dropped = state.totals.device
                    state = policy.reserve(state, followed.receipt, more).state
                    self.tally.evicted_tokens += dropped - state.totals.device
                state = policy.checkpoint(state, followed.receipt, history).state
            except (RequestTooLarge, InsufficientSpace):
                self.tally.unfollowed_outputs += 1
        self._state = policy.release(state, followed.receipt).state

    def forget(self) -> None:
        """The engine's cache is empty again; requests that run are not followed any more."""
        self._state = policy.empty(self._config)
        self._running.clear()

    def _pages(self, units: int) -> int:
        page = self._config.page_size
        return -(-units // page) * page

    def _count(self, length: int, plan: policy.Plan, freed: int, reused: int) -> None:
        tally = self.tally
        refilled = sum(end - start for start, end in plan.holes)
        tally.requests += 1
        tally.prompt_tokens += length
        tally.engine_reused_tokens += reused
        tally.reused_tokens += plan.match.end - refilled
        tally.refilled_tokens += refilled
        tally.evicted_tokens += freed
        if self._cost is not None:
            scale = self._cost.scale
            spans = [*plan.holes, (plan.match.end, length)]
            tally.engine_cost += self._cost.scaled_span(reused, length) // scale
            tally.cost += sum(self._cost.scaled_span(*span) for span in spans) // scale
