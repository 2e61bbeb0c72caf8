"""A cache to write examples with: histories are strings, and what is cached is a picture.

    s = Scene(block=2)
    s.insert("abcdef")
    s.evict(1)
    assert s.show("abcdefg") == "__GGGG."

One letter a unit: G is KV on the device, C on the host (> and < while it leaves either), _ a hole,
~ a hole that is being refilled, . is not in the tree.  After every operation all the state and step
invariants are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from penelope.policy import (
    DEFAULT_NAMESPACE,
    Acquired,
    Admitted,
    Begun,
    Config,
    Evicted,
    Free,
    Inserted,
    Key,
    Match,
    MoveId,
    Namespace,
    Node,
    Plan,
    Receipt,
    Refilled,
    Refused,
    Residency,
    State,
    Step,
    Transfer,
    acquire,
    admit,
    begin_move,
    checkpoint,
    empty,
    end_move,
    evict,
    fail_move,
    insert,
    match,
    named_policy,
    next_transfer,
    pack,
    plan,
    refill,
    release,
    reserve,
    reset,
    settle_promise,
    touch,
)
from penelope.runtime.exchange import exchange
from penelope_spec import check_refused, check_state, check_step

Done = TypeVar("Done", Step, Acquired, Admitted, Begun, Evicted, Inserted, Refilled)


def key(history: str) -> Key:
    return pack(map(ord, history))


class Scene:
    """One cache, changed by every call."""

    def __init__(
        self,
        name: str = "penelope",
        *,
        capacity: int = 100,
        page: int = 1,
        block: int = 2,
        sticky: bool = False,
        keeps: int = 0,
        swap: int = 0,
    ) -> None:
        """With a swap buffer there is a host, which keeps so many units beside it."""
        position, granularity = named_policy(name)
        host = keeps + swap
        self.state = empty(
            Config(
                capacity,
                page,
                block,
                position,
                granularity,
                sticky,
                host_capacity=host,
                swap_buffer=swap,
            )
        )

    def insert(
        self, history: str, space: Namespace = DEFAULT_NAMESPACE, *, start: int = 0
    ) -> Inserted:
        return self._did("insert", lambda s: insert(s, key(history), space, start=start))

    def match(
        self, history: str, space: Namespace = DEFAULT_NAMESPACE, *, at_most: int | None = None
    ) -> Match:
        return match(self.state, key(history), space, at_most=at_most)

    def touch(self, history: str) -> Step:
        found = self.match(history, at_most=len(history))
        return self._did("touch", lambda s: touch(s, found))

    def lock(self, history: str, space: Namespace = DEFAULT_NAMESPACE) -> Receipt:
        """Lock all that is cached of the history."""
        found = self.match(history, space, at_most=len(history))
        return self._did("acquire", lambda s: acquire(s, found)).receipt

    def release(self, receipt: Receipt) -> Step:
        return self._did("release", lambda s: release(s, receipt))

    def plan(self, history: str, space: Namespace = DEFAULT_NAMESPACE, *, extra: int = 0) -> Plan:
        return plan(self.state, key(history), space, extra=extra)

    def admit(self, planned: Plan) -> Admitted:
        return self._did("admit", lambda s: admit(s, planned), plan=planned)

    def begin(self, history: str, *, extra: int = 0) -> Receipt:
        """Plan and admit a request."""
        return self.admit(self.plan(history, extra=extra)).receipt

    def reserve(self, receipt: Receipt, units: int) -> Step:
        return self._did("reserve", lambda s: reserve(s, receipt, units), units=units)

    def refill(self, receipt: Receipt, start: int, end: int) -> Refilled:
        return self._did("refill", lambda s: refill(s, receipt, start, end))

    def checkpoint(self, receipt: Receipt, history: str) -> Inserted:
        return self._did("checkpoint", lambda s: checkpoint(s, receipt, key(history)))

    # Moves between the tiers

    def depart(self, transfer: Transfer) -> MoveId:
        """Put a transfer in flight."""
        return self._did("begin_move", lambda s: begin_move(s, transfer), transfer=transfer).move

    def copy(self, move: MoveId, transfer: Transfer) -> None:
        """Pictures have no memory."""

    def arrive(self, move: MoveId) -> Step:
        return self._did("end_move", lambda s: end_move(s, move), move=move)

    def give_up(self, move: MoveId) -> Step:
        return self._did("fail_move", lambda s: fail_move(s, move), move=move)

    def transfer(self, history: str, start: int, target: Residency) -> Transfer:
        """Of the node of this history that begins there."""
        found = self.match(history, at_most=len(history)).spans
        (span,) = [span for span in found if span.start == start]
        return Transfer(span.node, span.start, span.end, target)

    def move(self, history: str, start: int, target: Residency) -> None:
        self.arrive(self.depart(self.transfer(history, start, target)))

    def next(self, receipt: Receipt) -> Transfer | None:
        return next_transfer(self.state, receipt)

    def carry_out(self, receipt: Receipt) -> list[Transfer]:
        """All moves that a promise needs, one after another; then it is settled."""
        done = [carried.transfer for carried in exchange(self, receipt)]
        self._did("settle_promise", lambda s: settle_promise(s, receipt), receipt=receipt)
        return done

    def serve(self, history: str) -> Receipt:
        """One request, from its plan to its output; it still holds its path."""
        planned = self.plan(history)
        done = self.admit(planned)
        if done.pending:
            self.carry_out(done.receipt)
        for start, stop in planned.holes:
            self.refill(done.receipt, start, stop)
        self.checkpoint(done.receipt, history)
        return done.receipt

    def evict(self, need: int) -> Evicted:
        return self._did("evict", lambda s: evict(s, need), need=need)

    def reset(self) -> Step:
        return self._did("reset", reset)

    def show(self, history: str, space: Namespace = DEFAULT_NAMESPACE) -> str:
        """What the tree has of the history, one letter a unit, holes at its end too."""
        picture = ""
        root = self.state.roots.get(space)
        node = None if root is None else self.state.nodes[root]
        units, width = key(history), self.state.config.unit_bytes
        page = self.state.config.page_size * width
        while node is not None:
            child = node.children.get(units[node.end * width : node.end * width + page])
            node = None if child is None else self.state.nodes[child]
            if node is None:
                break
            letter = _letter(node)
            for at in range(node.start * width, node.end * width, page):
                if units[at : at + page] != node.key[at : at + page]:
                    return picture.ljust(len(history), ".")
                picture += letter * self.state.config.page_size
        return picture.ljust(len(history), ".")

    def ends(self) -> list[tuple[int, int]]:
        """The spans of all nodes, in position order."""
        return sorted((n.start, n.end) for n in self.state.nodes.values() if not n.is_root)

    def _did(self, name: str, step: Callable[[State], Done], **facts: Any) -> Done:
        before = self.state
        try:
            done = step(before)
        except Refused as refusal:
            self._rightly_refused(name, refusal, facts)
            raise
        if isinstance(done, Evicted | Admitted):
            facts["freed"] = done.freed
        assert check_state(done.state) == []
        assert check_step(before, done.state, name, effects=done.effects, **facts) == []
        self.state = done.state
        return done

    def _rightly_refused(self, name: str, refusal: Refused, facts: dict[str, Any]) -> None:
        assert check_refused(self.state, name, refusal, **facts) == []
        assert check_state(self.state) == []


def _letter(node: Node) -> str:
    if node.move is not None:
        return ">" if node.residency is Residency.DEVICE else "<"
    if node.filler is not None:
        return "~"
    return {Residency.DEVICE: "G", Residency.HOST: "C", Residency.HOLE: "_"}[node.residency]


def freed(done: Evicted | Admitted | Step) -> list[tuple[int, int]]:
    """The spans whose KV went, in order."""
    return [(e.start, e.end) for e in done.effects if isinstance(e, Free)]
