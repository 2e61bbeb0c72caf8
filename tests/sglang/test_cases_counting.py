"""Faults from the field on the adapter: what is reported, to whom, how often, and in what order."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from penelope.policy import Residency
from tests.sglang.steps import Steps

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.smoke,
    pytest.mark.usefixtures("sglang_settings"),
]

X = list(range(1, 25))
Y = list(range(101, 125))


def test_case_4_what_is_reused_behind_a_gap_and_what_is_computed_are_told_apart() -> None:
    s = Steps(pool=64)
    s.serve(X)
    holds = s.request("holds", X[:9])
    s.prefill(holds)
    s.press(64 - 24)
    s.finish(holds, checkpoint=False)
    assert s.show(X) == "GG_GGG"
    (phantom, r) = s.prefill(s.request("r", [*X, 30, 31]))
    # 24 tokens matched: 20 of them were kept, 12 of those behind the gap, and 4 are computed.
    assert phantom.span == (8, 12)
    assert (r.cached_tokens, r.cached_tokens_device) == (20, 20)
    counts = s.cache.statistics.counts
    assert (counts.reused_behind_hole_tokens, counts.phantom_tokens) == (12, 4)
    s.finish(r)


def test_case_62_two_ranks_that_see_the_same_take_the_same_slots() -> None:
    """Whatever the clock says in between: only what was asked, and in which order, decides."""
    ranks = [Steps(pool=64, host=48, swap=8), Steps(pool=64, host=48, swap=8)]
    for wait, s in zip((0.0, 0.002), ranks, strict=True):
        source = random.Random(9)
        for turn in range(40):
            time.sleep(wait * source.random())
            start = source.choice((1, 101, 201, 301))
            fork = source.randrange(8, 24)
            s.serve([*range(start, start + fork), *range(500 + turn, 505 + turn)], new=3)
    first, second = ranks
    assert first.cache.state == second.cache.state
    for tier in Residency.DEVICE, Residency.HOST:
        mine, theirs = (
            {node: (start, slots.tolist()) for node, start, slots in s.cache.slots.items(tier)}
            for s in ranks
        )
        assert mine == theirs
    assert first.cache.statistics.counts == second.cache.statistics.counts
    assert first.cache.statistics.counts.promotions > 0


def test_case_64_a_request_that_is_refused_and_tried_again_is_counted_once() -> None:
    s = Steps(pool=64)
    s.serve(X)
    s.press(48)
    holds = s.request("holds", list(range(201, 225)), new=1)
    s.prefill(holds)
    r = s.request("r", [*X, 30], new=12)
    for _ in range(5):
        assert s.admit(r).can_run_list == []
    counts = s.cache.statistics.counts
    assert (counts.phantoms, counts.reused_behind_hole_tokens, r.cached_tokens) == (0, 0, 0)
    assert len(s.cache.state.leases) == 1
    s.finish(holds, checkpoint=False)
    assert r in s.prefill(r)
    assert (counts.phantoms, counts.reused_behind_hole_tokens, r.cached_tokens) == (1, 16, 16)


def test_case_64_one_off_prompts_flush_an_idle_prefix_under_lru() -> None:
    """Ours: the order is least recent use, which one-off prompts run over."""
    s = Steps(pool=80)
    for turn in range(10):
        s.serve([*X[:8], 500 + turn])
    assert s.show(X[:8]) == "GG"
    for start in range(20):
        s.serve(list(range(20 * start + 200, 20 * start + 216)))
    assert s.show(X[:8]) == ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"extra_key": "ab", "lora_id": "c"}, {"extra_key": "a", "lora_id": "bc"}),
        ({"extra_key": "x"}, {"lora_id": "x"}),
        ({"cache_salt": "x"}, {"extra_key": "x"}),
        ({"extra_key": "1:x"}, {"extra_key": "", "lora_id": "x"}),
        ({"extra_key": "1|0:x"}, {"extra_key": "0:x"}),
        ({"cache_salt": "a", "extra_key": "b"}, {"cache_salt": "ab"}),
    ],
)
@pytest.mark.parametrize("weights", [0, 1])
def test_case_77_namespaces_that_would_join_to_the_same_string_share_nothing(
    one: dict[str, Any], other: dict[str, Any], weights: int
) -> None:
    s = Steps(pool=96)
    s.cache.weights = weights
    for namespace in (one, other):
        first = s.serve(X, **namespace)
        again = s.serve([*X, 30], **namespace)
        assert (first.cached_tokens, again.cached_tokens) == (0, 24)


def test_case_77_no_key_of_a_caller_reaches_kv_of_other_weights() -> None:
    s = Steps(pool=96)
    s.serve(X, extra_key="x")
    s.cache.weights = 1
    for key in ("x", "0|0:x", "0:x", "|0:x"):
        assert s.serve(X, extra_key=key).cached_tokens == 0
        s.press(96)


class Router:
    """What a router knows from the events: the histories of the blocks that each medium holds."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, int], tuple[int, ...]] = {}
        self.histories: dict[int, tuple[int, ...]] = {}

    def follow(self, events: list[Any], page: int) -> None:
        for event in events:
            kind = type(event).__name__
            if kind == "AllBlocksCleared":
                self.held.clear()
            elif kind == "BlockStored":
                parent = event.parent_block_hash
                before = () if parent is None else self.histories[parent]
                for index, block in enumerate(event.block_hashes):
                    before += tuple(event.token_ids[index * page : (index + 1) * page])
                    assert (event.medium, block) not in self.held, "announced twice"
                    self.held[event.medium, block] = self.histories[block] = before
            else:
                for block in event.block_hashes:
                    del self.held[event.medium, block]

    def blocks(self, medium: str) -> list[tuple[int, ...]]:
        return sorted(tokens for (where, _), tokens in self.held.items() if where == medium)


