"""What the replay knows of everything that was ever computed, against a core without limits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penelope import policy
from penelope.policy import Config, pack
from penelope.runtime.replay.seen import Seen

histories = st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=30)
"""Few units, so that histories part, go on and end wherever others do."""


@given(histories)
def test_a_history_is_known_as_far_as_a_cache_without_limits_holds_it(
    keys: list[list[int]],
) -> None:
    state, seen = policy.empty(Config(1 << 40, block_size=1)), Seen()
    for units in keys:
        inserted = policy.insert(state, pack(units))
        state = inserted.state
        assert seen.add(pack(units)) == inserted.resident
        assert inserted.resident + inserted.adopted == len(units)


@given(histories)
def test_what_was_added_is_known_whole(keys: list[list[int]]) -> None:
    seen = Seen()
    for units in keys:
        seen.add(pack(units))
    assert [seen.add(pack(units)) for units in keys] == [len(units) for units in keys]


def test_a_history_that_grows_stays_one_node_with_one_key() -> None:
    """A long replay must not pile up keys."""
    seen = Seen()
    for length in range(1, 40):
        assert seen.add(pack(range(length))) == length - 1
    assert seen.add(pack(range(5))) == 5
    assert shape(seen) == [(39, 0)]
    assert seen.add(pack([0, 1, 7])) == 2
    assert shape(seen) == [(2, 0), (39, 2), (3, 2)]


def shape(seen: Seen) -> list[tuple[int, int]]:
    """(end, end of the node above) of every node, in units."""
    found, stack = [], [seen._root]
    while stack:
        node = stack.pop(0)
        found += [(child.end // 4, node.end // 4) for child in node.children.values()]
        stack += node.children.values()
    return found
