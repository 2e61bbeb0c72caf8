"""`announced-covers-resident`: what routers are told, event by event, over random lives."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penelope.policy import (
    Config,
    Effect,
    Namespace,
    Node,
    PenelopeError,
    Reset,
    Residency,
    State,
    next_demotion,
    pack,
)
from penelope.runtime.announcing import Announce, Announcement, announcements
from penelope.runtime.cache import Cache, Request
from penelope.runtime.symbolic import SymbolicStore

Block = tuple[Namespace, bytes]
"""A page, by the whole history up to its end."""


def blocks(state: State, node: Node | Announcement) -> list[Block]:
    page, width = state.config.page_size, state.config.unit_bytes
    ends = range(node.start + page, node.end + 1, page)
    return [(node.namespace, node.key[: end * width]) for end in ends]


def parent(state: State, block: Block) -> Block | None:
    above = block[1][: -state.config.page_size * state.config.unit_bytes]
    return (block[0], above) if above else None


class Index:
    """A router that follows one replica in one mode, and is strict about what it is told."""

    def __init__(self, mode: Announce) -> None:
        self.mode = mode
        self.held: set[tuple[Residency, Block]] = set()
        self.events = 0

    def follow(self, before: State, after: State, effects: tuple[Effect, ...]) -> None:
        if any(isinstance(effect, Reset) for effect in effects):
            self.held.clear()
        for told in announcements(self.mode, before, after, effects):
            self.events += 1
            for block in blocks(after, told)[:: 1 if told.stored else -1]:
                if told.stored:
                    self._store(after, told.tier, block)
                else:
                    self._withdraw(after, told.tier, block)

    def _store(self, state: State, tier: Residency, block: Block) -> None:
        assert (tier, block) not in self.held, "announced twice"
        above = parent(state, block)
        if self.mode is Announce.STICKY:
            assert above is None or (tier, above) in self.held, "its parent is not known"
        self.held.add((tier, block))

    def _withdraw(self, state: State, tier: Residency, block: Block) -> None:
        self.held.remove((tier, block))
        if self.mode is Announce.STICKY:
            behind = [b for t, b in self.held if t is tier and parent(state, b) == block]
            assert not behind, "what follows it is still announced"


def covers(state: State, held: set[tuple[Residency, Block]]) -> None:
    """Sticky: all that is resident, and what leads to KV or is held by a request; no more."""
    told = {block for _, block in held}
    nodes = [node for node in state.nodes.values() if not node.is_root]
    for node in nodes:
        if node.residency is not Residency.HOLE:
            assert told.issuperset(blocks(state, node))
    assert told == {block for node in nodes for block in blocks(state, node)}
    for node in nodes:
        assert node.locks or _leads_to_kv(state, node), "announced, with no KV at or behind it"


def _leads_to_kv(state: State, node: Node) -> bool:
    return node.residency is not Residency.HOLE or any(
        _leads_to_kv(state, state.nodes[child]) for child in node.children.values()
    )


class Life:
    """A cache that serves, evicts, moves and forgets at random, and two routers that listen."""

    def __init__(self, random: Random, config: Config) -> None:
        self.random = random
        self.sticky, self.exact = Index(Announce.STICKY), Index(Announce.EXACT)
        self.store = SymbolicStore(config.device_capacity, config.host_capacity)
        self.cache = Cache(config, self.store, self.observe)
        self.running: list[tuple[Request, list[int]]] = []
        self.histories: list[list[int]] = [[]]
        self.refilled = 0

    def observe(self, before: State, name: str, after: State, effects: tuple[Effect, ...]) -> None:
        for index in (self.sticky, self.exact):
            index.follow(before, after, effects)
        covers(after, self.sticky.held)
        assert self.exact.held == {
            (node.residency, block)
            for node in after.nodes.values()
            if node.residency is not Residency.HOLE
            for block in blocks(after, node)
        }

    def step(self) -> None:
        acts = [self.start, self.start, self.finish, self.finish, self.evict, self.offer, self.move]
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
            self.refilled += end - start
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
    return Config(page * random.choice([8, 12]), page, block, **host)


@pytest.mark.parametrize("tiers", [1, 2])
@given(st.integers(0, 2**32), st.integers(10, 60))
def test_what_is_announced_is_closed_and_covers_what_is_resident(
    tiers: int, seed: int, steps: int
) -> None:
    random = Random(seed)
    life = Life(random, config(random, tiers))
    for _ in range(steps):
        life.step()


@pytest.mark.parametrize("tiers", [1, 2])
def test_what_is_checked_happens(tiers: int) -> None:
    refilled = told = moved = 0
    for seed in range(20):
        random = Random(seed)
        life = Life(random, config(random, tiers))
        for _ in range(80):
            life.step()
        refilled += life.refilled
        told += life.sticky.events
        moved += life.cache.flow.demoted + life.cache.flow.promoted
    assert (refilled > 20, told > 300, moved > 100) == (True, True, tiers == 2)


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
    ("mode", "scores"), [(Announce.STICKY, [104, 104, 104]), (Announce.EXACT, [104, 4, 20])]
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
