"""The policy beside another engine: what it says that it would have done is what it does."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given

from penelope.cost import CostModel
from penelope.policy import (
    Config,
    InsufficientSpace,
    InvalidConfigError,
    Namespace,
    RequestTooLarge,
    named_policy,
    pack,
)
from penelope.policy import plan as planned
from penelope.runtime.cache import Cache, Request
from penelope.runtime.shadow import Shadow
from penelope.runtime.symbolic import SymbolicStore
from penelope_spec import check_state

SPACE = Namespace()
COST = CostModel("tiny", Fraction(5, 2), layers=1, heads=1, head_dim=1)


def config(capacity: int, page: int = 1, block: int = 4) -> Config:
    return Config(capacity, page_size=page, block_size=block)


def serve(shadow: Shadow, prompt: list[int], output: list[int], reused: int = 0) -> bool:
    followed = shadow.started("r", pack(prompt), SPACE, reused)
    shadow.ended("r", pack(prompt + output))
    return followed


def test_a_hole_costs_less_than_the_tail_that_the_engine_lost() -> None:
    shadow = Shadow(config(24), COST)
    first = list(range(12))
    serve(shadow, first, [])
    serve(shadow, list(range(100, 116)), [])  # four of the first history go: its head
    assert shadow.tally.evicted_tokens == 4
    before = shadow.tally
    assert (before.prompt_tokens, before.reused_tokens, before.refilled_tokens) == (28, 0, 0)
    # The engine has lost as much from its end.
    serve(shadow, [*first, 12, 13], [], reused=8)
    tally = shadow.tally
    assert (tally.reused_tokens, tally.refilled_tokens) == (8, 4)
    assert (tally.engine_reused_tokens, tally.prompt_tokens) == (8, 42)
    fresh = sum(2.5 + p for p in range(12)) + sum(2.5 + p for p in range(16))
    engine = sum(2.5 + p for p in range(8, 14))
    ours = sum(2.5 + p for p in (0, 1, 2, 3, 12, 13))
    assert (tally.engine_cost, tally.cost) == (fresh + engine, fresh + ours)
    assert tally.saved == 1 - (fresh + ours) / (fresh + engine)


def test_without_a_cost_tokens_are_counted_all_the_same() -> None:
    shadow = Shadow(config(24))
    serve(shadow, [1, 2, 3], [4])
    serve(shadow, [1, 2, 3, 4, 5], [])
    tally = shadow.tally
    assert (tally.reused_tokens, tally.engine_cost, tally.cost, tally.saved) == (4, 0, 0, None)


def test_a_prompt_that_is_all_cached_computes_its_last_page() -> None:
    shadow = Shadow(config(24, page=4))
    serve(shadow, list(range(8)), [])
    serve(shadow, list(range(8)), [])
    assert shadow.tally.reused_tokens == 4


def test_who_finds_no_room_is_counted_and_holds_nothing() -> None:
    shadow = Shadow(config(8))
    assert shadow.started("a", pack([1, 2, 3, 4, 5, 6]), SPACE, 0)
    assert not shadow.started("b", pack([7, 8, 9]), SPACE, 0)  # beside those that run
    assert not shadow.started("c", pack(list(range(9))), SPACE, 0)  # at all
    shadow.ended("b", pack([7, 8, 9, 10]))
    shadow.ended("a", pack(list(range(1, 12))))  # its output does not fit
    tally = shadow.tally
    assert (tally.requests, tally.unfollowed_requests, tally.unfollowed_outputs) == (1, 2, 1)
    assert tally.prompt_tokens == 6
    assert not shadow.state.leases
    assert not shadow.follows("a")


def test_a_prompt_in_steps_is_one_request_and_a_lost_one_keeps_its_prompt() -> None:
    shadow = Shadow(config(24))
    assert shadow.started("r", pack([1, 2, 3, 4]), SPACE, 0)
    assert shadow.started("r", pack([1, 2, 3, 4]), SPACE, 2)
    shadow.ended("r", None)
    shadow.ended("r", None)
    assert (shadow.tally.requests, shadow.tally.engine_reused_tokens) == (1, 0)
    assert shadow.state.totals.device == 4
    shadow.forget()
    assert shadow.state.totals.device == 0


def test_namespaces_share_nothing() -> None:
    shadow = Shadow(config(24))
    shadow.started("a", pack([1, 2, 3, 4]), Namespace("x"), 0)
    shadow.started("b", pack([1, 2, 3, 4]), Namespace("y"), 0)
    assert shadow.tally.reused_tokens == 0


def test_a_host_tier_is_refused() -> None:
    two = Config(16, page_size=1, block_size=4, host_capacity=8, swap_buffer=4)
    with pytest.raises(InvalidConfigError, match="a shadow has one tier"):
        Shadow(two)


class Served(NamedTuple):
    session: int
    keep: int
    """How much of the session's history the next prompt begins with."""
    new: int
    output: int
    overlap: bool
    """Whether it still runs when the next one starts."""
    kept: bool