def resident(s: Steps, tier: Residency) -> list[tuple[int, ...]]:
    """The history of every block that a tier holds, of the weights in force."""
    from penelope.sglang_adapter.paths import weights_of

    found = []
    for node, start, slots in s.cache.slots.items(tier):
        label = s.cache.state.nodes[node]
        tokens = tuple(memoryview(label.key).cast("I"))
        if weights_of(label.namespace) == s.cache.weights:
            ends = range(start + s.page, start + len(slots) + 1, s.page)
            found += [tokens[:end] for end in ends]
    return sorted(found)


def test_case_82_events_tell_each_move_once_with_its_parent_first() -> None:
    from penelope.runtime.announcing import Announce

    s = Steps(pool=64, host=24, swap=8, block=8, events=True)
    s.cache.placement._mode = Announce.EXACT  # as PENELOPE_KV_EVENTS=exact
    router = Router()
    source = random.Random(3)
    for turn in range(60):
        start = source.choice((1, 101, 201, 301))
        s.serve([*range(start, start + source.randrange(20, 40)), 500 + turn], new=2)
        router.follow(s.cache.take_events(), s.page)
        for medium, tier in (("GPU", Residency.DEVICE), ("CPU_PINNED", Residency.HOST)):
            assert router.blocks(medium) == resident(s, tier)
    counts = s.cache.statistics.counts
    assert min(counts.promotions, counts.demotions, counts.phantoms) >= 1


def test_case_82_kv_of_old_weights_is_withdrawn_once_and_not_spoken_of_again() -> None:
    """A request that runs on keeps such KV; the same tokens are announced anew beside it."""
    s = Steps(pool=96, events=True)
    router = Router()
    runs = s.request("runs", X, new=9)
    s.prefill(runs)
    router.follow(s.cache.take_events(), s.page)
    assert len(router.held) == 6
    s.cache.weights_changed()
    router.follow(s.cache.take_events(), s.page)
    assert router.held == {}
    s.serve(X)
    router.follow(s.cache.take_events(), s.page)
    for _ in range(4):
        assert s.decode(runs)
    s.finish(runs)
    router.follow(s.cache.take_events(), s.page)
    assert router.blocks("GPU") == resident(s, Residency.DEVICE)
    s.press(96 - 24)
    router.follow(s.cache.take_events(), s.page)
    assert len(router.blocks("GPU")) == 6, "the old copy went first, and unannounced"
    assert s.cache.state.totals.device == 24
