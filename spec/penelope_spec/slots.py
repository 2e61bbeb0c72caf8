"""`one-copy` where it is about real memory: what a shell owns, beside what the core says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penelope.policy import NodeId, Residency, State
from penelope_spec.registry import Violation
from penelope_spec.structure import band

Slots = Mapping[NodeId, Sequence[int]]


def check_slots(
    state: State,
    device: Slots,
    *,
    free: Iterable[int] = (),
    held: Iterable[int] = (),
    host: Slots | None = None,
) -> list[Violation]:
    """Every node owns one slot a unit, in its own tier only, and every slot has one owner.

    `device` and `host` map resident nodes to their slots in that tier, `free` is the device
    allocator's list, `held` what requests own outside the tree.
    """
    host = host or {}
    wrong: list[str] = []
    tiers = {Residency.DEVICE: device, Residency.HOST: host}
    for node in state.nodes.values():
        for tier, owned in tiers.items():
            due = node.end - node.start if node.residency is tier and not node.is_root else 0
            got = len(owned.get(node.id, ()))
            if got != due:
                wrong.append(f"{band(node)} owns {got} {tier.value} slots, {due} are due")
    for tier, owned in tiers.items():
        wrong.extend(
            f"node {node} owns {tier.value} slots and does not exist"
            for node in owned
            if node not in state.nodes
        )
    wrong += _twice("device", device, {"free": free, "held by a request": held})
    wrong += _twice("host", host, {})
    return [Violation("one-copy", text) for text in wrong]


def _twice(tier: str, nodes: Slots, others: Mapping[str, Iterable[int]]) -> list[str]:
    """Slots with more than one owner."""
    owner: dict[int, str] = {}
    wrong: list[str] = []
    claims = [(f"node {node}", slots) for node, slots in nodes.items()]
    claims += [(name, tuple(slots)) for name, slots in others.items()]
    for name, slots in claims:
        for slot in slots:
            if slot in owner:
                wrong.append(f"{tier} slot {slot} belongs to {owner[slot]} and to {name}")
            owner[slot] = name
    return wrong
