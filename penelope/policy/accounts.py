"""The books of a state under construction: counters, orders and leases follow every node written.

Transitions write nodes only through these three methods, so that a recount is never needed.
"""

from __future__ import annotations

from typing import Final

from penelope.policy.config import Order
from penelope.policy.effects import Effect
from penelope.policy.errors import InsufficientSpace
from penelope.policy.order import ranked
from penelope.policy.state import (
    Lease,
    Node,
    NodeId,
    Receipt,
    ReceiptId,
    Residency,
    State,
    Totals,
    live_lease,
)
from penelope.policy.ticks import TickMap
from penelope.policy.walk import is_victim, parts

_DEVICE: Final = Residency.DEVICE
_HOST: Final = Residency.HOST


class Accounts:
    """A state, taken apart to be changed."""

    __slots__ = (
        "config",
        "demotable",
        "device",
        "dirty",
        "due",
        "effects",
        "hole",
        "host",
        "inbound",
        "leases",
        "locked",
        "locked_host",
        "moves",
        "next_move",
        "next_node",
        "next_receipt",
        "nodes",
        "origin",
        "outbound",
        "promote",
        "ranking",
        "ranks",
        "reserved",
        "retired",
        "roots",
        "tick",
        "tiers",
        "victims",
        "waiting",
    )

    def __init__(self, state: State) -> None:
        self.config = state.config
        self.tiers = state.config.host_capacity > 0
        self.nodes = state.nodes.mutate()
        self.roots = state.roots
        self.leases = state.leases
        self.moves = state.moves
        self.victims = state.victims
        self.demotable = state.demotable
        self.retired = state.retired
        self.waiting = state.waiting
        self.ranking = state.ranking
        self.ranks = state.config.order is Order.EXPECTED_COST
        self.dirty: set[NodeId] = set()
        """Nodes of which the place in the ranking, or that of what is below, may have changed."""
        (
            self.device,
            self.locked,
            self.host,
            self.hole,
            self.reserved,
            self.locked_host,
            self.due,
            self.promote,
            self.inbound,
            self.outbound,
        ) = state.totals
        self.tick = state.tick
        self.next_node = state.next_node
        self.next_receipt = state.next_receipt
        self.next_move = state.next_move
        self.origin = state.origin
        self.effects: list[Effect] = []

    def close(self) -> tuple[State, tuple[Effect, ...]]:
        """The new state, and what the shell must do."""
        self.rank()
        return (
            State(
                self.config,
                self.nodes.finish(),
                self.roots,
                self.leases,
                self.victims,
                Totals(
                    self.device,
                    self.locked,
                    self.host,
                    self.hole,
                    self.reserved,
                    self.locked_host,
                    self.due,
                    self.promote,
                    self.inbound,
                    self.outbound,
                ),
                self.tick,
                self.next_node,
                self.next_receipt,
                self.moves,
                self.next_move,
                self.demotable,
                self.origin,
                self.retired,
                self.waiting,
                self.ranking,
            ),
            tuple(self.effects),
        )

    @property
    def free(self) -> int:
        return self.config.device_capacity - self.device - self.reserved - self.inbound

    # Writing nodes: totals and orders follow from what a node was and is

    def add(self, node: Node) -> None:
        """A node that was not there."""
        self.nodes[node.id] = node
        self._count(node, 1)
        self._reorder(None, node)

    def change(self, old: Node, new: Node) -> None:
        """The next version of a node.  It ends where it ended: splits and merges move its start."""
        self.nodes[new.id] = new
        if (
            old.residency is not new.residency
            or old.start != new.start
            or (not old.locks) is not (not new.locks)
        ):
            self._count(old, -1)
            self._count(new, 1)
        self._reorder(old, new)

    def remove(self, node: Node) -> None:
        """A node that is there no more."""
        del self.nodes[node.id]
        self._count(node, -1)
        self._reorder(node, None)

    def _count(self, node: Node, sign: int) -> None:
        length = sign * (node.end - node.start)
        if node.residency is _DEVICE:
            self.device += length
            if node.locks:
                self.locked += length
        elif node.residency is _HOST:
            self.host += length
            if node.locks:
                self.locked_host += length
        else:
            self.hole += length

    def _reorder(self, old: Node | None, new: Node | None) -> None:
        was = old.stamp if old is not None and is_victim(old) else None
        now = new.stamp if new is not None and is_victim(new) else None
        if was != now:
            self.victims = _moved(self.victims, was, now, new)
        if (old is not None and old.retired) or (new is not None and new.retired):
            was = was if old is not None and old.retired else None
            now = now if new is not None and new.retired else None
            if was != now:
                self.retired = _moved(self.retired, was, now, new)
        if self.ranks:
            self._soil(old, new)
        if self.tiers:
            was = old.stamp if old is not None and is_demotable(old) else None
            now = new.stamp if new is not None and is_demotable(new) else None
            if was != now:
                self.demotable = _moved(self.demotable, was, now, new)

    def _soil(self, old: Node | None, new: Node | None) -> None:
        """Note a change that a walk could notice: none comes through a node that parts them."""
        if old is not None and not parts(old):
            self.dirty.add(old.id)
        elif new is not None and not parts(new):
            self.dirty.add(new.id)

    def rank(self) -> None:
        """Bring the order by expected cost up to date with what has been written."""
        if self.dirty:
            self.ranking = ranked(self, self.dirty)
            self.dirty.clear()

    # Leases and promises

    def lease(self, receipt: Receipt) -> Lease:
        """What the receipt holds.  Raises `UnknownReceipt`."""
        return live_lease(self.leases, self.origin, receipt)

    def set_lease(self, receipt: ReceiptId, lease: Lease) -> None:
        """Change what a receipt holds, and the sums of all that."""
        old = self.leases[receipt]
        self.reserved += lease.reserved - old.reserved
        self.due += lease.due - old.due
        self.promote += lease.promote - old.promote
        self.leases = self.leases.set(receipt, lease)

    def withdraw(self, receipt: ReceiptId) -> None:
        """End what a receipt holds."""
        self.set_lease(receipt, Lease(self.leases[receipt].node, 0))
        self.leases = self.leases.delete(receipt)

    def keep_promises(self) -> None:
        """Raises `InsufficientSpace` if what receipts were promised could not be had any more.

        T1: it fits beside what is locked, in the device and in both tiers together, and no more
        is locked on the host than it keeps, apart from what is on its way to the device.
        """
        if not self.due and not self.promote:
            return
        promised = self.due + self.promote
        used = self.device + self.host + self.reserved + self.due
        if (
            self.free + self.device - self.locked < promised
            or used > self.config.logical_capacity
            or self.locked_host > self.config.host_resident + self.promote + self.inbound
        ):
            raise InsufficientSpace(
                f"{promised} units are promised to requests that wait for moves, and this would "
                f"take them: carry out their transfers first"
            )


def _moved(
    order: TickMap[NodeId], was: int | None, now: int | None, node: Node | None
) -> TickMap[NodeId]:
    """The order with a node at tick `now`, which was at tick `was`."""
    if was is not None:
        order = order.remove(was)
    if now is not None and node is not None:
        order = order.insert(now, node.id)
    return order


def is_demotable(node: Node) -> bool:
    """Whether it would be a victim if what is wholly on the host below it were gone."""
    return node.residency is _DEVICE and not node.locks and not node.device_below


def has_device(node: Node) -> bool:
    """Whether the node or one below it has device KV.  Kept only where there is a host tier."""
    return node.residency is _DEVICE or node.device_below > 0
