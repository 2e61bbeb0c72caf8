"""A shell in miniature: it knows slots and effects, and nothing of the policy.

What it asserts is that effects alone are enough to keep every slot with exactly one owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penelope.policy import (
    Adopt,
    Effect,
    Free,
    Merge,
    Moved,
    NodeId,
    Remove,
    Reset,
    Residency,
    Split,
    State,
    Surplus,
)
from tests.property.naive import Space, Units, Where
from tests.property.reading import path_of


@dataclass
class Entry:
    space: Space
    path: Units
    start: int
    slots: list[int] | None
    """One a unit; None for a hole."""
    tier: Residency = Residency.DEVICE
    """Of the slots."""

    @property
    def end(self) -> int:
        return len(self.path)


@dataclass
class Ledger:
    entries: dict[NodeId, Entry] = field(default_factory=dict)
    issued: int = 0

    def allocate(self, units: int) -> list[int]:
        """Slots never seen before: a slot that turns up twice is then surely one owner too many."""
        self.issued += units
        return list(range(self.issued - units, self.issued))

    def follow(
        self,
        effects: tuple[Effect, ...],
        offer: tuple[Space, Units, int] | None = None,
        end: int | None = None,
    ) -> list[tuple[Where, int]]:
        """Do what the effects say.  Returns the spans freed: (page path to its end, start).

        `offer` is a namespace, a history and where the offered slots begin; they must be
        answered from there to `end`, each once.
        """
        freed: list[tuple[Where, int]] = []
        answered: list[tuple[int, int]] = []
        for effect in effects:
            match effect:
                case Split(node, upper, at):
                    self._split(node, upper, at)
                case Merge(upper, node):
                    self._merge(upper, node)
                case Free(node, start, stop, tier):
                    entry = self._whole(node, start, stop)
                    assert entry.slots is not None, f"{effect}: a hole has no slots to free"
                    assert entry.tier is tier, f"{effect}: the slots are on the {entry.tier.value}"
                    entry.slots = None
                    freed.append(((entry.space, entry.path), entry.start))
                case Adopt(node, start, stop):
                    assert offer is not None, f"{effect}: nothing was offered"
                    entry = self.entries.setdefault(
                        node, Entry(offer[0], offer[1][:stop], start, None)
                    )
                    self._whole(node, start, stop)
                    assert entry.path == offer[1][:stop], f"{effect}: not the offered history"
                    assert entry.slots is None, f"{effect}: the node owns slots already"
                    entry.slots, entry.tier = self.allocate(stop - start), Residency.DEVICE
                    answered.append((start, stop))
                case Surplus(node, start, stop):
                    entry = self.entries[node]
                    assert entry.slots is not None, f"{effect}: a hole makes nothing surplus"
                    assert entry.start <= start < stop <= entry.end, f"{effect}: not in the node"
                    answered.append((start, stop))
                case Moved(_, node, start, stop, target):
                    entry = self._whole(node, start, stop)
                    assert entry.slots is not None, f"{effect}: a hole has nothing to move"
                    assert entry.tier is not target, f"{effect}: it is there already"
                    entry.slots, entry.tier = self.allocate(stop - start), target
                case Remove(node):
                    assert self.entries.pop(node).slots is None, f"{effect}: its slots leak"
                case Reset():
                    self.entries.clear()
        if offer is not None and end is not None:
            assert list(_joined(answered)) == ([(offer[2], end)] if offer[2] < end else [])
        return freed

    def _whole(self, node: NodeId, start: int, stop: int) -> Entry:
        entry = self.entries[node]
        assert (entry.start, entry.end) == (start, stop), f"{node} is not [{start}, {stop})"
        return entry

    def _split(self, node: NodeId, upper: NodeId, at: int) -> None:
        entry = self.entries[node]
        assert entry.start < at < entry.end, f"{at} is not inside {entry}"
        assert upper not in self.entries, f"{upper} is known already"
        slots, inside = entry.slots, at - entry.start
        self.entries[upper] = Entry(
            entry.space,
            entry.path[:at],
            entry.start,
            None if slots is None else slots[:inside],
            entry.tier,
        )
        entry.start, entry.slots = at, None if slots is None else slots[inside:]

    def _merge(self, upper: NodeId, node: NodeId) -> None:
        above, entry = self.entries.pop(upper), self.entries[node]
        assert above.path == entry.path[: entry.start], f"{upper} is not right above {node}"
        assert (above.slots is None) == (entry.slots is None), "KV merged with a hole"
        if above.slots is not None and entry.slots is not None:
            assert above.tier is entry.tier, "the tiers differ"
            entry.slots = above.slots + entry.slots
        entry.start = above.start

    def check(self, state: State) -> None:
        """The shell's books agree with the state, and no slot has two owners."""
        nodes = {n.id: n for n in state.nodes.values() if not n.is_root}
        assert self.entries.keys() == nodes.keys()
        owned: dict[Residency, list[int]] = {Residency.DEVICE: [], Residency.HOST: []}
        for node_id, entry in self.entries.items():
            node = nodes[node_id]
            assert (entry.space, entry.path) == path_of(state, node_id)
            assert entry.start == node.start
            assert (entry.slots is None) == (node.residency is Residency.HOLE)
            if entry.slots is not None:
                assert entry.tier is node.residency
                owned[entry.tier] += entry.slots
        device, host = owned.values()
        assert (len(device), len(host)) == (state.totals.device, state.totals.host)
        assert len({*device, *host}) == len(device) + len(host)


def _joined(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Spans in position order with neighbours joined."""
    at: tuple[int, int] | None = None
    for start, end in sorted(spans):
        if at is not None and at[1] == start:
            at = (at[0], end)
        else:
            if at is not None:
                yield at
            at = (start, end)
    if at is not None:
        yield at
