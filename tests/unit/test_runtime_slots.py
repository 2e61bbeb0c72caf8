"""The slot table follows effects; splits and merges move boundaries, never slots."""

from __future__ import annotations

from itertools import chain

import pytest

from penelope.policy import Adopt, Effect, Free, Merge, NodeId, Remove, Reset, Split, Surplus
from penelope.runtime.slots import SlotTable

A, B, C = NodeId(1), NodeId(2), NodeId(3)


def joined(pieces: list[list[int]]) -> list[int]:
    return [*chain(*pieces)]


def table(*effects: Effect, first: int = 100) -> SlotTable[list[int]]:
    """A table after these effects, where position p is offered slot `first + p`."""
    made: SlotTable[list[int]] = SlotTable(joined)
    apply(made, *effects, first=first)
    return made


def apply(slots: SlotTable[list[int]], *effects: Effect, first: int = 100) -> list[int]:
    """Follow the effects; the slots that they freed."""
    staged = slots.stage(effects, lambda low, high: list(range(first + low, first + high)))
    slots.commit(staged)
    return joined(list(staged.freed))


def held(slots: SlotTable[list[int]], node: NodeId, start: int, end: int) -> list[int]:
    return slots.part(node, start, end)


def nodes(slots: SlotTable[list[int]]) -> list[NodeId]:
    return [node for node, _, _ in slots.items()]


def test_adopted_slots_are_the_offered_ones() -> None:
    slots = table(Adopt(A, 2, 6))
    assert nodes(slots) == [A]
    assert held(slots, A, 2, 6) == [102, 103, 104, 105]
    assert held(slots, A, 3, 5) == [103, 104]
    assert held(slots, A, 0, 3) == [102]


def test_a_split_gives_the_upper_half_its_slots() -> None:
    slots = table(Adopt(A, 0, 6), Split(A, B, 2))
    assert held(slots, B, 0, 2) == [100, 101]
    assert held(slots, A, 2, 6) == [102, 103, 104, 105]
    assert held(slots, A, 0, 2) == []


def test_a_merge_gives_the_lower_half_everything() -> None:
    slots = table(Adopt(A, 0, 6), Split(A, B, 2), Merge(B, A))
    assert nodes(slots) == [A]
    assert held(slots, A, 0, 6) == list(range(100, 106))


def test_holes_split_and_merge_without_slots() -> None:
    slots = table(Split(A, B, 2), Merge(B, A))
    assert nodes(slots) == []


def test_freed_slots_are_named_and_gone() -> None:
    slots = table(Adopt(A, 0, 4), Split(A, B, 2))
    assert apply(slots, Free(B, 0, 2), Remove(B)) == [100, 101]
    assert nodes(slots) == [A]


def test_surplus_names_the_slots_of_the_tree() -> None:
    slots = table(Adopt(A, 0, 4))
    staged = slots.stage([Surplus(A, 1, 3)])
    assert staged.surplus == ((1, [101, 102]),)
    assert not staged.freed


def test_effects_see_those_before_them_in_one_step() -> None:
    slots = table(Adopt(A, 0, 4))
    assert apply(slots, Split(A, B, 2), Split(A, C, 3), Free(C, 2, 3), first=900) == [102]
    assert held(slots, A, 3, 4) == [103]
    assert held(slots, B, 0, 2) == [100, 101]


def test_a_reset_frees_everything() -> None:
    slots = table(Adopt(A, 0, 2), Adopt(B, 2, 4))
    assert sorted(apply(slots, Reset())) == [100, 101, 102, 103]
    assert nodes(slots) == []


def test_staging_changes_nothing() -> None:
    slots = table(Adopt(A, 0, 4))
    staged = slots.stage([Split(A, B, 2), Free(B, 0, 2), Free(A, 2, 4)])
    assert joined(list(staged.freed)) == [100, 101, 102, 103]
    assert nodes(slots) == [A]
    assert held(slots, A, 0, 4) == [100, 101, 102, 103]


def test_many_merges_keep_the_pieces_few() -> None:
    """A history that grows by a token at a time stays cheap to cut."""
    pieces: list[int] = []

    def counted(parts: list[list[int]]) -> list[int]:
        pieces.append(len(parts))
        return joined(parts)

    slots: SlotTable[list[int]] = SlotTable(counted)
    apply(slots, Adopt(NodeId(0), 0, 1))
    for at in range(1, 500):
        apply(slots, Adopt(NodeId(at), at, at + 1), Merge(NodeId(at - 1), NodeId(at)))
    assert slots.part(NodeId(499), 0, 500) == list(range(100, 600))
    assert 1 < pieces[-1] <= max(pieces) <= 33


@pytest.mark.parametrize("effect", [Surplus(A, 0, 2), Free(A, 0, 2)])
def test_a_node_that_should_hold_slots_and_does_not_is_a_bug(effect: Effect) -> None:
    with pytest.raises(AssertionError, match="resident node without slots"):
        SlotTable(joined).stage([effect])
    with pytest.raises(AssertionError, match="slots are adopted that nobody offered"):
        SlotTable(joined).stage([Adopt(A, 0, 2)])
