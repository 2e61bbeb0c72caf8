"""Whatever is evicted, refilled, aborted and shared: every slot holds the KV of its history."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penelope.policy import POLICIES, Config, Key, Refused, Residency, named_policy, pack
from penelope.runtime import symbolic
from penelope.runtime.cache import Cache, Request
from penelope.runtime.store import StoreError
from penelope.runtime.symbolic import Job, SymbolicStore, WrongKV
from penelope.testing.audit import TIERS, audit

FAILURES = st.sampled_from([False, False, False, False, True])


class UnreliableStore(SymbolicStore):
    """Fails the calls it is told to fail, before doing anything."""

    failing_in = 0

    def _maybe_fail(self) -> None:
        self.failing_in -= 1
        if self.failing_in == 0:
            raise StoreError("the store is out of order")

    def allocate(self, units: int, tier: Residency = Residency.DEVICE) -> list[int]:
        self._maybe_fail()
        return super().allocate(units, tier)

    def free(self, slots: Sequence[int], host: Sequence[int] = ()) -> None:
        self._maybe_fail()
        super().free(slots, host)

    def copy(self, source: Sequence[int], target: Sequence[int], tier: Residency) -> None:
        self._maybe_fail()
        super().copy(source, target, tier)


class Running:
    """A request as an engine sees it: its tokens, and how far it is computed."""

    def __init__(self, request: Request, tokens: list[int], room: int) -> None:
        self.request, self.tokens, self.room = request, tokens, room

    @property
    def key(self) -> Key:
        return pack(self.tokens)


class Engine(RuleBasedStateMachine):
    @initialize(
        name=st.sampled_from([*POLICIES, *["penelope"] * 5]),
        page=st.integers(1, 3),
        block_pages=st.integers(1, 3),
        capacity_pages=st.integers(6, 16),
        buffer_blocks=st.sampled_from([0, 1, 1, 2]),
        host_pages=st.integers(0, 16),
    )
    def start(
        self,
        name: str,
        page: int,
        block_pages: int,
        capacity_pages: int,
        buffer_blocks: int,
        host_pages: int,
    ) -> None:
        """With one tier, or with a host smaller or larger than the device."""
        capacity, block = page * capacity_pages, page * block_pages
        swap = buffer_blocks * block
        host = swap + page * host_pages if swap else 0
        self.page = page
        self.store = UnreliableStore(capacity, host)
        config = Config(
            capacity, page, block, *named_policy(name), host_capacity=host, swap_buffer=swap
        )
        self.cache = Cache(config, self.store)
        self.histories: list[list[int]] = [[]]
        self.running: list[Running] = []

    def known(self) -> list[list[int]]:
        """Histories worth continuing: with a hole or host KV if there are any, else all."""
        nodes = self.cache.state.nodes
        holed = []
        for node in nodes.values():
            if not node.children and node.parent is not None:
                above = node
                while above.parent is not None and above.residency is Residency.DEVICE:
                    above = nodes[above.parent]
                if above.parent is not None:
                    holed.append([*memoryview(node.key).cast("I")[: node.end]])
        return sorted(holed) or self.histories

    def atomically(self, fail: bool, act: object, *args: object) -> object:
        """Run an operation that may be refused, or that the store is made to fail."""
        before, allocated = self.cache.state, self.store.held()
        self.store.failing_in = 1 if fail else 0
        try:
            return act(*args)  # type: ignore[operator]
        except (Refused, StoreError) as error:
            if isinstance(error, StoreError) and self.cache.state.config.host_capacity:
                return None  # a move failed on the way: the invariant says what must hold
            assert self.cache.state is before
            assert self.store.held() == allocated
            return None
        finally:
            self.store.failing_in = 0

    @rule(
        data=st.data(),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=8),
        parts=st.integers(1, 3),
        fail=FAILURES,
    )
    def prefill(self, data: st.DataObject, tokens: list[int], parts: int, fail: bool) -> None:
        """Admit up to two requests and compute them, with their phantoms, in one batch."""
        base = data.draw(st.sampled_from(self.known()))
        base = base[: len(base) - data.draw(st.sampled_from([0, 0, 0, 1, 2]))]
        prompts = [base + tokens]
        if data.draw(st.booleans()):
            prompts.append(base + tokens[:1] + [2])
        batch: list[Running] = []
        jobs: list[Job] = []
        for prompt in prompts:
            try:
                plan = self.cache.plan(pack(prompt))
            except Refused:
                continue
            request = self.atomically(fail, self.cache.admit, plan)
            if not isinstance(request, Request):
                continue
            one = Running(request, prompt, request.start + len(request.tail) - len(prompt))
            batch.append(one)
            self.running.append(one)
            try:
                table = self.cache.table(request, [r.request for r in batch])
            except StoreError:  # another batch refills a part of it: never so in this engine
                raise AssertionError("a refill outlived its step") from None
            assert len(table) == len(prompt) + one.room
            # The real request reads, in the same step, what its phantoms write.
            jobs += [Job(one.key, table[:end], *hole) for hole in plan.holes for end in hole[1:]]
            jobs.append(Job(one.key, table, plan.new[0], len(prompt)))
            assert plan.new[0] < len(prompt)
        self.store.step(jobs)
        for one in batch:
            for start, end in list(one.request.holes):
                # A hole may be handed over in several parts, in position order.
                size = -(-(end - start) // (parts * self.page)) * self.page
                for low in range(start, end, size):
                    self.cache.refill(one.request, low, min(end, low + size))
            assert not one.request.holes

    @precondition(lambda self: self.running)
    @rule(data=st.data(), token=st.integers(0, 1), fail=FAILURES)
    def decode(self, data: st.DataObject, token: int, fail: bool) -> None:
        """One more token, in room that may have to be evicted for."""
        one = data.draw(st.sampled_from(self.running))
        if one.room == 0:
            before = len(one.request.tail)
            self.atomically(fail, self.cache.grow, one.request, self.page)
            one.room = len(one.request.tail) - before
            if one.room == 0:
                return
        one.room -= 1
        one.tokens = [*one.tokens, token]
        at = len(one.tokens) - 1
        self.store.step([Job(one.key, self.cache.table(one.request), at, at + 1)])

    @precondition(lambda self: self.running)
    @rule(data=st.data(), fail=FAILURES)
    def checkpoint(self, data: st.DataObject, fail: bool) -> None:
        one = data.draw(st.sampled_from(self.running))
        self.atomically(fail, self.cache.checkpoint, one.request, one.key)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), abort=st.booleans(), fail=FAILURES)
    def end(self, data: st.DataObject, abort: bool, fail: bool) -> None:
        one = data.draw(st.sampled_from(self.running))
        if not abort:
            self.cache.checkpoint(one.request, one.key)
            self.histories = [*self.histories[-6:], one.tokens]
        owned = one.request.owned
        self.atomically(fail, self.cache.release, one.request)
        if one.request.receipt.id not in self.cache.state.leases:
            self.running.remove(one)
        else:
            assert one.request.owned == owned

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=6), data=st.data())
    def offer(self, tokens: list[int], data: st.DataObject) -> None:
        """KV computed outside any request is offered to the tree; so are the tree's own slots."""
        tokens = data.draw(st.sampled_from(self.histories)) + tokens
        key = pack(tokens)
        if len(tokens) > self.cache.state.free:
            return
        slots = self.store.allocate(len(tokens))
        self.store.step([Job(key, slots, 0, len(tokens))])
        offered = self.cache.insert(key, slots)
        assert offered.adopted + offered.resident == len(tokens) - len(tokens) % self.page
        assert len(offered.surplus) == len(tokens) - offered.adopted
        kept = [slot for slot in slots if slot not in offered.surplus]
        if offered.resident == 0:  # the same slots again are not duplicates
            again = self.cache.insert(pack(tokens[: len(kept)]), kept)
            assert again.surplus == []
            assert again.resident == len(kept)
        self.histories = [*self.histories[-6:], tokens]

    @rule(need=st.integers(1, 4), fail=FAILURES)
    def evict(self, need: int, fail: bool) -> None:
        self.atomically(fail, self.cache.evict, need)

    @precondition(lambda self: not self.running)
    @rule(fail=FAILURES)
    def reset(self, fail: bool) -> None:
        self.atomically(fail, self.cache.reset)

    @invariant()
    def every_slot_is_right_and_owned_once(self) -> None:
        held = {tier: self.store.held(tier) for tier in TIERS}
        requests = [one.request for one in self.running]
        assert audit(self.cache, held, requests, symbolic.prefill) == []
        assert not self.cache.state.moves


