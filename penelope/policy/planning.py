"""What a request would need, decided before anything changes."""

from __future__ import annotations

from typing import NamedTuple

from penelope.policy.amounts import amount
from penelope.policy.draft import Draft
from penelope.policy.effects import Effect
from penelope.policy.errors import InsufficientSpace, RequestTooLarge, StalePlan
from penelope.policy.eviction import evict_in
from penelope.policy.keys import Key
from penelope.policy.matching import Match, match
from penelope.policy.transitions import Step, end_of
from penelope.policy.tree import (
    DEFAULT_NAMESPACE,
    Namespace,
    Node,
    Receipt,
    Residency,
    State,
)


class Plan(NamedTuple):
    """What a request must compute and allocate.  It is admissible on the state it was made on."""

    match: Match
    holes: tuple[tuple[int, int], ...]
    """Spans [start, end) to recompute by phantom requests, in position order."""
    awaits: tuple[tuple[int, int], ...]
    """Spans that are on their way to the device for another request: read them after that."""
    allocate: int
    """Device units to allocate: holes, host KV to promote, and new tokens in whole pages."""
    evict: int
    """Units that the logical cache, both tiers together, must lose for them."""
    available: int
    """Device units that may be freed: unlocked KV, the request's own prefix not counted, less
    what others were promised."""
    shortfall: int = 0
    """Device units that must be freed, by dropping or moving KV."""
    droppable: int = 0
    """Units that the logical cache could lose, the request's own prefix not counted."""

    @property
    def admissible(self) -> bool:
        """Whether `admit` would accept the plan now."""
        free = self.match.made_on.free
        return (
            self.allocate <= free + self.available
            and self.evict <= self.droppable
            and not self.match.leaving
        )

    @property
    def compute(self) -> int:
        """Holes and new units that get device slots of their own; the rest of `allocate` is
        promoted."""
        return self.allocate - self.match.host

    @property
    def new(self) -> tuple[int, int]:
        """The span that the real request computes."""
        return self.match.end, self.match.length


def plan(
    state: State,
    key: Key,
    namespace: Namespace = DEFAULT_NAMESPACE,
    *,
    extra: int = 0,
    at_most: int | None = None,
) -> Plan:
    """Plan a request whose history is `key`, with room for `extra` further units.

    Changes nothing.  Raises `RequestTooLarge` if it could not run on an empty device,
    `InvalidKey`, `InvalidAmount`.  `at_most` limits the match as in `match`.
    """
    extra = amount(extra, "make room for {} further units")
    matched = match(state, key, namespace, at_most=at_most)
    page = state.config.page_size
    total = -(-(matched.length + extra) // page) * page
    if total > state.config.device_capacity:
        raise RequestTooLarge(
            f"the request needs {total} units and the device holds "
            f"{state.config.device_capacity}: shorten it or enlarge the device cache"
        )
    own_device = own = 0  # what the request's own lock makes unavailable
    for span in matched.spans:
        if span.residency is not Residency.HOLE and not state.nodes[span.node].locks:
            own += span.length
            if span.residency is Residency.DEVICE:
                own_device += span.length
    fresh = matched.hole + total - matched.end
    over = state.logical_used + fresh - state.config.logical_capacity
    return Plan(
        matched,
        matched.holes,
        matched.awaits,
        fresh + matched.host,
        max(0, over),
        state.available - state.free - own_device,
        max(0, fresh + matched.host - state.free),
        state.evictable - own,
    )


class Admitted(NamedTuple):
    state: State
    effects: tuple[Effect, ...]
    receipt: Receipt
    """Holds the matched path, the refills, and the reservation or the promise of it."""
    freed: int
    """Units that the logical cache lost."""
    pending: bool
    """Whether moves must make room first: see `next_transfer`, then `settle`."""


def admit(state: State, plan: Plan) -> Admitted:
    """Start a planned request: a use of what it matched.

    Locks the matched path first, holes included, then drops what the logical cache must lose,
    then reserves what the plan allocates.  Where that needs KV to move between the tiers, the
    units are promised instead, and nobody else can get them.  All or nothing: raises `StalePlan`
    if the plan was made on another state, `InFlight` if a matched span is leaving,
    `InsufficientSpace` if the plan is not admissible.
    At risk: `no-in-use-eviction`, `minimal-eviction`, `one-hole`, `unified-order`.
    """
    if not isinstance(plan, Plan):
        raise StalePlan(f"this is {type(plan).__name__} and no plan: plan the request")
    plan.match.require(state)
    plan.match.require_settled()
    if not plan.admissible:
        raise InsufficientSpace(
            f"the request must free {plan.shortfall} units where {plan.available} are evictable: "
            f"wait until a running request ends"
        )
    draft = Draft(state)
    node = end_of(draft, plan.match)
    if not node.is_root:
        node = draft.stamp(node)
    receipt = draft.issue(node)
    for span in plan.match.spans:
        if span.residency is Residency.HOLE and not span.arriving:
            hole = draft.nodes[span.node]
            draft.change(hole, hole._replace(filler=receipt.id))
    freed = evict_in(draft, plan.evict)
    promote = plan.match.host
    _promise(draft, receipt, plan.compute, promote)
    draft.keep_promises()
    draft.merge_path(node.id, used_now=True)
    return Admitted(*draft.close(), receipt, freed, _pending(draft, receipt))


def reserve(state: State, receipt: Receipt, units: int) -> Step:
    """Enlarge a running request's reservation, evicting the shortfall: its output grows.

    As in `admit`, the units are promised where moves must make room for them first.
    Raises `UnknownReceipt`, `InvalidAmount`, `RequestTooLarge` if the request would not fit the
    device even when nothing else ran, `InsufficientSpace` if others are in the way.
    """
    units = amount(units, "reserve {} units")
    draft = Draft(state)
    lease = draft.lease(receipt)
    over = state.logical_used + units - state.config.logical_capacity
    if units > state.available or over > state.evictable:
        # Others make way sooner or later; what the request holds itself never does.
        holds = sum(map(_on_device, draft.path(lease.node)))
        holds += lease.reserved + lease.due + lease.promote
        if holds + units > state.config.device_capacity:
            raise RequestTooLarge(
                f"the request holds {holds} units and asks for {units} more where the device "
                f"holds {state.config.device_capacity}: end it or enlarge the device cache"
            )
        raise InsufficientSpace(
            f"{units} units are needed, {state.free} are free and {state.available - state.free} "
            f"can be freed: wait until a running request ends"
        )
    evict_in(draft, over)
    _promise(draft, receipt, units, 0)
    draft.keep_promises()
    return Step(*draft.close())


def _on_device(node: Node) -> int:
    """Units of the node that are on the device or on their way to it."""
    arriving = node.residency is Residency.HOST and node.move is not None
    return node.length if arriving or node.residency is Residency.DEVICE else 0


def _promise(draft: Draft, receipt: Receipt, units: int, promote: int) -> None:
    """Reserve units now if they are free and no host KV has to come first, else promise them."""
    lease = draft.lease(receipt)
    now = not promote and not lease.due and not lease.promote and units <= draft.free
    draft.set_lease(
        receipt.id,
        lease._replace(
            reserved=lease.reserved + (units if now else 0),
            due=lease.due + (0 if now else units),
            promote=lease.promote + promote,
        ),
    )


def _pending(draft: Draft, receipt: Receipt) -> bool:
    lease = draft.lease(receipt)
    return bool(lease.due or lease.promote)
