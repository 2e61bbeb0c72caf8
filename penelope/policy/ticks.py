"""A persistent map from ticks to values, ordered by tick.

It holds the histories that may be evicted, least recently used first.  A hash map has no order,
and no maintained package offers a persistent sorted one, so this is a trie over the 5-bit digits
of the tick: insert, remove and first cost O(log32 tick) whatever the number of entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Generic, NamedTuple, TypeVar

V = TypeVar("V")

_BITS: Final = 5
_DIGIT: Final = (1 << _BITS) - 1

# An inner trie node is (mask, child, child, …): bit d of the mask is set when digit d is present,
# and the children stand in digit order.  At height 0 the children are the values.
_Trie = tuple[Any, ...]
_EMPTY: Final[_Trie] = (0,)


def _insert(trie: _Trie, height: int, tick: int, value: object) -> _Trie:
    bit = 1 << ((tick >> (height * _BITS)) & _DIGIT)
    mask: int = trie[0]
    at = (mask & (bit - 1)).bit_count() + 1
    present = mask & bit
    if height:
        value = _insert(trie[at] if present else _EMPTY, height - 1, tick, value)
    elif present:
        raise ValueError(f"tick {tick} is taken")
    return (mask | bit, *trie[1:at], value, *trie[at + 1 if present else at :])


def _remove(trie: _Trie, height: int, tick: int) -> _Trie:
    bit = 1 << ((tick >> (height * _BITS)) & _DIGIT)
    mask: int = trie[0]
    if not mask & bit:
        raise KeyError(tick)
    at = (mask & (bit - 1)).bit_count() + 1
    if height:
        child = _remove(trie[at], height - 1, tick)
        if child[0]:
            return (*trie[:at], child, *trie[at + 1 :])
    return (mask & ~bit, *trie[1:at], *trie[at + 1 :])


class TickMap(NamedTuple, Generic[V]):
    """Immutable; every change returns a new map that shares all but one path with the old."""

    size: int = 0
    height: int = 0
    trie: _Trie = _EMPTY

    def insert(self, tick: int, value: V) -> TickMap[V]:
        """With `tick` (>= 0) mapped to `value`.  Raises ValueError if the tick is taken."""
        height, trie = self.height, self.trie
        while tick >> ((height + 1) * _BITS):
            trie = (1, trie) if trie[0] else _EMPTY
            height += 1
        return TickMap(self.size + 1, height, _insert(trie, height, tick, value))

    def remove(self, tick: int) -> TickMap[V]:
        """Without `tick`.  Raises KeyError if it is absent."""
        if tick >> ((self.height + 1) * _BITS):
            raise KeyError(tick)
        return TickMap(self.size - 1, self.height, _remove(self.trie, self.height, tick))

    def first(self) -> V | None:
        """The value of the smallest tick, None when the map is empty."""
        if not self.size:
            return None
        trie = self.trie
        for _ in range(self.height):
            trie = trie[1]
        value: V = trie[1]
        return value

    def first_entry(self) -> tuple[int, V]:
        """The smallest tick with its value.  The map must not be empty."""
        return self._entry(1)

    def last_entry(self) -> tuple[int, V]:
        """The largest tick with its value.  The map must not be empty."""
        return self._entry(-1)

    def _entry(self, side: int) -> tuple[int, V]:
        """The entry at one end of the order: the first child of every trie node, or the last."""
        trie, tick = self.trie, 0
        for height in range(self.height, -1, -1):
            mask: int = trie[0]
            lowest = (mask & -mask).bit_length() - 1
            tick = tick << _BITS | (lowest if side > 0 else mask.bit_length() - 1)
            if height:
                trie = trie[side]
        value: V = trie[side]
        return tick, value

    def in_order(self) -> Iterator[tuple[int, V]]:
        """Pairs (tick, value), smallest tick first."""

        def walk(trie: _Trie, height: int, prefix: int) -> Iterator[tuple[int, V]]:
            mask, at = trie[0], 1
            while mask:
                digit = (mask & -mask).bit_length() - 1
                mask &= mask - 1
                if height:
                    yield from walk(trie[at], height - 1, (prefix | digit) << _BITS)
                else:
                    yield prefix | digit, trie[at]
                at += 1

        yield from walk(self.trie, self.height, 0)
