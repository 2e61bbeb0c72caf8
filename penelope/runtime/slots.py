"""Which slots hold the KV of which node: the shell's half of the tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from penelope.policy import Adopt, Effect, Free, Merge, NodeId, Remove, Reset, Split, Surplus


class Slots(Protocol):
    """A sequence of slot indices: a list, an array or a tensor."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: slice, /) -> Self: ...


S = TypeVar("S", bound=Slots)


class _Rope(NamedTuple, Generic[S]):
    """The slots of one node, in pieces, so that splits and merges copy no slots."""

    start: int
    pieces: tuple[S, ...]

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

    nodes: dict[NodeId, _Rope[S] | None]
    freed: tuple[S, ...]
    """Slots that the tree gives up."""
    surplus: tuple[tuple[int, S], ...]
    """(start, the tree's own slots) of the spans that the tree had already."""
    cleared: bool


_MAX_PIECES = 32


class SlotTable(Generic[S]):
    """The slots of every resident node, kept by following the core's effects.

    `concat` joins a non-empty list of slot sequences into one.
    """

    def __init__(self, concat: Callable[[list[S]], S]) -> None:
        self._concat = concat
        self._nodes: dict[NodeId, _Rope[S]] = {}

    def slots(self, node: NodeId, start: int, end: int) -> tuple[S, ...]:
        """The slots of positions [start, end) of a resident node, in pieces."""
        return self._nodes[node].cut(start, end)

    def nodes(self) -> Iterable[NodeId]:
        """The nodes that hold slots."""
        return self._nodes.keys()

    def stage(
        self, effects: Iterable[Effect], offered: Callable[[int, int], S] | None = None
    ) -> Staged[S]:
        """Work out what the effects do.  `offered(start, end)` gives the caller's slots."""
        staged: dict[NodeId, _Rope[S] | None] = {}
        freed: list[S] = []
        surplus: list[tuple[int, S]] = []
        cleared = False

        def take(node: NodeId) -> _Rope[S] | None:
            return staged[node] if node in staged else self._nodes.get(node)

        for effect in effects:
            match effect:
                case Split(node, upper, at):
                    rope = take(node)
                    if rope is not None:
                        staged[upper] = _Rope(rope.start, rope.cut(rope.start, at))
                        end = rope.start + sum(map(len, rope.pieces))
                        staged[node] = _Rope(at, rope.cut(at, end))
                case Merge(upper, node):
                    rope, below = take(upper), take(node)
                    staged[upper] = None
                    if rope is not None and below is not None:
                        staged[node] = self._joined(rope, below)
                case Adopt(node, start, end):
                    assert offered is not None, "slots are adopted that nobody offered"
                    staged[node] = _Rope(start, (offered(start, end),))
                case Surplus(node, start, end):
                    rope = take(node)
                    assert rope is not None, "a resident node without slots"
                    surplus.append((start, self._concat(list(rope.cut(start, end)))))
                case Free(node, start, end):
                    rope = take(node)
                    assert rope is not None, "a resident node without slots"
                    freed.extend(rope.pieces)
                    staged[node] = None
                case Remove():
                    pass  # it lost its slots before
                case Reset():
                    cleared = True
                    freed.extend(piece for rope in self._nodes.values() for piece in rope.pieces)
        return Staged(staged, tuple(freed), tuple(surplus), cleared)

    def commit(self, staged: Staged[S]) -> None:
        """Make it so.  Cannot fail."""
        if staged.cleared:
            self._nodes.clear()
        for node, rope in staged.nodes.items():
            if rope is None:
                self._nodes.pop(node, None)
            else:
                self._nodes[node] = rope

    def _joined(self, upper: _Rope[S], lower: _Rope[S]) -> _Rope[S]:
        pieces = upper.pieces + lower.pieces
        if len(pieces) > _MAX_PIECES:
            pieces = (self._concat(list(pieces)),)
        return _Rope(upper.start, pieces)
