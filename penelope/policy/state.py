"""The state: immutable radix trees, one per namespace, and what is true of them in sum."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, NewType

from immutables import Map

from penelope.policy.config import Config
from penelope.policy.errors import UnknownReceipt
from penelope.policy.keys import Key
from penelope.policy.ticks import TickMap

NodeId = NewType("NodeId", int)
ReceiptId = NewType("ReceiptId", int)
MoveId = NewType("MoveId", int)
Ticket = NewType("Ticket", int)
"""A request that waits, as `line_up` names it."""


class Namespace(NamedTuple):
    """Histories in different namespaces never share KV.

    The parts are kept apart, never joined into one string: adapter 'ab' with salt 'c' is not
    adapter 'a' with salt 'bc', and an empty salt is not an absent one.
    """

    adapter: str | None = None
    salt: str | None = None


DEFAULT_NAMESPACE: Final = Namespace()


class Residency(Enum):
    """Where the KV of a node is.  It is in exactly one place."""

    DEVICE = "device"
    HOST = "host"
    HOLE = "hole"
    """Nowhere: the tokens are kept, the KV is gone."""


class Node(NamedTuple):
    """A span [start, end) of a history, in units from its beginning.

    The label is `key[start:end]`: a view by absolute position into the key of some whole history
    that passes through this node.  Splitting and merging therefore copy no tokens, and
    `key[:end]` is always the full path from the root.
    """

    id: NodeId
    parent: NodeId | None
    namespace: Namespace
    start: int
    end: int
    key: Key
    residency: Residency
    locks: int
    """Live receipts, and moves in flight, that end in this node or below it."""
    stamp: int
    """Tick of the last use that ended here, or ended in a descendant that is gone by now."""
    children: Map[bytes, NodeId]
    """By the first page of the child's label.  Its order means nothing and is never used."""
    filler: ReceiptId | None = None
    """The receipt that has undertaken to refill this hole: the span is in flight."""
    branched: bool = False
    """Whether the node ever had two children at once."""
    move: MoveId | None = None
    """The move that is taking this span to the other tier: the span is in flight."""
    device_below: int = 0
    """Children with device KV in their subtree.  Kept only where there is a host tier."""
    retired: bool = False
    """Whether the history that ends in this leaf will not come back."""

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def is_root(self) -> bool:
        return self.parent is None

    # What changes most often is spelt out: `_replace` takes twice as long.

    def with_locks(self, locks: int) -> Node:
        """The same node, locked so often."""
        return Node(
            self.id,
            self.parent,
            self.namespace,
            self.start,
            self.end,
            self.key,
            self.residency,
            locks,
            self.stamp,
            self.children,
            self.filler,
            self.branched,
            self.move,
            self.device_below,
            self.retired,
        )

    def with_children(self, children: Map[bytes, NodeId]) -> Node:
        """The same node with other children: it has `branched` once it had two at once, and no
        history ends in it while it has any.
        """
        return Node(
            self.id,
            self.parent,
            self.namespace,
            self.start,
            self.end,
            self.key,
            self.residency,
            self.locks,
            self.stamp,
            children,
            self.filler,
            self.branched or len(children) > 1,
            self.move,
            self.device_below,
            self.retired and not children,
        )


ON_SPLIT: Final = {
    "id": "the lower half keeps it, so receipts and children stay right; the upper half gets a new",
    "parent": "relinked",
    "namespace": "copied",
    "start": "divided",
    "end": "divided",
    "key": "copied: both halves view the same key",
    "residency": "copied",
    "locks": "copied: every receipt below covers both halves",
    "stamp": "copied",
    "children": "the lower half keeps them; the upper half gets the lower as its only child",
    "filler": "copied",
    "branched": "the lower half keeps it: only its end ever branched",
    "move": "copied: the move covers both halves",
    "device_below": "the lower half keeps it; the upper half has one such child or none",
    "retired": "the lower half keeps it: the history ends there",
}
"""What happens to each field of a node when it is split (checked to be complete by a test)."""


class Origin:
    """The cache that states and receipts belong to: itself and nothing else.

    No decision depends on it but one: a receipt of another cache is refused, though it may have
    the number of one that is live here.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof of a lock, needed to release it, once."""

    id: ReceiptId
    origin: Origin | None = field(default=None, compare=False, repr=False)
    """Of the cache that issued it; None where a shell has kept the number alone."""


class Lease(NamedTuple):
    """What a live receipt holds, and what it has been promised."""

    node: NodeId
    """The path from the root to the end of this node is locked."""
    reserved: int
    """Device units outside the tree that the request owns or may allocate."""
    due: int = 0
    """Device units to be reserved as soon as moves have made room for them."""
    promote: int = 0
    """Host units on the path that moves have still to bring to the device."""


class Move(NamedTuple):
    """A span on its way to the other tier.  It has its slots in both until the move ends."""

    node: NodeId
    """The span ends where this node ends."""
    start: int
    end: int
    target: Residency
    receipt: ReceiptId | None
    """For whom KV is promoted; None for a demotion."""

    @property
    def length(self) -> int:
        return self.end - self.start


class Place(NamedTuple):
    """Up to where a waiting request matched: `end` lies in this node.  None where nothing did."""

    node: NodeId | None
    end: int


