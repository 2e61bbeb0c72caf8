"""Faults from the field, about the tree's shape, namespaces, recency and the numbers it reports."""

from __future__ import annotations

from itertools import combinations

import pytest

from penelope.policy import InsufficientSpace, Namespace
from penelope_spec import check_state
from tests.cases.scene import Scene, freed, key
from tests.property.ledger import Ledger
from tests.property.reading import key_of, pages_of, units_of


def test_case_26_an_evicted_block_leaves_no_trace_of_its_content() -> None:
    s = Scene(block=2)
    s.insert("ab")
    s.evict(2)
    s.insert("yz")
    assert (s.show("ab"), s.show("yz")) == ("..", "GG")
    assert len([n for n in s.state.nodes.values() if not n.is_root]) == 1


def test_case_32_a_prefix_one_token_shorter_is_the_same_history() -> None:
    s = Scene(block=1)
    s.insert("ab")
    s.insert("abc")
    assert s.ends() == [(0, 3)]
    with pytest.raises(InsufficientSpace):
        s.evict(99)  # ours: all or nothing, so ask for what is there
    assert s.evict(3).freed == 3
    assert (s.match("").end, s.match("abc").end) == (0, 0)


def test_case_35_a_split_child_is_found_under_its_new_first_page() -> None:
    s = Scene("sglang-lru", page=2, block=2)
    s.insert("abcd")
    s.insert("abxy")
    s.touch("abcd")
    # One whole node at a time; after each, every node is its parent's child by its first page.
    assert [freed(s.evict(1)) for _ in range(3)] == [[(2, 4)], [(2, 4)], [(0, 2)]]
    assert not s.state.nodes


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (("x", None), (None, "x")),
        (("", None), (None, None)),
        (("", ""), (None, None)),
        ((None, ""), ("", None)),
    ],
)
def test_case_77_namespaces_that_would_join_to_the_same_string_share_nothing(
    one: tuple[str | None, str | None], other: tuple[str | None, str | None]
) -> None:
    s = Scene()
    s.insert("abcd", Namespace(*one))
    s.insert("abcd", Namespace(*other))
    assert s.state.totals.device == 8
    assert s.insert("abcd", Namespace(*one)).adopted == 0
    s.evict(4)
    assert (s.show("abcd", Namespace(*one)), s.show("abcd", Namespace(*other))) in (
        ("GGGG", "...."),
        ("....", "GGGG"),
    )


def test_case_77_every_pair_of_distinct_namespaces_is_apart() -> None:
    parts = (None, "", "a", "ab", "b")
    spaces = [Namespace(adapter, salt) for adapter in parts for salt in parts]
    s = Scene()
    for space in spaces:
        assert s.insert("xy", space).adopted == 2
    for one, other in combinations(spaces, 2):
        assert s.state.roots[one] != s.state.roots[other]


def test_case_64_a_refused_and_retried_plan_is_no_use() -> None:
    s = Scene(capacity=8, block=2)
    s.insert("abcd")
    s.insert("wxyz")
    s.release(s.lock("abcd"))  # a lock is no use either
    before = s.state
    for _ in range(5):
        s.plan("abcdef")
    assert s.state is before
    assert freed(s.evict(1)) == [(0, 2)]
    assert s.show("abcd") == "__GG"


def test_case_64_one_off_prompts_flush_an_idle_prefix_under_lru() -> None:
    """Ours is LRU: with nobody using it, ten uses in the past do not save it."""
    s = Scene(capacity=20, block=1)
    for _ in range(10):
        s.insert("HH")
    for i in range(20):
        lacking = 4 - s.state.free
        s.evict(max(0, lacking))
        s.insert(f"{i:02d}ab")
    assert s.show("HH") == ".."


def test_case_74_the_numbers_of_a_request_add_up_to_its_length_once() -> None:
    s = Scene(block=2)
    m = s.match("abcdefgh")
    assert (m.device, m.hole, m.arriving, m.length - m.end) == (0, 0, 0, 8)
    r = s.begin("abcdefgh")
    s.checkpoint(r, "abcd")  # the first chunk
    s.release(r)  # pre-empted
    m = s.match("abcdefgh")
    assert m.device + m.host + m.hole + m.arriving + (m.length - m.end) == 8
    assert (m.device, m.compute) == (4, 4)
    again = s.begin("abcdefgh")
    assert s.checkpoint(again, "abcdefgh").adopted == 4


def test_case_82_replaying_the_effects_alone_rebuilds_who_holds_what() -> None:
    s, ledger = Scene(block=2), Ledger()
    space = (None, None)

    def units(history: str) -> tuple[int, ...]:
        return units_of(s.state.config, key(history))

    for history in ("abcdef", "abcdxy", "abq"):
        ledger.follow(s.insert(history).effects, (space, units(history), 0), len(history))
        ledger.check(s.state)
    for need in (1, 3, 2):
        gone = ledger.follow(s.evict(need).effects)
        assert gone
        ledger.check(s.state)
    assert key_of(units("abc")) == key("abc")
    assert check_state(s.state) == []
    assert len(pages_of(s.state)) == s.state.totals.device + s.state.totals.hole
