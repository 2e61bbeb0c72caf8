"""Keys against naive loops over units."""

from __future__ import annotations

import sys
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penelope.policy import Config, InvalidKey, Key, empty, insert, match, pack
from penelope.policy.keys import common_prefix

UNITS: Final = st.lists(st.integers(0, 2), max_size=40)


@given(st.data(), UNITS, st.integers(0, 40), st.integers(1, 4), st.integers(1, 4))
def test_common_prefix_is_what_a_loop_over_steps_finds(
    data: st.DataObject, units: list[int], agree: int, page: int, width: int
) -> None:
    other = units[:agree] + data.draw(st.lists(st.integers(0, 2), max_size=40))
    step = page * width
    a, b = (Key(b"".join(u.to_bytes(width, "big") for u in us)) for us in (units, other))
    most = min(len(a), len(b)) // step
    start = data.draw(st.integers(0, most))
    stop = data.draw(st.integers(start, most))
    expected = start
    while expected < stop and a[expected * step :][:step] == b[expected * step :][:step]:
        expected += 1
    assert common_prefix(a, b, start * step, stop * step, step) == expected * step


def test_a_key_agrees_with_itself_to_the_end() -> None:
    key = pack(range(100))
    assert common_prefix(key, key, 40, 400, 4) == 400


def test_keys_that_part_at_once_agree_nowhere() -> None:
    assert common_prefix(pack([1, 2, 3]), pack([9, 2, 3]), 0, 12, 4) == 0
    assert common_prefix(pack([0, 1, 2, 3]), pack([0, 9, 2, 3]), 4, 16, 4) == 4


@given(st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_packing_keeps_every_unit_apart(units: list[int]) -> None:
    key = pack(units)
    assert len(key) == 4 * len(units)
    read = [int.from_bytes(key[at : at + 4], "little") for at in range(0, len(key), 4)]
    assert read == units


def test_a_machine_of_the_other_byte_order_swaps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "little" if sys.byteorder == "big" else "big"
    key = pack([1, 0x01020304])
    monkeypatch.setattr("sys.byteorder", other)
    assert pack([1, 0x01020304]) == key[3::-1] + key[:3:-1]


@pytest.mark.parametrize("unit", [-1, 2**32, "1", 1.0, None])
def test_what_is_no_unit_is_refused(unit: object) -> None:
    with pytest.raises(InvalidKey, match="unit id"):
        pack([0, unit])  # type: ignore[list-item]


@pytest.mark.parametrize("length", [1, 2, 3, 5, 7])
def test_a_key_of_broken_units_is_refused(length: int) -> None:
    state = empty(Config(16))
    with pytest.raises(InvalidKey, match="whole units"):
        match(state, Key(bytes(length)))
    with pytest.raises(InvalidKey, match="whole units"):
        insert(state, Key(bytes(length)))
