"""`announced-covers-resident` and `announced-is-resident`, event by event, over random lives."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penelope.policy import (
    POLICIES,
    Config,
    Effect,
    Namespace,
    Node,
    PenelopeError,
    Remove,
    Reset,
    State,
    next_demotion,
    pack,
    retire,
)
from penelope.runtime.announcing import Announce, Announcement, announcements
from penelope.runtime.cache import Cache, Request
from penelope.runtime.symbolic import SymbolicStore
from penelope.testing import Follower

Block = tuple[Namespace, bytes]
"""A page, by the whole history up to its end."""


def blocks(state: State, node: Node | Announcement) -> list[Block]:
    page, width = state.config.page_size, state.config.unit_bytes
    ends = range(node.start + page, node.end + 1, page)
    return [(node.namespace, node.key[: end * width]) for end in ends]


def parent(state: State, block: Block) -> Block | None:
    above = block[1][: -state.config.page_size * state.config.unit_bytes]
    return (block[0], above) if above else None


class Several:
    """A router that hears of three transitions at once, as of one."""

    def __init__(self, config: Config) -> None:
        self.router = Follower(Announce.PREFIX, config)
        self.waiting: list[tuple[State, State, tuple[Effect, ...]]] = []
        self.told = 0

    def add(self, before: State, after: State, effects: tuple[Effect, ...]) -> None:
        if self.waiting and self.waiting[-1][1] is not before:
            self.waiting.pop()  # the store had no room for it
        last = any(isinstance(effect, Reset) for effect in effects)
        if self.waiting and (last or len(self.waiting) == 3):
            together = tuple(effect for _, _, its in self.waiting for effect in its)
            self.router.observe(self.waiting[0][0], self.waiting[-1][1], together)
            self.waiting = []
            self.told += 1
        self.waiting += [(before, after, effects)]
        if last:
            self.router.observe(before, after, effects)
            self.waiting = []


class Life:
    """A cache that serves, evicts, moves and forgets at random; a router for each mode listens."""

    def __init__(self, random: Random, config: Config) -> None:
        self.random = random
        self.routers = [Follower(mode, config) for mode in Announce]
        self.store = SymbolicStore(config.device_capacity, config.host_capacity)
        self.cache = Cache(config, self.store, self.observe)
        self.running: list[tuple[Request, list[int]]] = []
        self.histories: list[list[int]] = [[]]
        self.seen: Counter[str] = Counter()
        self.last = self.cache.state
        self.several = Several(config)

    def observe(self, before: State, name: str, after: State, effects: tuple[Effect, ...]) -> None:
        for router in self.routers:
            if self.last is not before:
                router.undo()  # the store had no room for what was observed last
            router.observe(before, after, effects)
        told = [*announcements(Announce.PREFIX, before, after, effects)]
        gone, come = (
            {block for one in told if one.stored is stored for block in blocks(after, one)}
            for stored in (False, True)
        )
        assert not gone & come, "withdrawn, only to be announced again"
        self.last = after
        self.several.add(before, after, effects)
        self.seen.update(type(effect).__name__ for effect in effects)
        filled = before.totals.hole - after.totals.hole
        if name == "checkpoint" and filled > 0 and not any(isinstance(e, Remove) for e in effects):
            self.seen["filled by a checkpoint"] += 1

    def step(self) -> None:
        acts = [self.start, self.finish] * 3 + [self.evict, self.offer, self.move] * 2
        acts.append(self.retire)
        with suppress(PenelopeError):
            self.random.choice(acts if self.random.random() > 0.02 else [self.forget])()

    def units(self) -> list[int]:
        base = self.random.choice(self.histories)
        if self.random.random() < 0.3:
            base = base[: self.random.randrange(len(base) + 1)]
        more = self.random.choices(range(2), k=self.random.choice([1, 2, 5]))
        units = [*base, *more][: self.cache.state.config.device_capacity]
        self.histories = [*self.histories[-8:], units]
        return units

    def start(self) -> None:
        units = self.units()
        space = self.random.choice([Namespace(), Namespace(), Namespace("lora", "salt")])
        plan = self.cache.plan(pack(units), space)
        request = self.cache.admit(plan)
        self.running.append((request, units))
        if self.random.random() < 0.2:
            return  # its holes are filled later, or never
        for start, end in plan.holes:
            self.cache.refill(request, start, end)
            self.seen["refilled"] += end - start
        self.cache.checkpoint(request, pack(units))

    def finish(self) -> None:
        if self.running:
            request, _ = self.running.pop(self.random.randrange(len(self.running)))
            self.cache.release(request)

    def evict(self) -> None:
        self.cache.evict(self.random.randrange(1, 6))

    def offer(self) -> None:
        units = self.units()
        slots = self.store.allocate(len(units))
        try:
            self.cache.insert(pack(units), slots)
        except PenelopeError:
            self.store.free(slots)

    def move(self) -> None:
        transfer = next_demotion(self.cache.state, self.random.randrange(1, 6))
        if transfer is not None:
            self.cache.transfer(transfer)

    def retire(self) -> None:
        units = self.random.choice(self.histories)
        matched = self.cache.match(pack(units))
        state, effects = retire(self.cache.state, matched)
        self.seen["retired"] += state.retired.size > self.cache.state.retired.size
        kept = self.cache._kept
        kept.commit(state, kept.stage("retire", state, effects))

    def forget(self) -> None:
        while self.running:
            self.finish()
        self.cache.reset()


def config(random: Random, tiers: int) -> Config:
    page = random.choice([1, 2])
    block = page * random.choice([1, 2])
    host: dict[str, Any] = {}
    if tiers == 2:
        host = {"host_capacity": 4 * block, "swap_buffer": block}
    position, granularity = random.choice([*POLICIES.values(), POLICIES["penelope"]])
    return Config(page * random.choice([8, 12]), page, block, position, granularity, **host)


@pytest.mark.parametrize("tiers", [1, 2])
@given(st.integers(0, 2**32), st.integers(10, 60))
def test_what_is_announced_in_each_mode_is_what_the_mode_says_after_every_event(
    tiers: int, seed: int, steps: int
) -> None:
    random = Random(seed)
    life = Life(random, config(random, tiers))
    for _ in range(steps):
        life.step()


@pytest.mark.parametrize("tiers", [1, 2])
def test_what_is_checked_happens(tiers: int) -> None:
    seen: Counter[str] = Counter()
    told = moved = together = 0
    for seed in range(40):
        random = Random(seed)
        life = Life(random, config(random, tiers))
        for _ in range(80):
            life.step()
        seen += life.seen
        told += min(router.events for router in life.routers)
        together += life.several.told
        moved += life.cache.flow.demoted + life.cache.flow.promoted
    assert (told > 300, together > 300, moved > 100) == (True, True, tiers == 2)
    kinds = ("refilled", "filled by a checkpoint", "retired", "Split", "Merge", "Remove", "Reset")
    assert {kind: seen[kind] for kind in kinds if seen[kind] < 5} == {}


# What routers make of it: their documented rules, in small


class Cascading:
    """Keeps a tree: a block whose parent is unknown is refused, one that is removed takes all
    that follows it along.
    """

    def __init__(self) -> None:
        self.held: set[Block] = set()
        self.refused = 0

    def follow(self, state: State, told: Announcement) -> None:
        for block in blocks(state, told):
            above = parent(state, block)
            if not told.stored:
                space, path = block
                self.held = {b for b in self.held if (b[0], b[1][: len(path)]) != (space, path)}
            elif above is None or above in self.held:
                self.held.add(block)
            else:
                self.refused += 1

    def score(self, state: State, units: list[int]) -> int:
        """Blocks from the beginning on that are held without a gap."""
        key, found = pack(units), 0
        width = state.config.unit_bytes * state.config.page_size
        while found * width < len(key) and ((Namespace(), key[: (found + 1) * width]) in self.held):
            found += 1
        return found


@pytest.mark.parametrize(
    ("mode", "scores"),
    [
        (Announce.STICKY, [104, 104, 104]),
        (Announce.PREFIX, [104, 4, 104]),
        (Announce.EXACT, [104, 4, 20]),
    ],
)
def test_a_hole_costs_a_history_its_score_only_where_it_is_announced(
    mode: Announce, scores: list[int]
) -> None:
    """104 blocks, 4 of them shared; 16 become a hole, and are refilled."""
    page = 2
    router, seen = Cascading(), []

    def observe(before: State, name: str, after: State, effects: tuple[Effect, ...]) -> None:
        for told in announcements(mode, before, after, effects):
            router.follow(after, told)

    store = SymbolicStore(512)
    cache = Cache(Config(512, page, page), store, observe)
    history = [*range(208)]
    cache.insert(pack([*history[:8], 900, 901]), store.allocate(10))
    cache.insert(pack(history), store.allocate(208))
    keeps = cache.admit(cache.plan(pack([*history[:8], 900, 901, 902])))
    seen.append(router.score(cache.state, history))
    cache.evict(32)
    cache.release(keeps)
    seen.append(router.score(cache.state, history))
    request = cache.admit(cache.plan(pack([*history, 999])))
    assert list(request.holes) == [(8, 40)]
    cache.refill(request, 8, 40)
    seen.append(router.score(cache.state, history))
    assert seen == scores
