"""Which slots hold the KV of which node: the shell's half of the tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from penelope.policy import (
    Adopt,
    Copy,
    Effect,
    Free,
    Merge,
    Moved,
    MoveId,
    NodeId,
    Remove,
    Reset,
    Residency,
    Split,
    Surplus,
    Unmoved,
)
from penelope.runtime.store import StoreError


class Slots(Protocol):
    """A sequence of slot indices: a list, an array or a tensor."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: slice, /) -> Self: ...


S = TypeVar("S", bound=Slots)
_I = TypeVar("_I")


class Rope(NamedTuple, Generic[S]):
    """The slots of one node, in pieces, so that splits and merges copy no slots."""

    start: int
    pieces: tuple[S, ...]
    tier: Residency = Residency.DEVICE

    @property
    def end(self) -> int:
        return self.start + sum(map(len, self.pieces))

    def cut(self, start: int, end: int) -> tuple[S, ...]:
        """The pieces of positions [start, end)."""
        found: list[S] = []
        at = self.start
        for piece in self.pieces:
            low, high = max(start, at), min(end, at + len(piece))
            if low < high:
                found.append(piece[low - at : high - at])
            at += len(piece)
        return tuple(found)


class Staged(NamedTuple, Generic[S]):
    """What following some effects comes to, before anything is changed."""

    nodes: dict[NodeId, Rope[S] | None]
    moves: dict[MoveId, Rope[S] | None]
    freed: tuple[S, ...]
    """Device slots that the tree gives up."""
    freed_host: tuple[S, ...]
    surplus: tuple[tuple[int, S], ...]
    """(start, the tree's own slots) of the spans that the tree had already."""
    cleared: bool
    effects: tuple[Effect, ...]
    """What was followed."""


_MAX_PIECES = 32


class SlotTable(Generic[S]):
    """The slots of every resident node, kept by following the core's effects.

    `concat` joins a non-empty list of slot sequences into one.
    """

    def __init__(self, concat: Callable[[list[S]], S]) -> None:
        self._concat = concat
        self._nodes: dict[NodeId, Rope[S]] = {}
        self._moves: dict[MoveId, Rope[S]] = {}

    def part(self, node: NodeId, start: int, end: int) -> S:
        """The slots of positions [start, end) of a resident node, as one."""
        return self._whole(self._nodes[node].cut(start, end))

    def items(self, tier: Residency = Residency.DEVICE) -> Iterator[tuple[NodeId, int, S]]:
        """(node, start, slots) of every node with KV in a tier."""
        for node, rope in self._nodes.items():
            if rope.tier is tier:
                yield node, rope.start, self._whole(rope.pieces)

    def fresh(self, move: MoveId) -> S:
        """The slots that a move in flight fills."""
        return self._whole(self._moves[move].pieces)

    def _whole(self, pieces: tuple[S, ...]) -> S:
        return pieces[0] if len(pieces) == 1 else self._concat(list(pieces))

    def stage(
        self, effects: Iterable[Effect], offered: Callable[[int, int], S] | None = None
    ) -> Staged[S]:
        """Work out what the effects do.

        `offered(start, end)` gives the caller's slots for an adoption, or fresh slots of the
        target tier for a copy.  Raises `StoreError` unless it gives one for each unit.
        """
        follow = _Follow(self._nodes, self._moves, self._concat, offered)
        effects = tuple(effects)
        for effect in effects:
            if isinstance(effect, Copy | Moved | Unmoved):
                follow.move(effect)
            else:
                follow.one(effect)
        return Staged(
            follow.nodes,
            follow.moves,
            tuple(follow.freed[Residency.DEVICE]),
            tuple(follow.freed[Residency.HOST]),
            tuple(follow.surplus),
            follow.cleared,
            effects,
        )

    def clear(self) -> None:
        """Forget all slots; they are free by other means."""
        self.commit(self.stage([Reset()]))

    def commit(self, staged: Staged[S]) -> None:
        """Make it so.  Cannot fail."""
        if staged.cleared:
            self._nodes.clear()
        _update(self._nodes, staged.nodes)
        _update(self._moves, staged.moves)


