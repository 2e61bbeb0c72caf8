"""Keys: immutable sequences of opaque units, packed into bytes.

The core slices, hashes and compares keys; it never looks inside a unit.  Packed bytes let a
comparison of 100,000 tokens be one `memcmp`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import NewType

from penelope.policy.errors import InvalidKey

Key = NewType("Key", bytes)
"""A whole number of units of `Config.unit_bytes` bytes each."""

UNIT_BYTES = 4
"""Width of the units that `pack` makes."""

_UINT32 = next(code for code in "IL" if array(code).itemsize == UNIT_BYTES)


def pack(units: Iterable[int]) -> Key:
    """Pack unit ids (token ids, block hashes), each in [0, 2**32), into a key.

    Little-endian on every machine, so that a key means the same in every process.
    Raises `InvalidKey` for an id that is no integer or outside the range, and for bytes, which
    are no ids: a key that is packed stays as it is.
    """
    if isinstance(units, bytes | bytearray) or (
        isinstance(units, memoryview) and units.itemsize == 1
    ):
        raise InvalidKey(
            f"pack takes unit ids, and this is {type(units).__name__}: give integers, or use a "
            f"packed key as it is"
        )
    try:
        packed = array(_UINT32, units)
    except (OverflowError, TypeError) as error:
        raise InvalidKey(f"a unit id must be an integer in [0, 2**32): {error}") from None
    if sys.byteorder == "big":
        packed.byteswap()
    return Key(packed.tobytes())


def common_prefix(a: Key, b: Key, start: int, stop: int, step: int) -> int:
    """First byte offset in [start, stop], a multiple of `step` from `start`, where a and b part.

    Both keys must reach `stop`.  O(stop - start) bytes compared, by `memcmp`: never unit by unit.
    """
    view = memoryview(b)
    if a is b or a.startswith(view[start:stop], start):
        return stop
    low, high = 0, (stop - start) // step  # `low` steps agree, `high + 1` do not
    while low < high:
        middle = (low + high + 1) // 2
        if a.startswith(view[start + low * step : start + middle * step], start + low * step):
            low = middle
        else:
            high = middle - 1
    return start + low * step
