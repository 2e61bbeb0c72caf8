"""What a request would need, decided before anything changes."""

from __future__ import annotations

from typing import Final, NamedTuple

from penelope.policy.amounts import amount
from penelope.policy.draft import Draft
from penelope.policy.effects import Effect
from penelope.policy.errors import InsufficientSpace, RequestTooLarge, StalePlan
from penelope.policy.eviction import evict_in
from penelope.policy.keys import Key
from penelope.policy.locking import Step, end_of
from penelope.policy.matching import Match, match, require_match
from penelope.policy.state import (
    DEFAULT_NAMESPACE,
    Lease,
    Namespace,
    Node,
    Receipt,
    Residency,
    State,
)

_HELD: Final = "count {} units as held outside the tree"


class Plan(NamedTuple):
    """What a request needs.  All but its three fields follows from them and from the state that
    the match was made on, so a plan cannot say what is not so.
    """

    match: Match
    compute: int
    """Device units of the request's own: holes and new tokens, output and whole pages included.
    What else it allocates is promoted."""
    held: int = 0
    """Device units that an engine which owns its allocator has given away outside the tree."""

    @property
    def holes(self) -> tuple[tuple[int, int], ...]:
        """Spans [start, end) to recompute by phantom requests, in position order."""
        return self.match.holes

    @property
    def awaits(self) -> tuple[tuple[int, int], ...]:
        """Spans that are on their way to the device for another request: read them after that."""
        return self.match.awaits

    @property
    def new(self) -> tuple[int, int]:
        """The span that the real request computes."""
        return self.match.end, self.match.length

    @property
    def allocate(self) -> int:
        """Device units to allocate: what is computed, and host KV to promote."""
        return self.compute + self.match.host

    @property
    def evict(self) -> int:
        """Units that the logical cache, both tiers together, must lose for them."""
        state = self.match.made_on
        over = state.logical_used + self.held + self.compute - state.config.logical_capacity
        return max(0, over)

    @property
    def available(self) -> int:
        """Device units that may be freed: unlocked KV, the request's own prefix not counted, less
        what others were promised."""
        state = self.match.made_on
        return state.available - state.free - self._unlocked()[0]

    @property
    def shortfall(self) -> int:
        """Device units that must be freed, by dropping or moving KV."""
        return max(0, self.held + self.allocate - self.match.made_on.free)

    @property
    def droppable(self) -> int:
        """Units that the logical cache could lose, the request's own prefix not counted."""
        return self.match.made_on.evictable - self._unlocked()[1]

    @property
    def admissible(self) -> bool:
        """Whether `admit` would accept the plan now."""
        state = self.match.made_on
        own_device, own = self._unlocked()
        return (
            self.held + self.allocate <= state.available - own_device
            and self.held <= max(0, state.free)
            and self.evict <= state.evictable - own
            and not self.match.leaving
        )

    def _unlocked(self) -> tuple[int, int]:
        """Units that the request's own lock makes unavailable: on the device, and in all."""
        nodes = self.match.made_on.nodes
        device = both = 0
        for span in self.match.spans:
            if span.residency is not Residency.HOLE and not nodes[span.node].locks:
                both += span.length
                if span.residency is Residency.DEVICE:
                    device += span.length
        return device, both


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
    return Plan(matched, matched.hole + total - matched.end)


def plan_matched(matched: Match, *, units: int = 0, held: int = 0) -> Plan:
    """Plan for an engine that owns its allocator: hold a matched path, and free room beside it.

    Admitted, the plan locks the path, undertakes to refill its holes, and promises the device to
    its host KV and to `units` more, which the engine allocates itself.  `held` is what the engine
    has given away outside the tree; it counts as reserved until the receipt is released.

        undertake refills    admit(plan_matched(matched))
        bring host KV        admit(plan_matched(matched, held=h)), then its transfers
        make room for n      admit(plan_matched(nothing, units=n, held=h)), then its transfers

    Raises `StalePlan` for what is no match, `InvalidAmount`.
    """
    if not isinstance(matched, Match):
        raise StalePlan(f"this is {type(matched).__name__} and no match: match the key")
    return Plan(
        matched,
        amount(units, "make room for {} units"),
        amount(held, _HELD),
    )


class Admitted(NamedTuple):
    state: State
    effects: tuple[Effect, ...]
    receipt: Receipt
    """Holds the matched path, the refills, and the reservation or the promise of it."""
    freed: int
    """Units that the logical cache lost."""
    pending: bool
    """Whether moves must make room first: see `next_transfer`, then `settle_promise`."""


def admit(state: State, plan: Plan) -> Admitted:
    """Start a planned request: a use of what it matched.

    Locks the matched path first, holes included, then drops what the logical cache must lose,
    then reserves what the plan allocates.  Where that needs KV to move between the tiers, the
    units are promised instead, and nobody else can get them.  All or nothing: raises `StalePlan`
    if the plan was made on another state, `InFlight` if a matched span is leaving,
    `InsufficientSpace` if the plan is not admissible, `InvalidAmount`.
    At risk: `no-in-use-eviction`, `minimal-eviction`, `one-hole`, `unified-order`.
    """
    if not isinstance(plan, Plan):
        raise StalePlan(f"this is {type(plan).__name__} and no plan: plan the request")
    require_match(plan.match, state)
    plan.match.require_settled()
    amount(plan.compute, "compute {} units")
    amount(plan.held, _HELD)
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
    if plan.held:
        draft.set_lease(receipt.id, Lease(node.id, plan.held))
    freed = evict_in(draft, plan.evict)
    _promise(draft, receipt, plan.compute, plan.match.host)
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
