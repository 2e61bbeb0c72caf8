"""The tree as a shell sees it: what the effects alone make of the state before.

A step's effects are replayed here one by one, each checked at the moment it happens.  That is what
a comparison of the states before and after cannot do: an eviction that takes two histories may
rightly drop a span that was shared when it began.
"""

from __future__ import annotations

from typing import NamedTuple

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
    Residency,
    Split,
    State,
    Surplus,
    Unmoved,
)
from penelope_spec.structure import band, preorder


class Freed(NamedTuple):
    """One `Free`, with what was true at that moment."""

    node: NodeId
    origin: NodeId
    """The node of the state before that the span was part of."""
    start: int
    end: int
    forks: tuple[NodeId, ...]
    """Nodes at or below it with more than one child."""
    tier: Residency


class Departed(NamedTuple):
    """One `Copy`: a span that began to move."""

    origin: NodeId
    start: int
    end: int
    target: Residency


_OnNode = Split | Merge | Free | Remove | Surplus | Copy | Moved


class Shadow:
    """Spans and residency by node id, following effects."""

    def __init__(self, state: State) -> None:
        self.spans: dict[NodeId, tuple[int, int]] = {}
        self.residency: dict[NodeId, Residency] = {}
        self.parent: dict[NodeId, NodeId | None] = {}
        self.children: dict[NodeId, set[NodeId]] = {}
        self.origin: dict[NodeId, NodeId] = {}
        self.freed: list[Freed] = []
        """What is lost; a host copy that gives way to an adopted one is not."""
        self.departed: list[Departed] = []
        self.moving: dict[NodeId, MoveId] = {}
        self.ended: dict[MoveId, int] = {}
        """Units that arrived, by move."""
        self.moves = {number: move.end - move.start for number, move in state.moves.items()}
        self.wrong: list[str] = []
        for node in preorder(state):
            self.parent[node.id] = node.parent
            self.children[node.id] = set()
            self.origin[node.id] = node.id
            if node.parent is not None:
                self.spans[node.id] = (node.start, node.end)
                self.residency[node.id] = node.residency
                self.children[node.parent].add(node.id)
            if node.move is not None:
                self.moving[node.id] = node.move

    def replay(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, Adopt):
                self._adopt(effect)
            elif isinstance(effect, Unmoved):
                self._unmoved(effect)
            elif isinstance(effect, _OnNode):
                self._change(effect)
            else:
                self.spans.clear()
                self.residency.clear()
        for move, span in self.moves.items():
            if move in self.ended and self.ended[move] != span:
                self.wrong.append(f"of move {move} {self.ended[move]} units of {span} arrived")

    def _change(self, effect: _OnNode) -> None:
        subjects = (effect.upper, effect.node) if isinstance(effect, Merge) else (effect.node,)
        if any(subject not in self.spans for subject in subjects):
            self.wrong.append(f"{effect} speaks of a node that does not exist")
        elif isinstance(effect, Split):
            self._split(effect)
        elif isinstance(effect, Merge):
            self._merge(effect)
        elif isinstance(effect, Free):
            self._free(effect)
        elif isinstance(effect, Remove):
            self._remove(effect)
        elif isinstance(effect, Copy):
            self._copy(effect)
        elif isinstance(effect, Moved):
            self._moved(effect)
        else:
            start, end = self.spans[effect.node]
            if not start <= effect.start < effect.end <= end:
                self.wrong.append(f"{effect} is not within [{start}, {end})")
            if self.residency[effect.node] is not Residency.DEVICE:
                self.wrong.append(f"{effect}, but that node has no KV on the device")

    def _split(self, effect: Split) -> None:
        start, end = self.spans[effect.node]
        if not start < effect.at < end or effect.upper in self.spans:
            self.wrong.append(f"{effect} does not cut [{start}, {end}) into two new spans")
            return
        above = self.parent[effect.node]
        self.spans[effect.upper] = (start, effect.at)
        self.spans[effect.node] = (effect.at, end)
        self.residency[effect.upper] = self.residency[effect.node]
        self.origin[effect.upper] = self.origin[effect.node]
        if effect.node in self.moving:
            self.moving[effect.upper] = self.moving[effect.node]
        self.children[effect.upper] = set()
        self._hang(effect.upper, above)
        self._hang(effect.node, effect.upper)

    def _merge(self, effect: Merge) -> None:
        start, middle = self.spans[effect.upper]
        also_middle, end = self.spans[effect.node]
        alike = self.residency[effect.upper] is self.residency[effect.node]
        alike = alike and self.moving.get(effect.upper) == self.moving.get(effect.node)
        # A leaf that the step itself adopted has no known parent here.
        below = {effect.node} if self.parent[effect.node] is not None else set()
        if middle != also_middle or not alike or self.children[effect.upper] != below:
            self.wrong.append(f"{effect} joins what is not alike or not alone")
        self.spans[effect.node] = (start, end)
        above = self.parent[effect.upper]
        self._unhang(effect.upper)
        self._hang(effect.node, above)

    def _free(self, effect: Free) -> None:
        if self.spans[effect.node] != (effect.start, effect.end):
            self.wrong.append(f"{effect}, but the node is {self.spans[effect.node]}")
        if self.residency[effect.node] is not effect.tier or effect.node in self.moving:
            self.wrong.append(f"{effect}, but that node has no idle KV on the {effect.tier.value}")
        self.residency[effect.node] = Residency.HOLE
        self.freed.append(
            Freed(
                effect.node,
                self.origin[effect.node],
                effect.start,
                effect.end,
                self._forks(effect.node),
                effect.tier,
            )
        )

    def _remove(self, effect: Remove) -> None:
        if self.residency[effect.node] is not Residency.HOLE or self.children[effect.node]:
            self.wrong.append(f"{effect}, but that node still holds KV or children")
        self._unhang(effect.node)

    def _copy(self, effect: Copy) -> None:
        """Both tiers have slots for it from now on; its KV is where it was."""
        if self.spans[effect.node] != (effect.start, effect.end):
            self.wrong.append(f"{effect}, but the node is {self.spans[effect.node]}")
        elif self.residency[effect.node] in (Residency.HOLE, effect.target):
            self.wrong.append(f"{effect}, but that node has no KV to bring there")
        elif effect.node in self.moving:
            self.wrong.append(f"{effect}, but that node is in flight already")
        self.moving[effect.node] = effect.move
        origin = self.origin[effect.node]
        self.departed.append(Departed(origin, effect.start, effect.end, effect.target))

    def _moved(self, effect: Moved) -> None:
        if self.spans[effect.node] != (effect.start, effect.end):
            self.wrong.append(f"{effect}, but the node is {self.spans[effect.node]}")
        if self.moving.pop(effect.node, None) != effect.move:
            self.wrong.append(f"{effect}, but that node was not on this move")
        if self.residency[effect.node] in (Residency.HOLE, effect.target):
            self.wrong.append(f"{effect}, but that node had no KV to bring there")
        self.residency[effect.node] = effect.target
        self.ended[effect.move] = self.ended.get(effect.move, 0) + effect.end - effect.start

    def _unmoved(self, effect: Unmoved) -> None:
        nodes = [node for node, move in self.moving.items() if move == effect.move]
        spans = sorted(self.spans[node] for node in nodes if node in self.spans)
        if not spans or (spans[0][0], spans[-1][1]) != (effect.start, effect.end):
            self.wrong.append(f"{effect}, but what is on that move is {spans}")
        for node in nodes:
            del self.moving[node]

    def _adopt(self, effect: Adopt) -> None:
        """A hole that is filled, or a new leaf; the effect does not say below which node."""
        if effect.node not in self.spans:
            self.parent[effect.node] = None
            self.children[effect.node] = set()
            self.origin[effect.node] = effect.node
            self.spans[effect.node] = (effect.start, effect.end)
        elif self.residency[effect.node] is not Residency.HOLE:
            self.wrong.append(f"{effect}, but that node has KV already")
        elif self.freed and self.freed[-1][0] == effect.node:
            if self.freed.pop().tier is Residency.DEVICE:
                self.wrong.append(f"{effect}, but the KV that gave way was no host copy")
        elif self.spans[effect.node] != (effect.start, effect.end):
            self.wrong.append(f"{effect}, but the node is {self.spans[effect.node]}")
        self.residency[effect.node] = Residency.DEVICE

    def _forks(self, node: NodeId) -> tuple[NodeId, ...]:
        pending, forks = [node], []
        while pending:
            at = pending.pop()
            if len(self.children[at]) > 1:
                forks.append(at)
            pending.extend(self.children[at])
        return tuple(sorted(forks))

    def _hang(self, node: NodeId, parent: NodeId | None) -> None:
        old = self.parent.get(node)
        if old is not None:
            self.children[old].discard(node)
        self.parent[node] = parent
        if parent is not None:
            self.children[parent].add(node)

    def _unhang(self, node: NodeId) -> None:
        self._hang(node, None)
        del self.spans[node]
        del self.residency[node]
        self.moving.pop(node, None)

    def differences(self, after: State) -> list[str]:
        """Where the state after is not what the effects say."""
        wrong = list(self.wrong)
        spans = dict(self.spans)
        for node in after.nodes.values():
            if node.is_root:
                continue
            if spans.pop(node.id, None) != (node.start, node.end):
                wrong.append(f"the effects give node {node.id} {self.spans.get(node.id)}, not it")
            elif self.residency[node.id] is not node.residency:
                wrong.append(
                    f"the effects leave {band(node)} as {self.residency[node.id].value}, "
                    f"the state says {node.residency.value}"
                )
            elif self.moving.get(node.id) != node.move:
                wrong.append(
                    f"the effects leave {band(node)} on move {self.moving.get(node.id)}, the "
                    f"state says {node.move}"
                )
        wrong.extend(
            f"the effects leave node {node} {span}, it is gone" for node, span in spans.items()
        )
        return wrong
