"""What routers are told, followed event by event by an index that is strict about it.

`Follower` is that index, for your own tests: hand it to a cache as its observer, or call it with
your engine's events.  `check_announced` serves random requests and follows what a function of
yours announces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final

from penelope.policy import Config, Effect, Key, Namespace, Node, Reset, Residency, State
from penelope.runtime.announcing import Announce, Announcement, announcements
from penelope.runtime.cache import Cache
from penelope.runtime.keeping import Observer
from penelope.runtime.store import KVStore
from penelope.testing.conformance import ONE_TIER, Report, check_cache
from penelope.testing.errors import ConformanceError
from penelope.testing.serving import ServingCache

Block = tuple[Namespace, bytes]
"""A page, named by its namespace and the whole history up to its end, packed."""

Told = Callable[[State, State, tuple[Effect, ...]], Iterable[Announcement]]
"""What is announced of a transition: (before, after, effects)."""

COVERS: Final = "announced-covers-resident"
RESIDENT: Final = "announced-is-resident"


class Follower:
    """An index of one replica in one mode, and strict: whatever breaks the mode's rule is raised.

    A block whose parent is not known, one that is stored twice or withdrawn while blocks behind it
    are told of raises `ConformanceError` under the name of the rule; `EXACT` may leave parents out.
    """

    def __init__(self, mode: Announce, config: Config) -> None:
        self.mode = mode
        self.held: set[tuple[Residency, Block]] = set()
        self.events = 0
        self._rule = RESIDENT if mode is Announce.PREFIX else COVERS
        self._step = config.page_size * config.unit_bytes
        self._width = config.unit_bytes
        self._behind: dict[tuple[Residency, Block], int] = {}
        self._last = set(self.held), dict(self._behind)

    def observe(
        self,
        before: State,
        after: State,
        effects: tuple[Effect, ...],
        told: Iterable[Announcement] | None = None,
    ) -> None:
        """Follow one transition, all of it, and compare with the state after it.

        `told` is what an adapter announced; by default what `announcements` says.
        """
        self._last = set(self.held), dict(self._behind)
        if any(isinstance(effect, Reset) for effect in effects):
            self.cleared()
        there = self._prefixes(before) | self._prefixes(after)
        if told is None:
            told = announcements(self.mode, before, after, effects)
        for one in told:
            self.tell(one.stored, one.tier, one.namespace, one.key, one.start, one.end)
            if self.mode is Announce.PREFIX and not there.issuperset(self.blocks()):
                extra = len(self.blocks() - there)
                raise self._broken(f"{extra} blocks are told of that are not there")
        self.agrees(after)

    def undo(self) -> None:
        """The transition that was followed last did not happen: the store failed."""
        self.held, self._behind = self._last

    def tell(
        self, stored: bool, tier: Residency, namespace: Namespace, key: Key, start: int, end: int
    ) -> None:
        """One event: units [start, end) of a history are there now, or no longer.

        Blocks are stored from the first to the last and withdrawn from the last to the first.
        """
        self.events += 1
        span = [*self._pages(namespace, key, start, end)]
        for block in span if stored else reversed(span):
            if stored:
                self._store(tier, block)
            else:
                self._withdraw(tier, block)

    def cleared(self) -> None:
        """Everything is gone."""
        self.held.clear()
        self._behind.clear()

    def blocks(self) -> set[Block]:
        """What is told of, in any tier."""
        return {block for _, block in self.held}

    def agrees(self, state: State) -> None:
        """Raises `ConformanceError` unless what is told of is what the mode says of this state."""
        if self.mode is Announce.EXACT:
            due = {
                (node.residency, block)
                for node in _nodes(state)
                if node.residency is not Residency.HOLE
                for block in self._span(node)
            }
            self._compare(self.held, due)
        elif self.mode is Announce.PREFIX:
            self._compare(self.blocks(), self._prefixes(state))
        else:
            self._covers(state)

    def _covers(self, state: State) -> None:
        told = self.blocks()
        nodes = [*_nodes(state)]
        for node in nodes:
            if node.residency is not Residency.HOLE and not told.issuperset(self._span(node)):
                raise self._broken(f"[{node.start}, {node.end}) is resident and not told of")
            if told.isdisjoint(self._span(node)):
                continue
            if not node.locks and not _leads_to_kv(state, node):
                raise self._broken(f"[{node.start}, {node.end}) is told of, with no KV behind it")
        self._compare(told, {block for node in nodes for block in self._span(node)})

    def _prefixes(self, state: State) -> set[Block]:
        """Blocks that are resident with all that precedes them: node by node, from the roots."""
        found: set[Block] = set()
        ahead = [state.nodes[root] for root in state.roots.values()]
        while ahead:
            node = ahead.pop()
            if node.is_root or node.residency is not Residency.HOLE:
                found.update(self._span(node))
                ahead += [state.nodes[child] for child in node.children.values()]
        return found

    def _store(self, tier: Residency, block: Block) -> None:
        if (tier, block) in self.held:
            raise self._broken("a block is told of twice")
        if self.mode is not Announce.EXACT:
            above = self._parent(block)
            if above is not None and (tier, above) not in self.held:
                raise self._broken("a block is told of whose parent is not known")
            if above is not None:
                self._behind[tier, above] = self._behind.get((tier, above), 0) + 1
        self.held.add((tier, block))

    def _withdraw(self, tier: Residency, block: Block) -> None:
        if (tier, block) not in self.held:
            raise self._broken("a block is withdrawn that was not told of")
        if self.mode is not Announce.EXACT:
            if self._behind.get((tier, block)):
                raise self._broken("a block is withdrawn while blocks behind it are told of")
            above = self._parent(block)
            if above is not None:
                self._behind[tier, above] -= 1
        self.held.remove((tier, block))

    def _parent(self, block: Block) -> Block | None:
        above = block[1][: -self._step]
        return (block[0], above) if above else None

    def _span(self, node: Node) -> Iterator[Block]:
        return self._pages(node.namespace, node.key, node.start, node.end)

    def _pages(self, namespace: Namespace, key: Key, start: int, end: int) -> Iterator[Block]:
        first = start * self._width + self._step
        for stop in range(first, end * self._width + 1, self._step):
            yield namespace, key[:stop]

    def _compare(self, told: AbstractSet[object], due: AbstractSet[object]) -> None:
        if told != due:
            raise self._broken(
                f"{len(due - told)} blocks are not told of that should be, and {len(told - due)} "
                f"are that should not"
            )

    def _broken(self, seen: str) -> ConformanceError:
        return ConformanceError(self._rule, f"{seen} ({self.mode.value})")


def check_announced(
    told: Told,
    mode: Announce,
    *,
    config: Config = ONE_TIER,
    operations: int = 400,
    seed: int = 0,
) -> Report:
    """Serve random requests, and follow what `told` announces of every transition.

    Give a function of your own, `(before, after, effects) -> announcements`, that says what your
    engine's routers would hear.  Raises `ConformanceError` with the shortest way to the fault.
    """

    def make(config: Config, store: KVStore, observe: Observer) -> ServingCache:
        follower = Follower(mode, config)
        last: list[State] = []

        def both(before: State, name: str, after: State, effects: tuple[Effect, ...]) -> None:
            observe(before, name, after, effects)
            if last and last[0] is not before:
                follower.undo()
            last[:] = [after]
            follower.observe(before, after, effects, told(before, after, effects))

        return Cache(config, store, both)

    return check_cache(make, config=config, operations=operations, seed=seed)


def _nodes(state: State) -> Iterator[Node]:
    return (node for node in state.nodes.values() if not node.is_root)


def _leads_to_kv(state: State, node: Node) -> bool:
    return node.residency is not Residency.HOLE or any(
        _leads_to_kv(state, state.nodes[child]) for child in node.children.values()
    )
