"""The persistent ordered map against a sorted dict."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penelope.policy.ticks import TickMap

# Around the powers of the fan-out, where the trie grows a level, and far beyond them.
EDGES: Final = [edge + d for edge in (0, 1, 32, 32**2, 32**3, 32**6) for d in (-1, 0, 1)]
TICKS: Final = st.one_of(
    st.integers(0, 70), st.sampled_from([e for e in EDGES if e >= 0]), st.integers(0, 2**48)
)


@given(st.lists(st.tuples(st.booleans(), TICKS), max_size=80))
def test_it_is_a_sorted_dict_that_never_changes(operations: list[tuple[bool, int]]) -> None:
    tree: TickMap[str] = TickMap()
    plain: dict[int, str] = {}
    history: list[tuple[TickMap[str], dict[int, str]]] = []
    for insert, tick in operations:
        if insert and tick in plain:
            with pytest.raises(ValueError, match=f"tick {tick} is taken"):
                tree.insert(tick, "again")
        elif insert:
            plain[tick] = f"value {tick}"
            tree = tree.insert(tick, plain[tick])
        elif tick in plain:
            del plain[tick]
            tree = tree.remove(tick)
        else:
            with pytest.raises(KeyError):
                tree.remove(tick)
        history.append((tree, dict(plain)))
    for old, expected in history:
        assert list(old.in_order()) == sorted(expected.items())
        assert old.size == len(expected)
        assert old.first() == (expected[min(expected)] if expected else None)


@given(st.sets(TICKS, min_size=1), st.randoms(use_true_random=False))
def test_what_was_inserted_can_be_drained_from_the_front(ticks: set[int], rng: object) -> None:
    order = sorted(ticks)
    rng.shuffle(order)  # type: ignore[attr-defined]
    tree: TickMap[int] = TickMap()
    for tick in order:
        tree = tree.insert(tick, tick)
    drained = []
    while (first := tree.first()) is not None:
        drained.append(first)
        tree = tree.remove(first)
    assert drained == sorted(ticks)
    assert tree.size == 0


@given(st.sets(TICKS))
def test_equal_contents_are_equal_maps_however_they_came_about(ticks: set[int]) -> None:
    """Equality of states rests on it: no trace of what was there in between may stay."""
    up: TickMap[int] = TickMap()
    down: TickMap[int] = TickMap()
    for tick in sorted(ticks):
        up = up.insert(tick, tick)
    for tick in sorted(ticks, reverse=True):
        down = down.insert(tick, tick)
    assert list(up.in_order()) == list(down.in_order())
    assert up == down


@pytest.mark.parametrize("absent", [0, 2, 33, 32 + 32**2, 32**6 + 1])
def test_an_absent_tick_is_named_and_nothing_goes_in_its_place(absent: int) -> None:
    small: TickMap[str] = TickMap()
    small = small.insert(1, "one")
    for tree in (small, small.insert(1 + 32**2, "far")):
        with pytest.raises(KeyError) as missing:
            tree.remove(absent)
        assert missing.value.args == (absent,)


def test_a_tick_is_given_once() -> None:
    tree: TickMap[str] = TickMap()
    with pytest.raises(ValueError, match=r"^tick 1 is taken$"):
        tree.insert(1, "one").insert(1, "again")
