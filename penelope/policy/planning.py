"""What a request would need, decided before anything changes."""

from __future__ import annotations

from typing import NamedTuple

from penelope.policy.draft import Draft
from penelope.policy.effects import Effect
from penelope.policy.errors import InsufficientSpace, InvalidAmount, RequestTooLarge
from penelope.policy.eviction import evict_in
from penelope.policy.keys import Key
from penelope.policy.matching import Match, match
from penelope.policy.transitions import Step, end_of
from penelope.policy.tree import (
    DEFAULT_NAMESPACE,
    Lease,
    Namespace,
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
    """Holes that another running request is refilling: compute nothing, read them after it."""
    allocate: int
    """Device units to allocate: holes, host KV to promote, and new tokens in whole pages."""
    evict: int
    """How many of these must be freed first."""
    available: int
    """What may be freed: unlocked KV, the request's own prefix not counted."""

    @property
    def admissible(self) -> bool:
        """Whether `admit` would accept the plan now."""
        return self.evict <= self.available

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
    if extra < 0:
        raise InvalidAmount(f"cannot make room for {extra} further units: give 0 or more")
    matched = match(state, key, namespace, at_most=at_most)
    page = state.config.page_size
    total = -(-(matched.length + extra) // page) * page
    if total > state.config.device_capacity:
        raise RequestTooLarge(
            f"the request needs {total} units and the device holds "
            f"{state.config.device_capacity}: shorten it or enlarge the device cache"
        )
    own = sum(
        span.length
        for span in matched.spans
        if span.residency is Residency.DEVICE and not state.nodes[span.node].locks
    )
    allocate = matched.hole + matched.host + total - matched.end
    return Plan(
        matched,
        _ranges(matched, arriving=False),
        _ranges(matched, arriving=True),
        allocate,
        max(0, allocate - state.free),
        state.evictable - own,
    )


def _ranges(matched: Match, *, arriving: bool) -> tuple[tuple[int, int], ...]:
    """The matched holes, neighbours joined."""
    ranges: list[tuple[int, int]] = []
    for span in matched.spans:
        if span.residency is Residency.HOLE and span.arriving is arriving:
            start = ranges.pop()[0] if ranges and ranges[-1][1] == span.start else span.start
            ranges.append((start, span.end))
    return tuple(ranges)


class Admitted(NamedTuple):
    state: State
    effects: tuple[Effect, ...]
    receipt: Receipt
    """Holds the matched path, the reservation of `Plan.allocate` units and the refills."""
    freed: int


def admit(state: State, plan: Plan) -> Admitted:
    """Start a planned request: a use of what it matched.

    Locks the matched path first, holes included, then evicts the shortfall, then reserves what
    the plan allocates.  All or nothing: raises `StalePlan` if the plan was made on another
    state, `InsufficientSpace` if it is not admissible.
    At risk: `no-in-use-eviction`, `minimal-eviction`, `one-hole`.
    """
    plan.match.require(state)
    if not plan.admissible:
        raise InsufficientSpace(
            f"the request must free {plan.evict} units where {plan.available} are evictable: "
            f"wait until a running request ends"
        )
    draft = Draft(state)
    node = end_of(draft, plan.match)
    if not node.is_root:
        node = draft.stamp(node)
    receipt = draft.issue(node, plan.allocate)
    for span in plan.match.spans:
        if span.residency is Residency.HOLE and not span.arriving:
            hole = draft.nodes[span.node]
            draft.nodes[hole.id] = hole._replace(filler=receipt.id)
    freed = evict_in(draft, plan.evict)
    draft.merge_path(node.id, used_now=True)
    return Admitted(*draft.close(), receipt, freed)


def reserve(state: State, receipt: Receipt, units: int) -> Step:
    """Enlarge a running request's reservation, evicting the shortfall: its output grows.

    Raises `UnknownReceipt`, `InsufficientSpace`, `InvalidAmount`.
    """
    if units < 0:
        raise InvalidAmount(f"cannot reserve {units} units: give 0 or more")
    draft = Draft(state)
    lease = draft.lease(receipt)
    draft.require(units)
    evict_in(draft, units - draft.free)
    draft.set_lease(receipt, Lease(lease.node, lease.reserved + units))
    return Step(*draft.close())
