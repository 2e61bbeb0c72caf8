"""Handing KV over to the tree, and forgetting all of it.

Each function takes a state and returns a new one with the effects that a shell must carry out, or
raises a `Refused` and changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from penelope.policy.amounts import whole_number
from penelope.policy.draft import Draft
from penelope.policy.effects import Adopt, Effect, Free, Reset, Surplus
from penelope.policy.errors import (
    InFlight,
    InsufficientSpace,
    InUse,
    NotAPrefix,
    NotBeingRefilled,
    OverCapacity,
)
from penelope.policy.keys import Key
from penelope.policy.locking import Step
from penelope.policy.matching import length_of, require_namespace, walk
from penelope.policy.state import (
    DEFAULT_NAMESPACE,
    Namespace,
    Node,
    Receipt,
    Residency,
    State,
)
from penelope.policy.waiting import forgotten


class Inserted(NamedTuple):
    """The three answers to an offer of slots, in units.  They add up to what was offered."""

    state: State
    effects: tuple[Effect, ...]
    adopted: int
    """The tree owns these slots now (`Adopt`)."""
    resident: int
    """The tree had this KV already (`Surplus`)."""
    unaligned: int
    """The end of the key that fills no page: still the caller's."""


class Refilled(NamedTuple):
    """The answers to an offer of slots for a hole, in units."""

    state: State
    effects: tuple[Effect, ...]
    adopted: int
    resident: int
    """Filled by somebody else in the meantime (`Surplus`)."""


def insert(
    state: State, key: Key, namespace: Namespace = DEFAULT_NAMESPACE, *, start: int = 0
) -> Inserted:
    """Offer the KV of key[start:] to the tree: a use of this history that ends now.

    What the tree lacks is adopted, holes included; what it has is answered as surplus.
    Units before `start`, which are whole pages, are not offered and must match.  Raises
    `NotAPrefix` if they do not, `InFlight` if a span of the offer is being moved, `OverCapacity`
    if more would be adopted than is free, `InvalidKey`.
    At risk: `one-copy`, `accounting`.
    """
    page = state.config.page_size
    begins = whole_number(start)
    if begins is None or begins < 0 or begins % page:
        raise NotAPrefix(
            f"an offer cannot start at {start!r}: start at a multiple of the page size {page}"
        )
    start = begins
    require_namespace(namespace)
    draft = Draft(state)
    end, inserted = _insert_in(draft, draft.root(namespace), key, start)
    _require_room(draft, inserted[0])
    if end.is_root:
        draft.prune(end.id)
    else:
        draft.merge_path(end.id, used_now=True)
        draft.merge(draft.nodes[end.id])  # where nothing was offered, it may end in a hole
    return Inserted(*draft.close(), *inserted)


def checkpoint(state: State, receipt: Receipt, key: Key) -> Inserted:
    """Offer what a running request has computed beyond its lock, and extend the lock over it.

    `key` is the request's history so far.  Adopted and surplus units leave the reservation.
    Raises `UnknownReceipt`, `NotAPrefix` if the key leaves the locked path, `InFlight` if a span
    of the offer is being moved, `OverCapacity`, `InvalidKey`.
    """
    draft = Draft(state)
    lease = draft.lease(receipt)
    held = draft.nodes[lease.node]
    length_of(state.config, key)
    # A node's key is its whole path: one comparison stands for the walk from the root.
    if not key.startswith(memoryview(held.key)[: held.end * state.config.unit_bytes]):
        raise NotAPrefix(
            f"the key leaves the path of {held.end} units that receipt {receipt.id} holds: give "
            f"the request's whole history"
        )
    end, inserted = _insert_in(draft, held, key, held.end)
    draft.lock(end.id, above=held.id)
    consumed = min(lease.reserved, inserted[0] + inserted[1])
    draft.set_lease(receipt.id, lease._replace(node=end.id, reserved=lease.reserved - consumed))
    _require_room(draft, inserted[0])
    draft.merge_path(end.id, used_now=True)
    return Inserted(*draft.close(), *inserted)


