"""The tree as a shell sees it: what the effects alone make of the state before.

A step's effects are replayed here one by one, each checked at the moment it happens.  That is what
a comparison of the states before and after cannot do: an eviction that takes two histories may
rightly drop a span that was shared when it began.
"""

from __future__ import annotations

from typing import NamedTuple

from penelope.policy import (
    Adopt,
    Effect,
    Free,
    Merge,
    NodeId,
    Remove,
    Residency,
    Split,
    State,
    Surplus,
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


class Shadow:
    """Spans and residency by node id, following effects."""

    def __init__(self, state: State) -> None:
        self.spans: dict[NodeId, tuple[int, int]] = {}
        self.residency: dict[NodeId, Residency] = {}
        self.parent: dict[NodeId, NodeId | None] = {}
        self.children: dict[NodeId, set[NodeId]] = {}
        self.origin: dict[NodeId, NodeId] = {}
        self.freed: list[Freed] = []
        self.wrong: list[str] = []
        for node in preorder(state):
            self.parent[node.id] = node.parent
            self.children[node.id] = set()
            self.origin[node.id] = node.id
            if node.parent is not None:
                self.spans[node.id] = (node.start, node.end)
                self.residency[node.id] = node.residency
                self.children[node.parent].add(node.id)

    def replay(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, Adopt):
                self._adopt(effect)
            elif isinstance(effect, Split | Merge | Free | Remove | Surplus):
                self._change(effect)
            else:
                self.spans.clear()
                self.residency.clear()

    def _change(self, effect: Split | Merge | Free | Remove | Surplus) -> None:
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
        self.children[effect.upper] = set()
        self._hang(effect.upper, above)
        self._hang(effect.node, effect.upper)

    def _merge(self, effect: Merge) -> None:
        start, middle = self.spans[effect.upper]
        also_middle, end = self.spans[effect.node]
        alike = self.residency[effect.upper] is self.residency[effect.node]
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
        if self.residency[effect.node] is not Residency.DEVICE:
            self.wrong.append(f"{effect}, but that node has no KV on the device")
        self.residency[effect.node] = Residency.HOLE
        self.freed.append(
            Freed(
                effect.node,
                self.origin[effect.node],
                effect.start,
                effect.end,
                self._forks(effect.node),
            )
        )

    def _remove(self, effect: Remove) -> None:
        if self.residency[effect.node] is not Residency.HOLE or self.children[effect.node]:
            self.wrong.append(f"{effect}, but that node still holds KV or children")
        self._unhang(effect.node)

    def _adopt(self, effect: Adopt) -> None:
        """A hole that is filled, or a new leaf; the effect does not say below which node."""
        if effect.node not in self.spans:
            self.parent[effect.node] = None
            self.children[effect.node] = set()
            self.origin[effect.node] = effect.node
            self.spans[effect.node] = (effect.start, effect.end)
        elif self.residency[effect.node] is not Residency.HOLE:
            self.wrong.append(f"{effect}, but that node has KV already")
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
        wrong.extend(
            f"the effects leave node {node} {span}, it is gone" for node, span in spans.items()
        )
        return wrong
