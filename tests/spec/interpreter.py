"""Real steps of the core, taken apart into the moves that the theorems are about.

The effects of a step say which moves it made.  Each is carried out here on a picture of the state,
by code that knows nothing of the formulas; the last picture must be that of the real state after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penelope.policy import (
    Adopt,
    Copy,
    Effect,
    Free,
    Merge,
    NodeId,
    Receipt,
    Remove,
    Residency,
    Split,
    State,
)
from penelope_spec.abstraction import Drawn, Picture, cells_of, move_name, picture
from penelope_spec.eviction_moves import DROP, MERGE, REMOVE, SPLIT
from penelope_spec.logic import Element
from penelope_spec.relations import Move
from penelope_spec.tier_moves import ABANDON, ARRIVE, DEPART, HOIST, RESET
from penelope_spec.use_moves import EXTEND, FILL, GROW, LOCK, PLANT, STAMP, UNDERTAKE, UNLOCK
from tests.spec.worlds import Done


class Made(NamedTuple):
    """One move with the pictures before and after it."""

    move: Move
    constants: dict[str, Element]
    before: Picture
    after: Picture


class Interpreter:
    def __init__(self, done: Done) -> None:
        self.done = done
        self.now = picture(done.before)
        self.tick = done.before.tick
        self.made: list[Made] = []
        self.grown = False

    def interpret(self) -> list[Made]:
        """All moves of the step, in order."""
        transition, effects = self.done.transition, self.done.facts.get("effects", ())
        for root in self.done.after.roots.values():
            if root not in self.now.nodes:
                self._plant(root)
        if transition == "release":
            self._unlock()
            self._follow(effects)
        elif transition == "reset":
            self._do(RESET, lambda now: now.clear())
        elif transition == "begin_move":
            self._follow(effects)
        elif transition in ("end_move", "fail_move"):
            self._end_of_move(transition == "end_move")
            self._follow(effects)
        elif transition in ("touch", "acquire", "admit"):
            rest = self._reach(effects)
            self._follow(rest)
        elif transition in ("insert", "checkpoint"):
            first = next((i for i, fx in enumerate(effects) if isinstance(fx, Merge)), len(effects))
            self._follow(effects[:first])
            self._end_of_offer()
            self._follow(effects[first:])
        else:
            self._follow(effects)
        return self.made

    def _do(self, move: Move, change: Callable[[Picture], None], **constants: Element) -> None:
        before, self.now = self.now, self.now.copy()
        change(self.now)
        for node in self.now.nodes:
            self.now.nodes[node].children = len(self.now.below(node))
        self.made.append(Made(move, constants, before, self.now))

    # What the transition does itself

    def _plant(self, root: NodeId) -> None:
        def change(now: Picture) -> None:
            now.nodes[root] = Drawn(None, (), device=False, stamp=0)

        self._do(PLANT, change, n=root)

    def _reach(self, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        """Cut where the match ends, use and lock it; the effects that remain."""
        facts, before = self.done.facts, self.done.before
        matched = facts["plan"].match if self.done.transition == "admit" else facts["match"]
        end, rest = matched.node, effects
        if end is not None and matched.end < before.nodes[end].end:
            cut = effects[0]
            assert isinstance(cut, Split)
            self._follow((cut,))
            end, rest = cut.upper, effects[1:]
        if end is not None and self.done.transition != "acquire":
            self._stamp(end)
        if self.done.transition == "touch":
            return rest
        receipt = (set(self.done.after.leases) - set(before.leases)).pop()
        self._lock(receipt, self.done.after.roots[matched.namespace] if end is None else end)
        if self.done.transition == "admit":
            for span in matched.spans:
                if span.residency is Residency.HOLE and not span.arriving:
                    self._undertake(receipt, span.node)
        return rest

    def _stamp(self, node: NodeId) -> None:
        self.tick += 1
        tick = self.tick

        def change(now: Picture) -> None:
            now.nodes[node].stamp = tick

        self._do(STAMP, change, n=node)

        self._hoist(node)

    def _hoist(self, node: NodeId) -> None:
        """What leads to no device KV any more passes its stamp up, where there is a host tier."""
        at = node
        while self.done.before.config.host_capacity and not self.now.leads_to_device(at):
            above = self.now.nodes[at].parent
            if above is None or self.now.nodes[above].is_root:
                return
            if self.now.nodes[above].stamp < self.now.nodes[at].stamp:
                self._take_stamp(above, at)
            at = above

    def _take_stamp(self, taker: NodeId, giver: NodeId) -> None:
        def change(now: Picture) -> None:
            now.nodes[taker].stamp = now.nodes[giver].stamp

        self._do(HOIST, change, p=taker, n=giver)

    def _depart(self, effect: Copy) -> None:
        name = move_name(effect.move)

        def change(now: Picture) -> None:
            now.leases[name] = effect.node
            now.nodes[effect.node].mover = name
            for at in now.path(effect.node):
                now.nodes[at].covers.add(name)

        self._do(DEPART, change, m=name, n=effect.node)

    def _end_of_move(self, arrives: bool) -> None:
        number = self.done.facts["move"]
        name, end = move_name(number), self.done.before.moves[number].node
        carried = [n for n in self.now.path(end)[::-1] if self.now.nodes[n].mover == name]

        def change(now: Picture) -> None:
            del now.leases[name]
            for at in now.path(end):
                now.nodes[at].covers.discard(name)
            for at in carried:
                drawn = now.nodes[at]
                drawn.mover = None
                if arrives:
                    drawn.device, drawn.host = drawn.host, drawn.device

        self._do(ARRIVE if arrives else ABANDON, change, m=name, n=end)
        for node in carried if arrives else ():
            self._hoist(node)

    def _lock(self, receipt: Element, node: NodeId) -> None:
        def change(now: Picture) -> None:
            now.leases[receipt] = node
            for at in now.path(node):
                now.nodes[at].covers.add(receipt)

        self._do(LOCK, change, r=receipt, n=node)

    def _undertake(self, receipt: Element, node: NodeId) -> None:
        def change(now: Picture) -> None:
            now.nodes[node].filler = receipt

        self._do(UNDERTAKE, change, r=receipt, n=node)

    def _unlock(self) -> None:
        receipt = self._receipt()
        node = self.done.before.leases[receipt.id].node

        def change(now: Picture) -> None:
            del now.leases[receipt.id]
            for at in now.path(node):
                now.nodes[at].covers.discard(receipt.id)
                if now.nodes[at].filler == receipt.id:
                    now.nodes[at].filler = None

        self._do(UNLOCK, change, r=receipt.id, n=node)
        self._remove_idle_root(node)

    def _receipt(self) -> Receipt:
        return self.done.facts["receipt"]

    def _end_of_offer(self) -> None:
        """The use that an offer of KV records, and the lock that follows it."""
        end = self._node_at(self.done.reach) if self.done.reach else None
        if end is not None and not self.grown:
            self._stamp(end)
        if self.done.transition == "checkpoint":
            receipt = self._receipt().id
            held = self.done.before.leases[receipt].node
            node = held if end is None else end

            def change(now: Picture) -> None:
                now.leases[receipt] = node
                for at in now.path(node):
                    now.nodes[at].covers.add(receipt)

            self._do(EXTEND, change, r=receipt, h=held, n=node)

    def _node_at(self, end: int) -> NodeId:
        """The node of the offered history that ends there."""
        width = self.done.before.config.unit_bytes
        sought = (self.done.namespace, self.done.key[: end * width])
        (found,) = [n for n, drawn in self.now.nodes.items() if sought in drawn.cells[-1:]]
        return found

    # What the effects say

    def _follow(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, Split):
                self._split(effect)
            elif isinstance(effect, Free):
                if not self._gives_way(effect, effects):
                    self._drop(effect.node)
            elif isinstance(effect, Copy):
                self._depart(effect)
            elif isinstance(effect, Remove):
                self._remove(effect.node)
            elif isinstance(effect, Merge):
                self._merge(effect)
            elif isinstance(effect, Adopt):
                self._adopt(effect)

    def _split(self, effect: Split) -> None:
        width = self.done.before.config.unit_bytes

        def change(now: Picture) -> None:
            lower = now.nodes[effect.node]
            head = tuple(cell for cell in lower.cells if len(cell[1]) <= effect.at * width)
            now.nodes[effect.upper] = Drawn(
                lower.parent,
                head,
                lower.device,
                lower.stamp,
                lower.host,
                set(lower.covers),
                lower.filler,
                lower.mover,
            )
            lower.parent, lower.cells = effect.upper, lower.cells[len(head) :]

        self._do(SPLIT, change, n=effect.node, u=effect.upper)

    def _drop(self, node: NodeId) -> None:
        leaf = node
        while below := self.now.below(leaf):
            leaf = below[0]

        was_on_device = self.now.nodes[node].device

        def change(now: Picture) -> None:
            now.nodes[node].device = now.nodes[node].host = False

        self._do(DROP, change, n=node, l=leaf)
        if was_on_device:
            self._hoist(node)

    def _gives_way(self, effect: Free, effects: tuple[Effect, ...]) -> bool:
        """A host copy that is freed for the device copy that is adopted next: a `fill`."""
        following = effects[effects.index(effect) + 1 :][:1]
        return any(isinstance(fx, Adopt) and fx.node == effect.node for fx in following)

    def _remove(self, node: NodeId) -> None:
        above = self.now.nodes[node].parent
        assert above is not None

        def change(now: Picture) -> None:
            gone = now.nodes.pop(node)
            if not now.nodes[above].is_root:
                now.nodes[above].stamp = max(now.nodes[above].stamp, gone.stamp)

        self._do(REMOVE, change, n=node, p=above)
        self._remove_idle_root(above)

    def _remove_idle_root(self, node: NodeId) -> None:
        """The last to go is the root, and no effect says so: a shell never knew it."""
        root = self.now.nodes[node]
        if root.is_root and not self.now.below(node) and not root.covers:
            self._do(REMOVE, lambda now: now.forget(node), n=node, p=node)

    def _merge(self, effect: Merge) -> None:
        def change(now: Picture) -> None:
            upper = now.nodes.pop(effect.upper)
            lower = now.nodes[effect.node]
            lower.parent = upper.parent
            lower.cells = upper.cells + lower.cells
            lower.stamp = max(upper.stamp, lower.stamp)

        self._do(MERGE, change, n=effect.node, u=effect.upper)

    def _adopt(self, effect: Adopt) -> None:
        if effect.node in self.now.nodes:

            def fill(now: Picture) -> None:
                now.nodes[effect.node].device = True
                now.nodes[effect.node].host = False
                now.nodes[effect.node].filler = None

            self._do(FILL, fill, n=effect.node)
            return
        after = self.done.after
        leaf = after.nodes[effect.node]
        cells = cells_of(after, leaf, effect.start, effect.end)
        parent = self._node_at(effect.start) if effect.start else after.roots[leaf.namespace]
        self.tick += 1
        tick, self.grown = self.tick, True

        def grow(now: Picture) -> None:
            now.nodes[effect.node] = Drawn(parent, cells, device=True, stamp=tick)

        self._do(GROW, grow, p=parent, n=effect.node)


def differences(drawn: Picture, state: State) -> list[str]:
    """Where the last picture is not the real state."""
    real = picture(state)
    wrong = [
        f"node {node}: {drawn.nodes.get(node)} by its moves, {real.nodes.get(node)} in the state"
        for node in sorted(drawn.nodes.keys() | real.nodes.keys())
        if drawn.nodes.get(node) != real.nodes.get(node)
    ]
    if drawn.leases != real.leases:
        wrong.append(f"leases: {drawn.leases} by its moves, {real.leases} in the state")
    return wrong
