"""Dynamo's own index, from its wheel: `make test-routers` sets up an environment that has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from random import Random
from typing import Any

import pytest

from penelope.policy import pack
from penelope.runtime.announcing import Announce
from tests.routers import feeding
from tests.routers.dynamo_tree import DynamoTree
from tests.routers.feeding import SCORES, SMALL, Spoil, recorded, scores_of_a_hole
from tests.routers.fleet import Fleet, Listener
from tests.routers.indexes import Event

pytestmark = pytest.mark.skipif(
    find_spec("dynamo") is None or find_spec("dynamo._core") is None,
    reason="ai-dynamo-runtime is not installed: run `make test-routers`",
)


class RadixTree:
    """`dynamo.llm.RadixTree` behind the models' interface."""

    def __init__(self) -> None:
        self.refused = 0
        self._tree: Any = import_module("dynamo.llm").RadixTree()
        self._sent = 0

    def apply(self, event: Event) -> None:
        if event.stored:
            # A block's name stands for its whole history, and so will do for its tokens.
            blocks = [{"block_hash": b, "tokens_hash": b} for b in event.blocks]
            data: dict[str, Any] = {"stored": {"parent_hash": event.parent, "blocks": blocks}}
        else:
            data = {"removed": {"block_hashes": event.blocks}}
        try:
            self._send(event.replica, data)
        except RuntimeError as error:
            if "Failed to find parent block" in str(error):
                self.refused += len(event.blocks)
            elif "Failed to find block" not in str(error):
                raise

    def clear(self, replica: int) -> None:
        self._send(replica, "cleared")

    def scores(self, request: Sequence[int]) -> dict[int, int]:
        found = self._tree.find_matches(list(request)).scores
        return {worker: blocks for (worker, _), blocks in found.items()}

    def _send(self, replica: int, data: object) -> None:
        self._sent += 1
        event = {"event_id": self._sent, "dp_rank": 0, "data": data}
        self._tree.apply_event(replica, json.dumps(event).encode())


@pytest.mark.parametrize("mode", Announce)
def test_104_of_104_blocks_are_found_after_hole_and_refill_unless_exact(mode: Announce) -> None:
    assert scores_of_a_hole(RadixTree(), mode) == SCORES[mode]


class Paired:
    """The index and its model, fed alike."""

    def __init__(self) -> None:
        self.real, self.model = RadixTree(), DynamoTree()
        self.asked: list[list[int]] = []
        self.compared = 0

    @property
    def refused(self) -> int:
        return self.model.refused

    def apply(self, event: Event) -> None:
        self.real.apply(event)
        self.model.apply(event)
        self.compare()

    def clear(self, replica: int) -> None:
        self.real.clear(replica)
        self.model.clear(replica)
        self.compare()

    def scores(self, request: Sequence[int]) -> dict[int, int]:
        return self.model.scores(request)

    def compare(self) -> None:
        assert self.real.refused == self.model.refused
        for request in self.asked:
            assert self.real.scores(request) == self.model.scores(request)
            self.compared += 1


@pytest.mark.parametrize("mode", Announce)
def test_its_scores_are_the_model_s_after_every_event(mode: Announce) -> None:
    refused = 0
    for seed in range(10):
        pair = Paired()
        fleet = Fleet(seed, SMALL, [Listener(mode, pair)])
        for units in fleet.requests(80):
            pair.asked = [*pair.asked[-4:], fleet.blocks.of(pack(units))]
        assert pair.compared > 300
        refused += pair.refused
    assert (refused > 0) == (mode is Announce.EXACT)


@pytest.mark.parametrize("mode", Announce)
@pytest.mark.parametrize(
    "spoil", [feeding.lost_removes, feeding.lost_stores, feeding.repeated, feeding.reordered]
)
def test_its_scores_are_the_model_s_when_batches_are_lost_repeated_or_reordered(
    spoil: Spoil, mode: Announce
) -> None:
    for seed in range(5):
        events, asked = recorded(seed, mode)
        pair = Paired()
        pair.asked = asked[-6:]
        for event in spoil(Random(seed), events):
            pair.apply(event)


@pytest.mark.parametrize("mode", [Announce.STICKY, Announce.PREFIX])
def test_what_batches_do_that_go_wrong(mode: Announce) -> None:
    """Repeated ones nothing, lost removes count too much, lost stores too little; a clearance and
    the whole tree again mend everything."""
    for seed in range(4):
        events, asked = recorded(seed, mode)
        whole, twice, more, fewer, mixed = (RadixTree() for _ in range(5))
        for index, spoil in (
            (whole, lambda random, events: events),
            (twice, feeding.repeated),
            (more, feeding.lost_removes),
            (fewer, feeding.lost_stores),
            (mixed, feeding.reordered),
        ):
            _deliver(index, spoil, Random(seed), events)
        for replica in range(SMALL.replicas):
            mixed.clear(replica)
        for event in events:
            mixed.apply(event)
        for request in asked:
            due = whole.scores(request)
            assert twice.scores(request) == due
            assert mixed.scores(request) == due
            for replica in range(SMALL.replicas):
                over, under = (one.scores(request).get(replica, 0) for one in (more, fewer))
                assert under <= due.get(replica, 0) <= over


def _deliver(
    index: RadixTree,
    spoil: Callable[[Random, list[Event]], list[Event]],
    random: Random,
    events: list[Event],
) -> None:
    for event in spoil(random, events):
        index.apply(event)
