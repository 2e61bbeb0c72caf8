"""Two tiers under test: a recount of a state, and a driver that uses one at random.

The driver takes any source of randomness: Hypothesis', which shrinks, or a seeded one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from random import Random
from typing import NamedTuple

from penelope.policy import (
    POLICIES,
    Adopt,
    Config,
    Effect,
    Free,
    Granularity,
    InsufficientSpace,
    MoveId,
    Node,
    NodeId,
    OverCapacity,
    Plan,
    Position,
    Receipt,
    Refused,
    RequestTooLarge,
    Residency,
    Split,
    State,
    Transfer,
    UnknownMove,
    admit,
    begin_move,
    checkpoint,
    empty,
    end_move,
    evict,
    fail_move,
    forgo_promise,
    insert,
    match,
    named_policy,
    next_transfer,
    pack,
    plan,
    refill,
    release,
    reserve,
    settle_promise,
    touch,
)

Page = tuple[int, bytes]
"""A unit of some history: its position and everything up to it."""


def resident(state: State) -> dict[Page, Residency]:
    """Every unit with KV, and where it is."""
    found: dict[Page, Residency] = {}
    for node in state.nodes.values():
        if node.residency is not Residency.HOLE:
            for position in range(node.start, node.end):
                found[position, whole(state, node, position)] = node.residency
    return found


def whole(state: State, node: Node, position: int) -> bytes:
    """What identifies a unit: the history to the end of its page."""
    page = state.config.page_size
    return bytes(node.key[: (position // page + 1) * page * state.config.unit_bytes])


def dropped(before: State, effects: Sequence[Effect]) -> list[tuple[int, int]]:
    """The units of which the last copy goes, in order, as (position, hash of the history).

    Where a host copy makes way for one on the device, nothing goes.
    """
    tail = before.config.position is Position.TAIL
    nodes = {n.id: n for n in before.nodes.values()}
    pages: list[tuple[int, int]] = []
    for effect, then in zip_longest(effects, effects[1:]):
        if isinstance(then, Adopt) and isinstance(effect, Free) and then.node == effect.node:
            continue
        match effect:
            case Split(node, upper, _):
                nodes[upper] = nodes[node]  # its label is a view of the same key
            case Free(node, start, stop):
                gone = range(start, stop)
                # What is evicted from the end goes from the end on, however it is cut.
                pages += [
                    (position, hash(whole(before, nodes[node], position)))
                    for position in (gone[::-1] if tail else gone)
                ]
    return pages


def audit(state: State) -> None:
    """Counters, orders, locks and capacities equal a recount."""
    nodes = [n for n in state.nodes.values() if n.parent is not None]
    by = {r: [n for n in nodes if n.residency is r] for r in Residency}
    totals = state.totals
    assert totals.device == sum(n.length for n in by[Residency.DEVICE])
    assert totals.host == sum(n.length for n in by[Residency.HOST])
    assert totals.hole == sum(n.length for n in by[Residency.HOLE])
    assert totals.locked == sum(n.length for n in by[Residency.DEVICE] if n.locks)
    assert totals.locked_host == sum(n.length for n in by[Residency.HOST] if n.locks)
    leases, moves = list(state.leases.values()), list(state.moves.values())
    for name in ("reserved", "due", "promote"):
        assert getattr(totals, name) == sum(getattr(lease, name) for lease in leases), name
    assert totals.inbound == sum(m.length for m in moves if m.target is Residency.DEVICE)
    assert totals.outbound == sum(m.length for m in moves if m.target is Residency.HOST)
    assert state.free >= 0
    assert state.host_used <= state.config.host_capacity
    _audit_locks(state)
    below = {n.id: sum(_has_device(state, child) for child in n.children.values()) for n in nodes}
    victims, demotable = [], []
    for node in nodes:
        if node.residency is not Residency.HOLE and not node.children and not node.locks:
            victims.append((node.stamp, node.id))
        if state.config.host_capacity:
            assert node.device_below == below[node.id]
            if node.residency is Residency.DEVICE and not node.locks and not below[node.id]:
                demotable.append((node.stamp, node.id))
        if node.move is not None:
            assert node.residency is not Residency.HOLE
            moving = state.moves[node.move]
            assert moving.start <= node.start < node.end <= moving.end
            assert node.locks
    assert list(state.victims.in_order()) == sorted(victims)
    assert list(state.demotable.in_order()) == sorted(demotable)
    for move, moving in state.moves.items():
        covered = sum(n.length for n in nodes if n.move == move)
        assert covered == moving.length, "a move covers its whole span, however it is split"


def _audit_locks(state: State) -> None:
    held: Counter[NodeId] = Counter()
    for holder in (*state.leases.values(), *state.moves.values()):
        at: NodeId | None = holder.node
        while at is not None:
            held[at] += 1
            at = state.nodes[at].parent
    for node in state.nodes.values():
        assert node.locks == held[node.id]


def _has_device(state: State, node_id: NodeId) -> bool:
    node = state.nodes[node_id]
    return node.residency is Residency.DEVICE or any(
        _has_device(state, child) for child in node.children.values()
    )


def drawn_config(random: Random, names: Sequence[str] = tuple(POLICIES)) -> Config:
    """A small cache, with a host that is smaller, as large or larger, or all buffer."""
    page = random.choice([1, 1, 2])
    block = page * random.choice([1, 2, 3])
    position, granularity = named_policy(random.choice(names))
    device = page * random.choice([8, 12, 20])
    swap = block * random.choice([1, 1, 2])
    keeps = random.choice([0, 3 * page, device, device, 2 * device])
    return Config(
        device,
        page,
        block,
        position,
        granularity,
        random.random() < 0.2,
        host_capacity=keeps + swap,
        swap_buffer=swap,
    )


class Running(NamedTuple):
    receipt: Receipt
    units: list[int]


class Driver:
    """Uses a cache as a server would, checks every step, and notes what has happened."""

    def __init__(self, random: Random, config: Config, *, failing: float = 0.0) -> None:
        self.random = random
        self.state = empty(config)
        self.failing = failing
        self.running: list[Running] = []
        self.histories: list[list[int]] = [[]]
        self.seen: Counter[str] = Counter()

    def units(self) -> list[int]:
        """A history that continues, or leaves, one that was there before."""
        random = self.random
        base = list(random.choice(self.histories))
        if random.random() < 0.25:
            base = base[: random.randrange(len(base) + 1)]
        more = [random.randrange(2) for _ in range(random.choice([1, 1, 2, 6]))]
        return (base + more)[: self.state.config.device_capacity]

    def step(self) -> None:
        act = self.random.choice(
            [*[self.serve] * 6, *[self.finish] * 6, self.grow, self.drop, self.use, self.offer]
        )
        try:
            act()
        except (InsufficientSpace, OverCapacity, RequestTooLarge) as refused:
            self.seen[type(refused).__name__] += 1
        audit(self.state)
        self.histories = self.histories[-12:]

    # What a server does

    def serve(self) -> None:
        units = self.units()
        key = pack(units)
        planned = plan(self.state, key)
        before = self.state
        self._first_theorem(planned)
        if not planned.admissible:
            admit(before, planned)  # refuses by name
            raise AssertionError("admitted what is not admissible")
        receipt = self._admitted(planned)
        if before.leases and planned.holes:
            self.seen["holes beside others"] += 1
        if receipt is None:
            return
        for start, stop in planned.holes:
            self.state = refill(self.state, receipt, start, stop).state
        self.state = checkpoint(self.state, receipt, key).state
        self.histories.append(units)
        self.running.append(Running(receipt, units))

    def finish(self) -> None:
        if self.running:
            done = self.running.pop(self.random.randrange(len(self.running)))
            self.state = release(self.state, done.receipt).state

    def grow(self) -> None:
        if self.running:
            receipt = self.random.choice(self.running).receipt
            units = self.random.randrange(4 * self.state.config.page_size)  # also part of a page
            self.state = reserve(self.state, receipt, units).state
            if self.state.leases[receipt.id].due:
                self.seen["growth that waits for moves"] += 1
                self._carry_out_all(receipt, release_it=False)

    def drop(self) -> None:
        before = resident(self.state)
        need = self.random.randrange(1, 8)
        gone = evict(self.state, need)
        self.state = gone.state
        assert gone.freed == len(before) - len(resident(self.state)) >= need
        self.seen["dropped"] += 1

    def use(self) -> None:
        self.state = touch(self.state, match(self.state, pack(self.units()))).state

    def offer(self) -> None:
        units = self.units()
        self.state = insert(self.state, pack(units)).state
        self.histories.append(units)

    # Admission and moves

    def _first_theorem(self, planned: Plan) -> None:
        """T1: the device check alone decides, and what goes is at most what is not locked."""
        config, totals = self.state.config, self.state.totals
        own = [s for s in planned.match.spans if not self.state.nodes[s.node].locks]
        length = {r: sum(s.length for s in own if s.residency is r) for r in Residency}
        locked = totals.locked + length[Residency.DEVICE]
        fits = planned.allocate <= config.device_capacity - totals.reserved - locked
        if not self.state.moves and not totals.due + totals.promote:
            assert planned.admissible is fits
        idle = totals.device - locked + totals.host - totals.locked_host - length[Residency.HOST]
        if planned.admissible:
            assert planned.evict <= idle

    def _admitted(self, planned: Plan) -> Receipt | None:
        """Admit a request and carry out its moves; None where they were given up."""
        before = resident(self.state)
        admitted = admit(self.state, planned)
        self.state = admitted.state
        audit(self.state)
        lost = len(before) - len(resident(self.state))
        assert admitted.freed == lost >= planned.evict
        if self.state.config.granularity is Granularity.BLOCK:
            assert lost < planned.evict + self.state.config.block_size
        self.seen["admitted"] += 1
        if admitted.pending:
            self.seen["admitted with moves"] += 1
            if not self._carry_out_all(admitted.receipt, release_it=True):
                return None
        return admitted.receipt

    def _carry_out_all(self, receipt: Receipt, *, release_it: bool) -> bool:
        """The moves of a promise, one by one: T2 and T3.  False where one of them failed for good.

        What gives up keeps everything, and a request that runs goes on without what it asked for.
        """
        try:
            return self._moves(receipt, release_it=release_it)
        except Refused as refused:
            raise AssertionError("what was promised cannot be carried out") from refused

    def _moves(self, receipt: Receipt, *, release_it: bool) -> bool:
        config = self.state.config
        kept = resident(self.state).keys()
        clean = not self.state.staged  # no exchange was given up halfway before this one
        # T3 ends: each round of the two moves brings at least a page, and failures are retried.
        left = 4 * (config.device_capacity + config.host_capacity)
        while (transfer := next_transfer(self.state, receipt)) is not None:
            left -= 1
            assert left, "the plan does not end"
            if not self.move(transfer) and self.random.random() < 0.3:
                give_up = release if release_it else forgo_promise
                self.state = give_up(self.state, receipt).state
                self.seen["given up"] += 1
                assert resident(self.state).keys() == kept
                audit(self.state)
                return False
        self.state = settle_promise(self.state, receipt).state
        audit(self.state)
        assert resident(self.state).keys() == kept, "moves drop nothing"
        if clean:  # T2, T3
            assert self.state.host_used <= config.host_resident, "the buffer ends empty"
        return True

    def move(self, transfer: Transfer) -> bool:
        """Begin a move and end or fail it; in neither case is anything lost."""
        before = resident(self.state)
        begun = begin_move(self.state, transfer)
        audit(begun.state)
        assert resident(begun.state) == before, "what is in flight is where it was"
        assert begun.state.staged <= begun.state.config.swap_buffer
        if begun.state.staged:
            self.seen["swapped"] += 1
        moving = begun.state.moves[begun.move]
        if self.random.random() < self.failing:
            self.state = fail_move(begun.state, begun.move).state
            assert resident(self.state) == before
            self._has_ended(begun.move)
            self.seen["failed"] += 1
            audit(self.state)
            return False
        self.state = end_move(begun.state, begun.move).state
        after = resident(self.state)
        assert after.keys() == before.keys()
        changed = [page for page in after if after[page] is not before[page]]
        assert len(changed) == moving.length
        assert {after[page] for page in changed} == {transfer.target}
        self._has_ended(begun.move)
        self.seen[f"to the {transfer.target.value}"] += 1
        audit(self.state)
        return True

    def _has_ended(self, move: MoveId) -> None:
        for late in (end_move, fail_move):
            try:
                late(self.state, move)
            except UnknownMove:
                continue
            raise AssertionError("a late completion was taken")
