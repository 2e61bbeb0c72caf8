"""Where a history is cut, in integers alone: simple enough for a symbolic search."""

from __future__ import annotations

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from penelope.policy import Config, empty, evict, insert, pack
from penelope.policy.eviction import head_target, tail_target

LENGTHS: Final = st.integers(0, 2**40)
BLOCKS: Final = st.sampled_from([1, 2, 16, 64])


def by_block(block: int) -> Config:
    return Config(2**41, 1, block)


@given(BLOCKS, LENGTHS, st.integers(1, 2**40))
def test_a_head_ends_at_the_first_boundary_that_frees_enough(
    block: int, start: int, need: int
) -> None:
    end = head_target(by_block(block), start, need)
    assert end % block == 0
    assert start + need <= end < start + need + block


@given(BLOCKS, LENGTHS, st.integers(1, 2**40))
def test_a_tail_begins_at_the_last_boundary_that_frees_enough(
    block: int, end: int, need: int
) -> None:
    start = tail_target(by_block(block), end, need)
    assert start % block == 0
    if need <= end:
        assert end - need - block < start <= end - need
    else:
        assert start == 0


CACHED: Final = insert(empty(Config(4096, 1, 16)), pack(range(4000))).state


@given(st.integers(1, 4000))
def test_whatever_is_needed_is_freed_and_less_than_a_block_more(need: int) -> None:
    freed = evict(CACHED, need).freed
    assert need <= freed <= min(4000, need + 15)
