"""When two states are the same small world: equal up to names and to what ticks really are.

Tokens may be renamed after any prefix, requests and moves among themselves, and of ticks only their
order counts, or how long ago they were where the order weighs ages: nothing that the core decides
may depend on more.  Each renaming leads to states that
the same operations, renamed, take to renamed states, so exploring one of them explores all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, permutations, product
from typing import Any

from penelope.policy import MoveId, Node, NodeId, Order, ReceiptId, State

Canonical = tuple[Any, ...]


def canonical(state: State) -> Canonical:
    """The same value for two states exactly when a renaming turns one into the other."""
    if not state.nodes and not state.waiting.order:
        return ()
    stamps = sorted({node.stamp for node in state.nodes.values() if not node.is_root})
    rank = {stamp: at for at, stamp in enumerate(stamps)}
    if state.config.order is not Order.LRU:
        rank = {stamp: state.tick - stamp for stamp in stamps}  # there ages count
    return min(
        (
            _tree(state, rank, receipts, moves),
            tuple(state.waiting.places[ticket].end for ticket in state.waiting.order),
            tuple(_lease(state, receipt) for receipt in receipts),
            tuple(_move(state, move, receipts) for move in moves),
        )
        for receipts, moves in product(
            _namings([(_lease(state, r), r) for r in state.leases]),
            _namings([(_move(state, m, {}), m) for m in state.moves]),
        )
    )


def _namings(items: list[tuple[Any, Any]]) -> Iterator[dict[Any, int]]:
    """Every numbering that puts what differs in order; what looks alike comes in any order."""
    groups = [
        [name for _, name in group] for _, group in groupby(sorted(items), key=lambda item: item[0])
    ]
    for orders in product(*(permutations(group) for group in groups)):
        yield {name: at for at, name in enumerate(name for order in orders for name in order)}


def _lease(state: State, receipt: ReceiptId) -> tuple[int, ...]:
    lease = state.leases[receipt]
    return state.nodes[lease.node].end, lease.reserved, lease.due, lease.promote


def _move(
    state: State, number: MoveId, receipts: dict[ReceiptId, int]
) -> tuple[int, int, str, int]:
    move = state.moves[number]
    owner = -1
    if move.receipt is not None:  # a request that has ended is nobody
        owner = receipts.get(move.receipt, -1)
    return move.start, move.end, move.target.value, owner


def _tree(
    state: State, rank: dict[int, int], receipts: dict[ReceiptId, int], moves: dict[MoveId, int]
) -> tuple[Any, ...]:
    ends: dict[NodeId, list[int]] = {}
    for receipt, lease in state.leases.items():
        ends.setdefault(lease.node, []).append(receipts[receipt])

    def picture(node: Node) -> tuple[Any, ...]:
        """A node by all that a decision can see, and nothing of how it is called."""
        return (
            node.end,
            node.residency.value,
            -1 if node.is_root else rank[node.stamp],
            node.branched and state.config.sticky_shared,
            tuple(sorted(ends.get(node.id, ()))),
            -1 if node.filler is None else receipts.get(node.filler, -2),
            -1 if node.move is None else moves.get(node.move, -2),
            node.retired,
            tuple(
                (state.waiting.order.index(ticket), state.waiting.places[ticket].end)
                for ticket in state.waiting.at.get(node.id, ())
            ),
            tuple(sorted(picture(state.nodes[child]) for child in node.children.values())),
        )

    return tuple(sorted(picture(state.nodes[root]) for root in state.roots.values()))
