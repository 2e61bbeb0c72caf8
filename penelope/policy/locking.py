"""Using histories, and locking them while they are in use.

Each function takes a state and returns a new one with the effects that a shell must carry out, or
raises a `Refused` and changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from penelope.policy.draft import Draft
from penelope.policy.effects import Effect
from penelope.policy.matching import Match, require_match
from penelope.policy.state import (
    Node,
    Receipt,
    State,
)


class Step(NamedTuple):
    state: State
    effects: tuple[Effect, ...]


class Acquired(NamedTuple):
    state: State
    effects: tuple[Effect, ...]
    receipt: Receipt


def touch(state: State, matched: Match) -> Step:
    """Count the match as a use of what it matched, now.

    Raises `StalePlan` if it was made on another state.
    """
    require_match(matched, state)
    if matched.node is None:
        return Step(state, ())
    draft = Draft(state)
    node = draft.stamp(end_of(draft, matched))
    draft.merge_path(node.id, used_now=True)
    return Step(*draft.close())


def acquire(state: State, matched: Match) -> Acquired:
    """Lock the matched path, holes included.  The receipt releases it, once.

    Locking an empty match protects nothing, and still balances.  Raises `StalePlan`, `InFlight`
    if a span of the match is leaving the device, and `InsufficientSpace` if the lock would take
    what a request that waits for moves was promised.
    """
    require_match(matched, state)
    matched.require_settled()
    draft = Draft(state)
    receipt = draft.issue(end_of(draft, matched))
    draft.keep_promises()
    return Acquired(*draft.close(), receipt)


def end_of(draft: Draft, matched: Match) -> Node:
    """The node that ends where the match ends, cut there if need be; the root if none matched."""
    if matched.node is None:
        return draft.root(matched.namespace)
    node = draft.nodes[matched.node]
    if matched.end < node.end:
        node, _ = draft.split(node, matched.end)
    return node


def release(state: State, receipt: Receipt) -> Step:
    """Undo a lock and give back what is left of its reservation.

    Holes that the receipt had undertaken to refill are plain holes again.
    Raises `UnknownReceipt` if the receipt is not live.
    """
    draft = Draft(state)
    lease = draft.lease(receipt)
    draft.withdraw(receipt.id)
    end = draft.unlock(lease.node, receipt.id)
    if end is not None:
        draft.merge_path(end)
    return Step(*draft.close())
