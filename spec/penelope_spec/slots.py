"""`one-copy` where it is about real memory: what a shell owns, beside what the core says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penelope.policy import MoveId, NodeId, Residency, State
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
    host_free: Iterable[int] = (),
    moving: Mapping[MoveId, Sequence[int]] | None = None,
) -> list[Violation]:
    """Every node owns one slot a unit, in its own tier only, and every slot has one owner.

    `device` and `host` map resident nodes to their slots in that tier, `free` and `host_free` are
    the allocators' lists, `held` what requests own outside the tree.  `moving` maps the moves in
    flight to the slots of the tier that they go to, one a unit of the move: until a move ends its
    span has slots in both tiers.
    """
    host, moving = host or {}, moving or {}
    wrong = _of_moves(state, moving)
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
    arriving: dict[Residency, dict[str, Iterable[int]]] = {tier: {} for tier in tiers}
    for number, slots in moving.items():
        if number in state.moves:
            arriving[state.moves[number].target][f"move {number}"] = slots
    others = {"free": free, "held by a request": held, **arriving[Residency.DEVICE]}
    wrong += _twice("device", device, others)
    wrong += _twice("host", host, {"free": host_free, **arriving[Residency.HOST]})
    return [Violation("one-copy", text) for text in wrong]


def _of_moves(state: State, moving: Mapping[MoveId, Sequence[int]]) -> list[str]:
    """Each move in flight owns as many slots as it moves units, and no other move owns any."""
    wrong = [
        f"move {number} owns {len(moving.get(number, ()))} slots, {move.end - move.start} are due"
        for number, move in state.moves.items()
        if len(moving.get(number, ())) != move.end - move.start
    ]
    gone = sorted(moving.keys() - state.moves.keys())
    return [*wrong, *(f"move {number} owns slots and is not in flight" for number in gone)]


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