def _insert_in(
    draft: Draft, above: Node, key: Key, start: int
) -> tuple[Node, tuple[int, int, int]]:
    """Insert below `above`: the node where the key ends, and (adopted, resident, unaligned)."""
    length = length_of(draft.config, key)
    aligned = length - length % draft.config.page_size
    path = list(walk(draft.config, draft.nodes, above, key, aligned))
    reach = path[-1][1] if path else above.end
    if reach < start:
        raise NotAPrefix(
            f"the key leaves the tree at {reach}, before {start} where the offer starts: "
            f"offer from the end of the match"
        )
    node, adopted, resident = above, 0, 0
    for node, agreed in path:
        low = max(start, node.start)
        if low < agreed and node.move is not None:
            raise InFlight(
                f"[{low}, {agreed}) is being moved to the {_target(draft, node)}: wait for the "
                f"move or fail it, and offer again"
            )
        if low < agreed and node.residency is not Residency.DEVICE:
            node = _adopt(draft, node, low, agreed)
            adopted += node.length
        else:
            if low < agreed:
                draft.effects.append(Surplus(node.id, low, agreed))
                resident += agreed - low
            if agreed < node.end:
                node, _ = draft.split(node, agreed)
    if reach < aligned:
        node = draft.add_leaf(draft.nodes[node.id], key, aligned)
        draft.effects.append(Adopt(node.id, node.start, node.end))
        adopted += node.length
    elif not node.is_root:
        node = draft.stamp(node)
    return node, (adopted, resident, length - aligned)


def _target(draft: Draft, node: Node) -> str:
    assert node.move is not None
    return draft.moves[node.move].target.value


def _adopt(draft: Draft, node: Node, start: int, end: int) -> Node:
    """Fill [start, end) of a hole with the caller's slots; a host copy makes way for them."""
    if start > node.start:
        _, node = draft.split(node, start)
    if end < node.end:
        node, _ = draft.split(node, end)
    if node.residency is Residency.HOST:
        draft.effects.append(Free(node.id, start, end, Residency.HOST))
    draft.effects.append(Adopt(node.id, start, end))
    return draft.settle_on(node, Residency.DEVICE)


def _require_room(draft: Draft, adopted: int) -> None:
    """Raises `OverCapacity` if what was adopted was neither reserved nor free."""
    if draft.free < 0:
        raise OverCapacity(
            f"{adopted} units are offered for adoption, {-draft.free} more than are free: "
            f"evict or reserve them first"
        )
    try:
        draft.keep_promises()
    except InsufficientSpace as error:
        raise OverCapacity(f"{adopted} units are offered for adoption: {error}") from None


def refill(state: State, receipt: Receipt, start: int, end: int) -> Refilled:
    """Give [start, end) of a hole its KV back: exactly the slots offered are adopted.

    The receipt must have undertaken the refill by `admit`.  A large hole may be refilled in
    several parts, in position order, at page boundaries.  Raises `UnknownReceipt`,
    `NotBeingRefilled`.  At risk: `one-copy`, `exact-refill`.
    """
    draft = Draft(state)
    lease = draft.lease(receipt)
    low, high = whole_number(start), whole_number(end)
    overlap = []
    if low is not None and high is not None and 0 <= low < high:
        start, end = low, high
        overlap = [n for n in draft.path(lease.node) if n.start < end and n.end > start]
    page = draft.config.page_size
    if not overlap or start % page or end % page or overlap[0].end < end:
        raise NotBeingRefilled(
            f"[{start}, {end}) is not a span of whole pages on the path that receipt "
            f"{receipt.id} holds: refill the holes of the plan that was admitted"
        )
    adopted = 0
    for node in reversed(overlap):
        low, high = max(start, node.start), min(end, node.end)
        if node.residency is Residency.DEVICE:
            draft.effects.append(Surplus(node.id, low, high))
        elif node.filler == receipt.id:
            adopted += _adopt(draft, node, low, high).length
        else:
            raise NotBeingRefilled(
                f"[{low}, {high}) is a hole that receipt {receipt.id} has not undertaken to "
                f"refill: plan and admit the request again"
            )
    consumed = min(lease.reserved, end - start)
    draft.set_lease(receipt.id, lease._replace(reserved=lease.reserved - consumed))
    _require_room(draft, adopted)
    draft.merge_path(lease.node)
    return Refilled(*draft.close(), adopted, end - start - adopted)


def reset(state: State) -> Step:
    """Forget every history.  Raises `InUse` while receipts are live or moves are in flight.

    Ids and the tick go on from where they are, so nothing old is ever mistaken for new.
    """
    if state.leases:
        raise InUse(f"{len(state.leases)} receipts are live: release them before a reset")
    if state.moves:
        raise InUse(f"{len(state.moves)} moves are in flight: end them before a reset")
    fresh = State(
        state.config,
        tick=state.tick,
        next_node=state.next_node,
        next_receipt=state.next_receipt,
        next_move=state.next_move,
        origin=state.origin,
        waiting=forgotten(state.waiting),
    )
    return Step(fresh, (Reset(),))
