"""Whether a cache and its memory agree: who owns each slot, and what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from penelope.policy import Key, MoveId, Node, NodeId, Residency, State
from penelope.runtime.cache import Request
from penelope_spec import Violation, check_slots, check_state

T = TypeVar("T")
Held = Mapping[Residency, Mapping[int, T]]
"""Every allocated slot of each tier, with what it holds."""


class Audited(Protocol):
    """What an audit reads of a cache."""

    @property
    def state(self) -> State: ...
    def resident(self) -> Iterable[tuple[Node, list[int]]]: ...
    def arriving(self) -> Iterable[tuple[MoveId, list[int]]]: ...


TIERS: Final = (Residency.DEVICE, Residency.HOST)


def audit(
    cache: Audited,
    held: Held[T],
    running: Iterable[Request],
    prefill: Callable[[Key], Sequence[T]],
) -> list[Violation]:
    """Every named invariant that one moment can break, in the core's state and in real memory.

    `running` are the requests that have not been released.  `prefill(history)` is what a full
    prefill writes, one value a unit: every resident slot must hold it (`exact-refill`).
    Linear in what the cache holds.
    """
    state = cache.state
    owned: dict[Residency, dict[NodeId, list[int]]] = {tier: {} for tier in TIERS}
    wrong = check_state(state)
    for node, slots in cache.resident():
        owned[node.residency][node.id] = slots
        in_tier = held[node.residency]
        width = state.config.unit_bytes
        written = prefill(Key(node.key[: node.end * width]))[node.start :]
        wrong.extend(
            Violation(
                "exact-refill",
                f"position {at} of node {node.id} is in {node.residency.value} slot {slot}, "
                f"which holds {in_tier[slot]!r} where a prefill writes {due!r}",
            )
            for at, (slot, due) in enumerate(zip(slots, written, strict=False), node.start)
            if slot in in_tier and in_tier[slot] != due
        )
    requests = [slot for request in running for slot in request.owned]
    moving = dict(cache.arriving())
    wrong += check_slots(state, owned[TIERS[0]], held=requests, host=owned[TIERS[1]], moving=moving)
    if len(requests) != state.totals.reserved:
        wrong.append(
            Violation(
                "accounting",
                f"requests own {len(requests)} slots and {state.totals.reserved} are reserved",
            )
        )
    for tier in TIERS:
        owners = {slot for slots in owned[tier].values() for slot in slots}
        owners.update(requests if tier is Residency.DEVICE else ())
        for move, fresh in moving.items():
            owners.update(fresh if state.moves[move].target is tier else ())
        for strays, says in (
            (held[tier].keys() - owners, "are allocated and nobody owns them"),
            (owners - held[tier].keys(), "are owned and not allocated"),
        ):
            if strays:
                wrong.append(Violation("one-copy", f"{tier.value} slots {sorted(strays)} {says}"))
    return wrong
