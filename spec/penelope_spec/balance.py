"""State predicates about counts: counters, locks, and what holes lead to."""

from __future__ import annotations

from collections import Counter

from penelope.policy import NodeId, Residency, State, Totals
from penelope_spec.structure import band, preorder


def recount(state: State) -> Totals:
    """The counters, computed from the nodes, leases and moves alone."""
    units = dict.fromkeys(Residency, 0)
    locked = dict.fromkeys(Residency, 0)
    for node in state.nodes.values():
        length = 0 if node.is_root else node.end - node.start
        units[node.residency] += length
        locked[node.residency] += length if node.locks else 0
    leases = list(state.leases.values())
    moves = list(state.moves.values())
    return Totals(
        device=units[Residency.DEVICE],
        locked=locked[Residency.DEVICE],
        host=units[Residency.HOST],
        hole=units[Residency.HOLE],
        reserved=sum(lease.reserved for lease in leases),
        locked_host=locked[Residency.HOST],
        due=sum(lease.due for lease in leases),
        promote=sum(lease.promote for lease in leases),
        inbound=sum(m.end - m.start for m in moves if m.target is Residency.DEVICE),
        outbound=sum(m.end - m.start for m in moves if m.target is Residency.HOST),
    )


def accounting(state: State) -> list[str]:
    """Incremental counters equal a recount, and what is used fits."""
    counted = recount(state)
    wrong = [
        f"the counter {name} says {kept}, a recount {found}"
        for name, kept, found in zip(Totals._fields, state.totals, counted, strict=True)
        if kept != found
    ]
    config = state.config
    used = counted.device + counted.reserved + counted.inbound
    if used > config.device_capacity:
        wrong.append(f"{used} device units are used of {config.device_capacity}")
    host = counted.host + counted.outbound
    if host > config.host_capacity:
        wrong.append(f"{host} host units are used of {config.host_capacity}")
    wrong.extend(
        f"receipt {receipt} holds {lease.reserved} units, is due {lease.due} and is to be "
        f"promoted {lease.promote}"
        for receipt, lease in state.leases.items()
        if min(lease.reserved, lease.due, lease.promote) < 0
    )
    return wrong


def lock_balance(state: State) -> list[str]:
    """Every node is locked as often as live receipts, and moves in flight, end in or below it."""
    wrong: list[str] = []
    due: Counter[NodeId] = Counter()
    holders = [(f"receipt {receipt}", lease.node) for receipt, lease in state.leases.items()]
    holders += [(f"move {number}", move.node) for number, move in state.moves.items()]
    for holder, node_id in holders:
        due[node_id] += 1
        if node_id not in state.nodes:
            wrong.append(f"{holder} holds node {node_id}, which does not exist")
    for node in reversed(preorder(state)):
        if node.locks != due[node.id]:
            wrong.append(
                f"{band(node)} has {node.locks} locks, {due[node.id]} receipts or moves end in "
                f"or below it"
            )
        if node.parent is not None:
            due[node.parent] += due[node.id]
    return wrong


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