def _update(table: dict[_I, Rope[S]], changes: dict[_I, Rope[S] | None]) -> None:
    for key, rope in changes.items():
        if rope is None:
            table.pop(key, None)
        else:
            table[key] = rope


class _Follow(Generic[S]):
    """The changes that a sequence of effects comes to."""

    def __init__(
        self,
        nodes_before: Mapping[NodeId, Rope[S]],
        moves_before: Mapping[MoveId, Rope[S]],
        concat: Callable[[list[S]], S],
        offered: Callable[[int, int], S] | None,
    ) -> None:
        self._nodes = nodes_before
        self._moves = moves_before
        self._concat = concat
        self._offered = offered
        self.nodes: dict[NodeId, Rope[S] | None] = {}
        self.moves: dict[MoveId, Rope[S] | None] = {}
        self.freed: dict[Residency, list[S]] = {Residency.DEVICE: [], Residency.HOST: []}
        self.surplus: list[tuple[int, S]] = []
        self.cleared = False

    def one(self, effect: Split | Merge | Adopt | Surplus | Free | Remove | Reset) -> None:
        match effect:
            case Split(node, upper, at):
                if (rope := self._find(node)) is not None:
                    self.nodes[upper] = Rope(rope.start, rope.cut(rope.start, at), rope.tier)
                    self.nodes[node] = Rope(at, rope.cut(at, rope.end), rope.tier)
            case Merge(upper, node):
                above, below = self._find(upper), self._find(node)
                self.nodes[upper] = None
                if above is not None and below is not None:
                    self.nodes[node] = self._joined(above, below)
            case Adopt(node, start, end):
                self.nodes[node] = Rope(start, (self._offer(start, end),))
            case Surplus(node, start, end):
                own = self._resident(node).cut(start, end)
                self.surplus.append((start, self._concat(list(own))))
            case Free(node):
                self._give_up(self._resident(node))
                self.nodes[node] = None
            case Remove():
                pass  # it lost its slots before
            case Reset():
                self.cleared = True
                for rope in self._nodes.values():
                    self._give_up(rope)

    def move(self, effect: Copy | Moved | Unmoved) -> None:
        match effect:
            case Copy(move, _, start, end, target):
                self.moves[move] = Rope(start, (self._offer(start, end),), target)
            case Moved(move, node, start, end, target):
                fresh = self._arriving(move)
                self._give_up(self._resident(node))
                self.nodes[node] = Rope(start, fresh.cut(start, end), target)
                if end == fresh.end:
                    self.moves[move] = None
            case Unmoved(move):
                self._give_up(self._arriving(move))
                self.moves[move] = None

    def _give_up(self, rope: Rope[S]) -> None:
        self.freed[rope.tier].extend(rope.pieces)

    def _find(self, node: NodeId) -> Rope[S] | None:
        return self.nodes[node] if node in self.nodes else self._nodes.get(node)

    def _resident(self, node: NodeId) -> Rope[S]:
        rope = self._find(node)
        assert rope is not None, "a resident node without slots"
        return rope

    def _arriving(self, move: MoveId) -> Rope[S]:
        rope = self.moves.get(move) or self._moves[move]
        assert rope is not None
        return rope

    def _offer(self, start: int, end: int) -> S:
        assert self._offered is not None, "slots are adopted that nobody offered"
        slots = self._offered(start, end)
        if len(slots) != end - start:
            # Short by one shifts every later position onto the KV of its neighbour.
            raise StoreError(
                f"{len(slots)} slots are offered for [{start}, {end}): one for each unit"
            )
        return slots

    def _joined(self, upper: Rope[S], lower: Rope[S]) -> Rope[S]:
        pieces = upper.pieces + lower.pieces
        if len(pieces) > _MAX_PIECES:
            pieces = (self._concat(list(pieces)),)
        return Rope(upper.start, pieces, upper.tier)