TestEngine = Engine.TestCase


def test_an_unfilled_hole_is_noticed() -> None:
    cache, store, tokens = _with_a_hole()
    plan = cache.plan(pack([*tokens, 9]))
    request = cache.admit(plan)
    assert plan.holes == ((0, 4),)
    table = cache.table(request)
    with pytest.raises(WrongKV, match="holds nothing yet"):
        store.step([Job(pack([*tokens, 9]), table, *plan.new)])


def test_a_hole_filled_at_wrong_positions_is_noticed() -> None:
    cache, store, tokens = _with_a_hole()
    plan = cache.plan(pack([*tokens, 9]))
    request = cache.admit(plan)
    table = cache.table(request)
    shifted = [*table[1:4], table[0], *table[4:]]
    with pytest.raises(WrongKV, match="another history"):
        store.step(
            [Job(pack(tokens), shifted[:4], 0, 4), Job(pack([*tokens, 9]), table, *plan.new)]
        )


def _with_a_hole() -> tuple[Cache, SymbolicStore, list[int]]:
    """Eight tokens, of which the first block of four has been evicted."""
    store = SymbolicStore(16)
    cache = Cache(Config(16, block_size=4), store)
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    slots = store.allocate(8)
    store.step([Job(pack(tokens), slots, 0, 8)])
    cache.insert(pack(tokens), slots)
    assert cache.evict(2) == 4
    return cache, store, tokens