SERVED = st.builds(
    Served,
    st.integers(0, 2),
    st.integers(0, 24),
    st.integers(1, 8),
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
)


@given(
    served=st.lists(SERVED, max_size=14),
    page=st.sampled_from([1, 2]),
    capacity=st.sampled_from([24, 32, 400]),
    policy=st.sampled_from(["penelope", "tail-block"]),
)
def test_it_does_what_a_cache_does_that_serves_the_same(
    served: list[Served], page: int, capacity: int, policy: str
) -> None:
    """State for state; with room for all, it finds whatever was there before."""
    position, granularity = named_policy(policy)
    settings = Config(
        capacity, page_size=page, block_size=4, position=position, granularity=granularity
    )
    shadow, cache = Shadow(settings), Cache(settings, SymbolicStore(capacity))
    histories: list[list[int]] = [[], [], []]
    seen: list[list[int]] = []
    running: list[tuple[int, Request, list[int], list[int]]] = []
    fresh = found = 0

    def end() -> None:
        name, request, prompt, history = running.pop(0)
        kept = served[name].kept
        shadow.ended(name, pack(history) if kept else None)
        more = -(-len(history) // page) * page - -(-len(prompt) // page) * page
        with suppress(InsufficientSpace, RequestTooLarge):
            if kept and more > 0:
                cache.grow(request, more)
            if kept:
                cache.checkpoint(request, pack(history))
        cache.release(request)

    for name, one in enumerate(served):
        history = histories[one.session]
        prompt = history[: one.keep] + list(range(fresh, fresh + one.new))
        longer = prompt + list(range(fresh + 1000, fresh + 1000 + one.output))
        fresh += one.new
        plan = None
        with suppress(RequestTooLarge):
            plan = planned(cache.state, pack(prompt), at_most=len(prompt) - 1)
            plan = plan if plan.admissible else None
        before = shadow.tally.reused_tokens + shadow.tally.refilled_tokens
        followed = shadow.started(name, pack(prompt), SPACE, 0)
        assert followed == (plan is not None)
        if plan is None:
            continue
        request = cache.admit(plan)
        for start, stop in plan.holes:
            cache.refill(request, start, stop)
        cache.checkpoint(request, pack(prompt))
        assert shadow.state == cache.state
        if capacity == 400:
            best = max((_common(prompt, other) for other in seen), default=0)
            best = min(best, len(prompt) - 1) // page * page
            found = shadow.tally.reused_tokens + shadow.tally.refilled_tokens
            assert found - before == best
        running.append((name, request, prompt, longer))
        seen.append(prompt)
        if not one.overlap:
            while running:
                end()
                assert shadow.state == cache.state
            if one.kept:
                histories[one.session] = longer
                seen.append(longer)
        assert check_state(shadow.state) == []
    while running:
        end()
    assert not shadow.state.leases
    assert shadow.state.totals.locked == 0


def _common(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
