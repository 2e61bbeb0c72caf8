"""The page about routers: its table is what is measured, its code runs."""

from __future__ import annotations

import contextlib
import io
import json
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from penelope.cost import preset
from penelope.runtime.announcing import Announce
from tests.docs.documents import DOCS, blocks
from tests.routers.feeding import SCORES
from tests.routers.measured import (
    BEGIN,
    BEGIN_TIERS,
    OURS,
    ROUTERS,
    TIERS,
    Measured,
    measure,
    rendered,
)

PAGE = DOCS / "routers.md"


@pytest.fixture(scope="module")
def found() -> Measured:
    return measure()


@pytest.fixture(scope="module")
def tiers() -> Measured:
    return measure(sizes=TIERS)


def test_the_tables_are_what_is_measured(found: Measured, tiers: Measured) -> None:
    text = PAGE.read_text()
    assert text.count(BEGIN) == text.count(BEGIN_TIERS) == 1
    assert text == rendered(text, found, tiers)


def test_one_announcement_for_both_tiers_errs_least(tiers: Measured) -> None:
    for (name, mode), off in tiers.items():
        if name != "AIBrix, synchronised":
            assert mode is not Announce.STICKY or (off.too_few, off.refused) == (0, 0)
            assert mode is not Announce.PREFIX or (off.too_many, off.refused) == (0, 0)
            others = [tiers[name, other].cost for other in Announce]
            assert tiers[name, Announce.STICKY].cost == min(others)
    assert tiers[OURS, Announce.EXACT].too_few > 0, "what is on the host is not told"


def test_what_the_page_says_in_words(found: Measured) -> None:
    closed = (Announce.STICKY, Announce.PREFIX)
    for (name, mode), off in found.items():
        if name != "AIBrix, synchronised":
            assert off.refused == 0 or (mode is Announce.EXACT and name.startswith("Dynamo"))
            assert mode is not Announce.STICKY or off.too_few == 0
            assert mode is not Announce.PREFIX or off.too_many == 0
    assert found["Dynamo, radix tree", Announce.EXACT].refused > 0
    assert found["SGLang gateway, events", Announce.EXACT].too_many > 0
    exact = found[OURS, Announce.EXACT]
    assert (exact.too_many, exact.too_few, exact.elsewhere) == (0, 0, 0)
    for mode in closed:
        others = [found[name, mode].cost for name in ROUTERS]
        assert found[OURS, mode].cost <= min(others)
    for mode, scores in SCORES.items():
        assert f"{', '.join(map(str, scores))} with `{mode.value}`" in PAGE.read_text()


def test_the_example_prints_what_is_shown() -> None:
    code = blocks(PAGE, "python")[0]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    assert blocks(PAGE, "text") == [out.getvalue()]


class Tree:
    """`find_matches` as Dynamo's index answers it."""

    def __init__(self, scores: dict[int, int]) -> None:
        self.scores = scores

    def find_matches(self, block_hashes: list[int]) -> Any:
        return SimpleNamespace(scores={(worker, 0): n for worker, n in self.scores.items()})


def real(scores: dict[int, int]) -> Any:
    tree = import_module("dynamo.llm").RadixTree()
    for worker, held in scores.items():
        named = [{"block_hash": at, "tokens_hash": at} for at in range(1, held + 1)]
        stored = {"stored": {"parent_hash": None, "blocks": named}}
        event = {"event_id": 0, "dp_rank": 0, "data": stored}
        tree.apply_event(worker, json.dumps(event).encode())
    return tree


MAKERS = [
    pytest.param(Tree, id="stub"),
    pytest.param(
        real,
        id="wheel",
        marks=pytest.mark.skipif(
            find_spec("dynamo") is None,
            reason="ai-dynamo-runtime is not installed: run `make test-routers`",
        ),
    ),
]


@pytest.mark.parametrize("make", MAKERS)
def test_the_plug_in_sends_a_request_to_the_least_cost(make: Any) -> None:
    names: dict[str, Any] = {}
    exec(blocks(PAGE, "python")[1], names)
    cheapest, model = names["cheapest_worker"], preset("qwen3-8b")
    tree, request = make({1: 10, 2: 12}), [*range(1, 14)]
    worker, cost = cheapest(tree, model, request, 13 * 64, [0, 1, 2])
    assert (worker, cost) == (2, model.scaled_span(12 * 64, 13 * 64))
    worker, more = cheapest(tree, model, request, 13 * 64, [0, 1, 2], queued={2: cost * 10})
    assert (worker, more) == (1, model.scaled_span(10 * 64, 13 * 64))
    assert cheapest(tree, model, [99], 64, [3, 10])[0] == 3
