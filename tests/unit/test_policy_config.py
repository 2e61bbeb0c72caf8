"""Which sizes go together, and what a configuration says when they do not."""

from __future__ import annotations

from typing import Any

import pytest

from penelope.policy import Config, InvalidConfigError


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"device_capacity": 0}, "device_capacity is 0: it must be at least 1"),
        ({"page_size": 0}, "page_size is 0: it must be at least 1"),
        ({"block_size": -1}, "block_size is -1: it must be at least 1"),
        ({"unit_bytes": 0}, "unit_bytes is 0: it must be at least 1"),
        (
            {"page_size": 4, "block_size": 6},
            "block size 6 is not a multiple of page size 4: choose a block of whole pages",
        ),
        (
            {"device_capacity": 3, "page_size": 4, "block_size": 4},
            "device capacity 3 holds no page of 4",
        ),
        (
            {"host_capacity": 8},
            "swap buffer 0 is not a whole number of blocks of 2: two tiers need at least one block",
        ),
        (
            {"host_capacity": 8, "swap_buffer": 3},
            "swap buffer 3 is not a whole number of blocks of 2: two tiers need at least one block",
        ),
        (
            {"swap_buffer": 2},
            (
                "host capacity 0 is smaller than its swap buffer 2: enlarge the host or shrink "
                "the buffer"
            ),
        ),
        (
            {"page_size": 2, "device_capacity": 9, "host_capacity": 8, "swap_buffer": 2},
            "device_capacity 9 is not a multiple of page size 2: two tiers exchange whole pages",
        ),
        (
            {"page_size": 2, "host_capacity": 9, "swap_buffer": 2},
            "host_capacity 9 is not a multiple of page size 2: two tiers exchange whole pages",
        ),
    ],
)
def test_sizes_that_do_not_go_together_are_named(sizes: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        Config(**{"device_capacity": 8, "block_size": 2, **sizes})
    assert str(refused.value) == text


@pytest.mark.parametrize(
    "sizes",
    [
        {"device_capacity": 1, "block_size": 1, "unit_bytes": 1},
        {"device_capacity": 2, "page_size": 2},
        {"host_capacity": 2, "swap_buffer": 2},
        {"device_capacity": 9, "page_size": 2},
    ],
    ids=str,
)
def test_the_smallest_sizes_that_go_together_are_accepted(sizes: dict[str, Any]) -> None:
    Config(**{"device_capacity": 8, "block_size": 2, **sizes})


def test_the_swap_buffer_is_not_counted_as_kept() -> None:
    config = Config(8, 1, 2, host_capacity=7, swap_buffer=2)
    assert (config.host_resident, config.logical_capacity) == (5, 13)