class Waiting(NamedTuple):
    """The queue: requests that wait, and the histories that they will use."""

    order: tuple[Ticket, ...] = ()
    """In the order in which they will be served, which is that of their numbers."""
    places: Map[Ticket, Place] = Map()
    at: Map[NodeId, tuple[Ticket, ...]] = Map()
    """The tickets by the node of their place."""
    next_ticket: int = 0


class Filed(NamedTuple):
    """Where a victim stands in the order by expected cost."""

    cost: int
    """Of a unit at the next block to go, rounded down to a class."""
    at: int
    """The position of that block."""
    tick: int
    """The stamp of a history that is idle; the ticket of one that waits."""
    waits: bool


class Ranking(NamedTuple):
    """The victims by class of cost.  Kept only under `Order.EXPECTED_COST`."""

    filed: Map[NodeId, Filed] = Map()
    idle: Map[int, TickMap[NodeId]] = Map()
    """Of each class that has any, the idle ones by stamp."""
    waiting: Map[int, TickMap[NodeId]] = Map()
    """Of each class that has any, those that wait, the last to be served first."""


class Totals(NamedTuple):
    """Incremental counters, in units.  They equal a recount at all times (`accounting`)."""

    device: int = 0
    """Resident on the device."""
    locked: int = 0
    """Of these, in locked nodes."""
    host: int = 0
    """Resident on the host."""
    hole: int = 0
    reserved: int = 0
    """Held outside the tree by live receipts."""
    locked_host: int = 0
    """Resident on the host, in locked nodes."""
    due: int = 0
    """Promised to live receipts beyond that."""
    promote: int = 0
    """Host units that live receipts have been promised on the device."""
    inbound: int = 0
    """Device units that promotions in flight are writing."""
    outbound: int = 0
    """Host units that demotions in flight are writing."""


@dataclass(frozen=True, slots=True, repr=False)
class State:
    """Everything that decisions depend on: no clock, no randomness, no hash order."""

    config: Config
    nodes: Map[NodeId, Node] = field(default_factory=Map)
    roots: Map[Namespace, NodeId] = field(default_factory=Map)
    leases: Map[ReceiptId, Lease] = field(default_factory=Map)
    victims: TickMap[NodeId] = field(default_factory=TickMap)
    """The unlocked leaves by stamp: the histories that may be evicted, least recent first."""
    totals: Totals = field(default_factory=Totals)
    tick: int = 0
    next_node: int = 0
    next_receipt: int = 0
    moves: Map[MoveId, Move] = field(default_factory=Map)
    """Those in flight."""
    next_move: int = 0
    demotable: TickMap[NodeId] = field(default_factory=TickMap)
    """What would be the victims if histories that are wholly on the host were gone, by stamp."""
    origin: Origin = field(default_factory=Origin, compare=False)
    """The cache that this is a state of: every later state has the same."""
    retired: TickMap[NodeId] = field(default_factory=TickMap)
    """The victims that will not come back, by stamp: they go before all others."""
    waiting: Waiting = field(default_factory=Waiting)
    ranking: Ranking = field(default_factory=Ranking)

    @property
    def used(self) -> int:
        """Device units that are not free."""
        return self.totals.device + self.totals.reserved + self.totals.inbound

    @property
    def free(self) -> int:
        """Device units that nobody holds."""
        return self.config.device_capacity - self.used

    @property
    def host_used(self) -> int:
        """Host units that are not free."""
        return self.totals.host + self.totals.outbound

    @property
    def staged(self) -> int:
        """Host units that stand in the swap buffer."""
        return max(0, self.host_used - self.config.host_resident)

    @property
    def logical_used(self) -> int:
        """Units that the logical cache holds or has promised, wherever they lie."""
        t = self.totals
        return t.device + t.host + t.reserved + t.due

    @property
    def available(self) -> int:
        """Device units that a request could get: free or unlocked, and not promised (T1)."""
        t = self.totals
        return self.free + t.device - t.locked - t.due - t.promote

    @property
    def evictable(self) -> int:
        """Units that eviction can drop now, in any tier: all that is resident and not locked."""
        t = self.totals
        return t.device - t.locked + t.host - t.locked_host

    @property
    def protected(self) -> int:
        """Resident units, in any tier, that a live receipt or a move covers."""
        return self.totals.locked + self.totals.locked_host

    def lease(self, receipt: Receipt) -> Lease:
        """What a live receipt holds.  Raises `UnknownReceipt`."""
        return live_lease(self.leases, self.origin, receipt)

    def __repr__(self) -> str:
        t = self.totals
        return (
            f"<State tick {self.tick}: {len(self.nodes)} nodes, {len(self.leases)} receipts, "
            f"device {t.device} ({t.locked} locked) + {t.reserved} reserved "
            f"of {self.config.device_capacity}, host {t.host}, holes {t.hole}>"
        )


def live_lease(leases: Map[ReceiptId, Lease], origin: Origin, receipt: Receipt) -> Lease:
    """What a receipt holds.  Raises `UnknownReceipt` for one that is none or is not live here."""
    if not isinstance(receipt, Receipt):
        raise UnknownReceipt(
            f"this is {type(receipt).__name__} and no receipt: give the one that was issued"
        )
    if receipt.origin is not None and receipt.origin is not origin:
        raise UnknownReceipt(f"receipt {receipt.id} was issued by another cache: release it there")
    lease = leases.get(receipt.id)
    if lease is None:
        raise UnknownReceipt(
            f"receipt {receipt.id} is not live: it was released before or never issued"
        )
    return lease


def empty(config: Config) -> State:
    """A cache that holds nothing."""
    return State(config)
