"""The page about the conformance suite: its code runs, its failure is the one that is shown."""

from __future__ import annotations

from typing import Any

import pytest

from penelope.testing import ConformanceError
from penelope_spec import INVARIANTS
from tests.docs.documents import CONFORMANCE, blocks, table

STORE, RUN, SUITE, FAILURE = range(4)


@pytest.fixture(scope="module")
def shown() -> tuple[list[str], dict[str, Any]]:
    """The page's blocks of code, and what the first of them defines."""
    code, names = blocks(CONFORMANCE, "python"), dict[str, Any]()
    exec(code[STORE], names)
    return code, names


def test_the_store_on_the_page_passes(shown: tuple[list[str], dict[str, Any]]) -> None:
    code, names = shown
    exec(code[RUN], names)
    exec(code[SUITE], names)
    suite = names["TestListStore"]()
    suite.test_one_tier()
    suite.test_two_tiers()


def test_the_failure_on_the_page_is_what_is_raised(
    shown: tuple[list[str], dict[str, Any]],
) -> None:
    code, names = shown
    exec(code[RUN], names)
    with pytest.raises(ConformanceError) as found:
        exec(code[FAILURE], names)
    assert blocks(CONFORMANCE, "text") == [f"{found.value}\n"]
    assert len(code) == FAILURE + 1


def test_every_invariant_on_the_page_is_one() -> None:
    named = {row[1] for row in table(CONFORMANCE, "what the store does")}
    assert named == {"one-copy", "accounting", "moves-do-not-evict", "exact-refill"}
    assert named <= INVARIANTS.keys()
