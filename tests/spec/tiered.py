"""Random runs of the real core with two tiers.

Moves are carried out one by one, fail, or stay in flight while anything else goes on: requests
that wait for their room are released, others are admitted, histories are evicted around them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from penelope.policy import (
    Config,
    Granularity,
    Key,
    MoveId,
    Position,
    Refused,
    Residency,
    Transfer,
    begin_move,
    end_move,
    fail_move,
    forgo_promise,
    next_demotion,
    next_transfer,
    pack,
    settle_promise,
)
from tests.spec.worlds import Action, Done, Running, World


class Tiered(World):
    """A world with a host tier."""

    def _more(self) -> list[Action]:
        moving: list[Action] = [self._transfer] * 8 + [self._end] * 7 + [self._settle] * 3
        rare = [self._fail, self._forgo, self._forgo, self._demote, self._late, self._stop]
        return [*moving, *rare, *[self._recall] * 3, *[self._fill] * 2, *[self._reserve] * 6]

    def _stop(self) -> Iterator[Done]:
        """Everybody goes, and the cache forgets."""
        if self.random.random() < 0.2:
            while self.running:
                yield from self._finish()
            while self.locks:
                yield from self._unlock()
            while self.state.moves:
                yield from self._end()
            yield from self._reset()

    def _recall(self) -> Iterator[Done]:
        """A history that lies on the host, in part or wholly, comes back."""
        nodes = sorted(self.state.nodes.values(), key=lambda node: node.id)
        ends = [node for node in nodes if node.residency is Residency.HOST and not node.locks]
        if ends:
            node = self.random.choice(ends)
            units = self.random.choices(range(2), k=self.random.randrange(1, 3))
            key = Key(node.key[: node.end * self.config.unit_bytes] + pack(units))
            yield from self._start(key, node.namespace)

    def _fill(self) -> Iterator[Done]:
        """A large request that ends at once: the device gives way to the host."""
        key, namespace = self._history()
        units = self.random.choices(range(2), k=self.config.device_capacity // 2)
        yield from self._start(Key(key + pack(units)), namespace)

    def _waiting(self) -> list[Running]:
        return [one for one in self.running if not self._settled(one)]

    def _transfer(self) -> Iterator[Done]:
        waiting = self._waiting()
        if waiting:
            one = self.random.choice(waiting)
            transfer = next_transfer(self.state, one.receipt)
            if transfer is not None:
                yield from self._begin(transfer)

    def _demote(self) -> Iterator[Done]:
        """Demotion for nobody, to where there may be no room."""
        transfer = next_demotion(self.state, self.random.randrange(1, 5) * self.config.page_size)
        if transfer is not None:
            yield from self._begin(transfer)

    def _begin(self, transfer: Transfer) -> Iterator[Done]:
        try:
            done = begin_move(self.state, transfer)
        except Refused as error:
            yield self._not("begin_move", error, transfer=transfer)
        else:
            yield self._did(done.state, "begin_move", done.effects, transfer=transfer)

    def _end(self) -> Iterator[Done]:
        moves = sorted(self.state.moves)
        if moves:
            number = self.random.choice(moves)
            done = end_move(self.state, number)
            yield self._did(done.state, "end_move", done.effects, move=number)

    def _fail(self) -> Iterator[Done]:
        moves = sorted(self.state.moves)
        if moves:
            number = self.random.choice(moves)
            done = fail_move(self.state, number)
            yield self._did(done.state, "fail_move", done.effects, move=number)

    def _late(self) -> Iterator[Done]:
        """A completion that comes a second time."""
        number = MoveId(self.random.randrange(self.state.next_move + 1))
        if number not in self.state.moves:
            try:
                end_move(self.state, number)
            except Refused as error:
                yield self._not("end_move", error, move=number)

    def _settle(self) -> Iterator[Done]:
        waiting = self._waiting()
        if waiting:
            receipt = self.random.choice(waiting).receipt
            try:
                done = settle_promise(self.state, receipt)
            except Refused as error:
                yield self._not("settle_promise", error, receipt=receipt)
            else:
                yield self._did(done.state, "settle_promise", done.effects, receipt=receipt)

    def _forgo(self) -> Iterator[Done]:
        """Giving up, and going on all the same, with what it matched still on the host."""
        waiting = self._waiting()
        if waiting:
            one = self.random.choice(waiting)
            done = forgo_promise(self.state, one.receipt)
            yield self._did(done.state, "forgo_promise", done.effects, receipt=one.receipt)
            if self.random.random() < 0.5:
                yield from self._offer(one, one.plan.match.end)


def tiered_configs() -> Iterator[Config]:
    """Every policy; a host smaller than, equal to and larger than the device, and swap only."""
    sizes = ((1, 1, 8, 6, 2), (1, 2, 8, 10, 2), (1, 4, 12, 28, 4), (2, 4, 20, 12, 8))
    for position in Position:
        for granularity in Granularity:
            for page, block, device, host, swap in sizes:
                base = Config(device, page, block, position, granularity)
                yield replace(base, host_capacity=host, swap_buffer=swap)
    swap_only = Config(8, 1, 2, host_capacity=2, swap_buffer=2)
    yield swap_only
    yield replace(swap_only, host_capacity=12, sticky_shared=True)
