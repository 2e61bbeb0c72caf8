"""State predicates about counts: counters, locks, what is in flight, and what holes lead to."""

from __future__ import annotations

from collections import Counter

from penelope.policy import NodeId, Residency, State, Totals
from penelope_spec.structure import band, preorder


def recount(state: State) -> Totals:
    """The counters, computed from the nodes and leases alone."""
    device = locked = host = hole = 0
    for node in state.nodes.values():
        length = 0 if node.is_root else node.end - node.start
        if node.residency is Residency.DEVICE:
            device += length
            locked += length if node.locks else 0
        elif node.residency is Residency.HOST:
            host += length
        else:
            hole += length
    reserved = sum(lease.reserved for lease in state.leases.values())
    return Totals(device, locked, host, hole, reserved)


def accounting(state: State) -> list[str]:
    """Incremental counters equal a recount, and what is used fits."""
    counted = recount(state)
    wrong = [
        f"the counter {name} says {kept}, a recount {found}"
        for name, kept, found in zip(Totals._fields, state.totals, counted, strict=True)
        if kept != found
    ]
    used, capacity = counted.device + counted.reserved, state.config.device_capacity
    if used > capacity:
        wrong.append(f"{used} device units are used of {capacity}")
    wrong.extend(
        f"receipt {receipt} reserves {lease.reserved} units"
        for receipt, lease in state.leases.items()
        if lease.reserved < 0
    )
    return wrong


def lock_balance(state: State) -> list[str]:
    """Every node is locked as often as live receipts end in it or below it."""
    wrong: list[str] = []
    due: Counter[NodeId] = Counter()
    for receipt, lease in state.leases.items():
        due[lease.node] += 1
        if lease.node not in state.nodes:
            wrong.append(f"receipt {receipt} holds node {lease.node}, which does not exist")
    for node in reversed(preorder(state)):
        if node.locks != due[node.id]:
            wrong.append(
                f"{band(node)} has {node.locks} locks, {due[node.id]} receipts end in or below it"
            )
        if node.parent is not None:
            due[node.parent] += due[node.id]
    return wrong


def in_flight(state: State) -> list[str]:
    """A span in flight is a hole, and the receipt that refills it is live and covers it."""
    claimed = [node for node in state.nodes.values() if node.filler is not None]
    if not claimed:
        return []
    position = {node.id: index for index, node in enumerate(preorder(state))}
    wrong: list[str] = []
    for node in claimed:
        lease = None if node.filler is None else state.leases.get(node.filler)
        if node.residency is not Residency.HOLE:
            wrong.append(f"{band(node)} is in flight for receipt {node.filler} and has KV")
        if lease is None:
            wrong.append(f"{band(node)} is in flight for receipt {node.filler}, which is not live")
        elif not _covers(state, lease.node, node.id, len(position)):
            wrong.append(f"{band(node)} is in flight for receipt {node.filler}, not on its path")
    return wrong


def _covers(state: State, end: NodeId, sought: NodeId, limit: int) -> bool:
    """Whether `sought` is on the path from the root to `end`, in at most `limit` steps."""
    at: NodeId | None = end
    for _ in range(limit):
        if at == sought:
            return True
        node = None if at is None else state.nodes.get(at)
        if node is None:
            return False
        at = node.parent
    return at == sought


def no_dangling_hole(state: State) -> list[str]:
    """Every unlocked hole leads to KV."""
    wrong: list[str] = []
    leads: set[NodeId] = set()
    for node in reversed(preorder(state)):
        if node.residency is not Residency.HOLE:
            leads.add(node.id)
        if node.id in leads:
            if node.parent is not None:
                leads.add(node.parent)
        elif not node.locks and not node.is_root:
            wrong.append(f"{band(node)} is an unlocked hole with no KV below it")
    return wrong
