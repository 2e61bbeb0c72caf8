"""Random runs of the real core, for the tests of the specification.

A seeded generator, not Hypothesis: the states that it yields are corrupted, abstracted and
compared here, and a run must be the same in another process (`determinism`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from penelope.policy import (
    Config,
    Effect,
    Granularity,
    Key,
    Namespace,
    Node,
    Plan,
    Position,
    Receipt,
    Refused,
    Residency,
    State,
    acquire,
    admit,
    checkpoint,
    empty,
    evict,
    insert,
    match,
    pack,
    plan,
    plan_matched,
    refill,
    release,
    reserve,
    reset,
    touch,
)
from penelope_spec import Facts

NAMESPACES = (Namespace(), Namespace("adapter"), Namespace(None, ""))


class Done(NamedTuple):
    """One accepted step, or one refused (`after` is `before` then)."""

    before: State
    after: State
    transition: str
    facts: Facts
    refused: Refused | None = None
    key: Key = Key(b"")
    """What was offered, to insert or checkpoint."""
    namespace: Namespace = Namespace()
    reach: int = 0
    """Where the offer ends: whole pages."""


Action = Callable[[], Iterator[Done]]


class Running(NamedTuple):
    receipt: Receipt
    plan: Plan
    todo: tuple[tuple[int, int], ...]


class World:
    """A cache and what its users know: a few histories that fork, and running requests."""

    def __init__(self, config: Config, seed: int) -> None:
        self.random = random.Random(seed)
        self.config = config
        self.state = empty(config)
        self.histories: list[list[int]] = [[]]
        self.running: list[Running] = []
        self.locks: list[Receipt] = []

    def run(self, steps: int) -> Iterator[Done]:
        actions: list[Action] = (
            [self._insert] * 4 + [self._evict] * 3 + [self._admit] * 2 + [self._return] * 2
        )
        actions += [self._finish, self._refill, self._refill, self._lock, self._unlock]
        actions += [self._unlock, self._touch, self._reserve, self._checkpoint]
        actions += self._more()
        for _ in range(steps):
            action = self._reset if self.random.random() < 0.01 else self.random.choice(actions)
            yield from action()

    def _more(self) -> list[Action]:
        """What else this world does."""
        return []

    def _history(self) -> tuple[Key, Namespace]:
        """Continue, fork or repeat a known history, mostly the same few."""
        page = self.config.page_size
        units = list(self.random.choice(self.histories[-6:]))
        if units and self.random.random() < 0.3:
            units = units[: self.random.randrange(len(units)) // page * page]
        if len(units) < self.config.device_capacity // 2:
            units += [self.random.randrange(2) for _ in range(self.random.randrange(6 * page))]
        self.histories.append(units)
        return pack(units), self.random.choice(NAMESPACES[: self.random.choice((1, 1, 1, 3))])

    def _did(
        self, after: State, transition: str, effects: tuple[Effect, ...], **facts: object
    ) -> Done:
        given: Facts = {"effects": effects, **facts}  # type: ignore[typeddict-item]
        before, self.state = self.state, after
        return Done(before, after, transition, given)

    def _offered(self, step: Done, key: Key, namespace: Namespace) -> Done:
        length = len(key) // self.config.unit_bytes
        reach = length - length % self.config.page_size
        return step._replace(key=key, namespace=namespace, reach=reach)

    def _not(self, transition: str, error: Refused, **facts: object) -> Done:
        given: Facts = {**facts}  # type: ignore[typeddict-item]
        return Done(self.state, self.state, transition, given, error)

    def _insert(self) -> Iterator[Done]:
        key, namespace = self._history()
        units = len(key) // self.config.unit_bytes
        short = self._over(units)
        if short > 0:
            yield from self._evict(short)
        try:
            done = insert(self.state, key, namespace)
        except Refused as error:
            yield self._not("insert", error)
        else:
            step = self._did(done.state, "insert", done.effects)
            yield self._offered(step, key, namespace)

    def _over(self, units: int) -> int:
        """By how much the tiers together are too small for further `units`."""
        return self.state.logical_used + units - self.config.logical_capacity

    def _evict(self, need: int | None = None) -> Iterator[Done]:
        if need is None:
            most = self.state.evictable + 1
            if self.random.random() < 0.8:
                most = min(most, 2 * self.config.block_size)
            need = self.random.randrange(most + 1)
        try:
            done = evict(self.state, need)
        except Refused as error:
            yield self._not("evict", error, need=need)
        else:
            yield self._did(done.state, "evict", done.effects, need=need, freed=done.freed)

    def _return(self) -> Iterator[Done]:
        """A history with a hole comes back: random histories seldom do."""
        ends = [
            node
            for node in self.state.nodes.values()
            if not node.children and any(hole.end <= node.start for hole in self._holes(node))
        ]
        if ends:
            node = self.random.choice(sorted(ends, key=lambda node: node.id))
            units = self.random.choices(range(2), k=self.random.randrange(1, 4))
            key = Key(node.key[: node.end * self.config.unit_bytes] + pack(units))
            yield from self._start(key, node.namespace)

    def _holes(self, node: Node) -> Iterator[Node]:
        while node.parent is not None:
            if node.residency is Residency.HOLE:
                yield node
            node = self.state.nodes[node.parent]

    def _admit(self) -> Iterator[Done]:
        key, namespace = self._history()
        yield from self._start(key, namespace)

    def _start(self, key: Key, namespace: Namespace) -> Iterator[Done]:
        if len(self.running) > 2:
            yield from self._finish()
        try:
            planned = plan(self.state, key, namespace, extra=self.random.randrange(3))
        except Refused:
            return
        if self.random.random() < 0.08:  # as an engine does that owns its allocator
            units, held = self.random.randrange(3), self.random.randrange(self.state.free + 1)
            planned = plan_matched(planned.match, units=units, held=held)
        try:
            done = admit(self.state, planned)
        except Refused as error:
            yield self._not("admit", error, plan=planned)
            return
        self.running.append(Running(done.receipt, planned, planned.holes))
        yield self._did(done.state, "admit", done.effects, plan=planned, freed=done.freed)

    def _refill(self) -> Iterator[Done]:
        waiting = [i for i, one in enumerate(self.running) if one.todo and self._settled(one)]
        if not waiting:
            return
        index = self.random.choice(waiting)
        one = self.running[index]
        (start, end), rest = one.todo[0], one.todo[1:]
        page = self.config.page_size
        cut = self.random.randrange(start, end) // page * page
        if start < cut:
            end, rest = cut, ((cut, end), *rest)
        try:
            done = refill(self.state, one.receipt, start, end)
        except Refused as error:
            yield self._not("refill", error)
            return
        self.running[index] = one._replace(todo=rest)
        facts = {"receipt": one.receipt, "start": start}
        yield self._did(done.state, "refill", done.effects, **facts)

    def _checkpoint(self) -> Iterator[Done]:
        ready = [one for one in self.running if self._settled(one)]
        if not ready:
            return
        one = self.random.choice(ready)
        length = self.random.randrange(one.plan.match.end, one.plan.match.length + 1)
        yield from self._offer(one, length)

    def _offer(self, one: Running, length: int) -> Iterator[Done]:
        """What a running request has computed so far."""
        key = Key(one.plan.match.key[: length * self.config.unit_bytes])
        try:
            done = checkpoint(self.state, one.receipt, key)
        except Refused as error:
            yield self._not("checkpoint", error)
        else:
            step = self._did(done.state, "checkpoint", done.effects, receipt=one.receipt)
            yield self._offered(step, key, one.plan.match.namespace)

    def _settled(self, one: Running) -> bool:
        """Whether the request has all that it was promised."""
        lease = self.state.leases[one.receipt.id]
        return not lease.due and not lease.promote

    def _finish(self) -> Iterator[Done]:
        if not self.running:
            return
        one = self.running.pop(self.random.randrange(len(self.running)))
        done = release(self.state, one.receipt)
        yield self._did(done.state, "release", done.effects, receipt=one.receipt)

    def _lock(self) -> Iterator[Done]:
        if len(self.locks) > 1:
            yield from self._unlock()
        key, namespace = self._history()
        matched = match(self.state, key, namespace)
        try:
            done = acquire(self.state, matched)
        except Refused as error:
            yield self._not("acquire", error, match=matched)
            return
        self.locks.append(done.receipt)
        yield self._did(done.state, "acquire", done.effects, match=matched)

    def _unlock(self) -> Iterator[Done]:
        if not self.locks:
            return
        receipt = self.locks.pop(self.random.randrange(len(self.locks)))
        done = release(self.state, receipt)
        yield self._did(done.state, "release", done.effects, receipt=receipt)

    def _touch(self) -> Iterator[Done]:
        """A prefix, or a whole history: what an earlier touch cut is merged again."""
        key, namespace = self._history()
        at_most = None
        ends = [n for n in self.state.nodes.values() if not n.children and not n.is_root]
        if ends and self.random.random() < 0.4:
            node = self.random.choice(sorted(ends, key=lambda node: node.id))
            key, namespace, at_most = node.key, node.namespace, node.end
        matched = match(self.state, key, namespace, at_most=at_most)
        done = touch(self.state, matched)
        yield self._did(done.state, "touch", done.effects, match=matched)

    def _reserve(self) -> Iterator[Done]:
        if not self.running:
            return
        one = self.random.choice(self.running)
        units = self.random.choice((self.random.randrange(4), max(0, self.state.available)))
        try:
            done = reserve(self.state, one.receipt, units)
        except Refused as error:
            yield self._not("reserve", error, units=units, receipt=one.receipt)
        else:
            facts = {"units": units, "receipt": one.receipt}
            yield self._did(done.state, "reserve", done.effects, **facts)

    def _reset(self) -> Iterator[Done]:
        try:
            done = reset(self.state)
        except Refused as error:
            yield self._not("reset", error)
        else:
            yield self._did(done.state, "reset", done.effects)


def configs() -> Iterator[Config]:
    """Every policy, at several sizes of page and block, with and without sticky sharing."""
    for position in Position:
        for granularity in Granularity:
            for page, block, capacity in ((1, 1, 12), (1, 4, 24), (2, 4, 30), (3, 6, 60)):
                base = Config(capacity, page, block, position, granularity)
                yield base
                yield replace(base, sticky_shared=True)
