"""Trace invariants that one run can check: `one-hole`."""

from __future__ import annotations

from typing import Unpack

from penelope.policy import Match, NodeId, Position, Residency, State
from penelope_spec.facts import EVICTING, MOVES, Facts
from penelope_spec.registry import Violation
from penelope_spec.structure import band, preorder

# Steps that make no hole but at the head of a private span, and lock nothing.
_NEUTRAL = ("match", "plan", "touch", "release", "reset", "evict", "reserve", *MOVES)


def holes_on_one_history(state: State) -> list[str]:
    """Histories with more than one hole; neighbouring nodes without KV are one hole."""
    wrong: list[str] = []
    holes: dict[int, int] = {}
    for node in preorder(state):
        if node.parent is None:
            holes[node.id] = 0
            continue
        above = state.nodes[node.parent]
        count = holes.get(node.parent, 0)
        if node.residency is Residency.HOLE and (
            above.is_root or above.residency is not Residency.HOLE
        ):
            count += 1
        holes[node.id] = count
        if count > 1 and not node.children:
            wrong.append(f"{count} holes on the history of {band(node)}")
    return wrong


class Trace:
    """Watches a run, one accepted step after another.

    `one-hole` is promised from a state without holes, as long as KV is only evicted, and refilled
    in position order by requests that continue a whole history.  Growth elsewhere (a fork inside
    a retained tail, a lock that ends inside a history, a beginning that was used later than what
    follows it) rightly leads to more holes: it suspends the promise until the next state without
    holes in which every history was used as a whole.
    """

    def __init__(self) -> None:
        self.promised = True

    def step(
        self, before: State, after: State, transition: str, **facts: Unpack[Facts]
    ) -> list[Violation]:
        """Violations of trace invariants by this step, given all steps so far."""
        if _used_in_part(after):
            self.promised = False
        elif not after.totals.hole:
            self.promised = True
        elif not _keeps_promise(before, transition, facts):
            self.promised = False
        if not self.promised:
            return []
        return [Violation("one-hole", text) for text in holes_on_one_history(after)]


def _used_in_part(state: State) -> bool:
    """Whether the walk from some leaf may stop at a use of a part of its history."""
    latest: dict[NodeId, int] = {}
    for node in preorder(state):
        above = -1 if node.parent is None else latest[node.parent]
        if not node.children and above > node.stamp:
            return True
        latest[node.id] = max(above, node.stamp)
    return False


def _keeps_promise(before: State, transition: str, facts: Facts) -> bool:
    if before.moves and transition in EVICTING:
        # What is being moved is locked, wherever on its history it is.
        return False
    if transition == "begin_move" and before.config.position is Position.LEAF_HEAD:
        # What is moved is a node of its own, and leaf-head begins where the leaf node does.
        return False
    if transition in _NEUTRAL:
        return True
    if transition in ("acquire", "admit"):
        matched = facts["plan"].match if transition == "admit" else facts.get("match")
        return matched is not None and _whole_history(before, matched)
    if transition == "refill":
        receipt, start = facts.get("receipt"), facts.get("start")
        return receipt is not None and start == _first_hole(before, before.leases[receipt.id].node)
    return False


def _whole_history(state: State, matched: Match) -> bool:
    if matched.node is None:
        return True
    end = state.nodes[matched.node]
    return matched.end == end.end and not end.children


def _first_hole(state: State, end: NodeId) -> int | None:
    first = None
    node = state.nodes[end]
    while node.parent is not None:
        if node.residency is Residency.HOLE:
            first = node.start
        node = state.nodes[node.parent]
    return first
