"""What is fixed for the life of a cache."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from penelope.policy.amounts import whole_number
from penelope.policy.errors import InvalidConfigError
from penelope.policy.keys import UNIT_BYTES

_Switch = TypeVar("_Switch", bound=Enum)


class Position(Enum):
    """Where in the least recently used history eviction takes KV."""

    TAIL = "tail"
    """The end of the leaf, where recomputation is dearest: SGLang and vLLM."""
    LEAF_HEAD = "leaf-head"
    """The start of the leaf node only."""
    PRIVATE_HEAD = "private-head"
    """The start of the span that only this history uses: Penelope."""


class Granularity(Enum):
    """How much eviction takes at a time."""

    NODE = "node"
    """Whole radix-tree nodes, however long."""
    BLOCK = "block"
    """As many blocks of `Config.block_size` as are needed, no more."""


class Order(Enum):
    """Whose history eviction takes KV from first."""

    LRU = "lru"
    """The least recently used: SGLang, vLLM and the paper."""
    EXPECTED_COST = "expected-cost"
    """The one whose next blocks are cheapest to lose: see `penelope.policy.order`."""


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes are in units: tokens in an engine, hashed blocks in a replay of hashed traces.

    A size is a whole number of any integer type; a switch is a member of its enumeration or its
    name.  Raises `InvalidConfigError` for anything else, and when the sizes do not go together.
    """

    device_capacity: int
    """Units of KV that the device can hold."""
    page_size: int = 1
    """Match granularity."""
    block_size: int = 64
    """Eviction granularity, a multiple of the page size."""
    position: Position = Position.PRIVATE_HEAD
    granularity: Granularity = Granularity.BLOCK
    sticky_shared: bool = False
    """Whether a prefix once shared stays shared when its last other user has gone."""
    unit_bytes: int = UNIT_BYTES
    """Bytes of a key that make one unit."""
    host_capacity: int = 0
    """Units of KV that the host can hold, the swap buffer included; 0 for a single tier."""
    swap_buffer: int = 0
    """Units of the host that only exchanges use; whole blocks."""
    order: Order = Order.LRU
    linear_cost: int = 0
    """What the linear layers cost a unit, as the number of units that would have to precede it for
    attention to cost as much: `CostModel.linear`, rounded.  Only the order reads it."""

    @property
    def host_resident(self) -> int:
        """Units of KV that the host keeps when nothing is being exchanged."""
        return self.host_capacity - self.swap_buffer

    @property
    def logical_capacity(self) -> int:
        """Units of KV that the two tiers keep together."""
        return self.device_capacity + self.host_resident

    def __post_init__(self) -> None:
        for name in ("device_capacity", "page_size", "block_size", "unit_bytes"):
            self._convert_size(name, least=1)
        for name in ("host_capacity", "swap_buffer", "linear_cost"):
            self._convert_size(name, least=0)
        object.__setattr__(self, "position", _member(Position, "position", self.position))
        object.__setattr__(
            self, "granularity", _member(Granularity, "granularity", self.granularity)
        )
        object.__setattr__(self, "order", _member(Order, "order", self.order))
        if not isinstance(self.sticky_shared, bool):
            raise InvalidConfigError(
                f"sticky_shared is {self.sticky_shared!r}: it must be True or False"
            )
        switches = self.position, self.granularity
        if self.order is not Order.LRU and switches != POLICIES["penelope"]:
            raise InvalidConfigError(
                f"order '{self.order.value}' weighs blocks at the head of a private span: choose "
                f"position private-head and granularity block, or order lru"
            )
        if self.block_size % self.page_size:
            raise InvalidConfigError(
                f"block size {self.block_size} is not a multiple of page size "
                f"{self.page_size}: choose a block of whole pages"
            )
        if self.host_capacity or self.swap_buffer:
            self._check_tiers()
        if self.device_capacity < self.page_size:
            raise InvalidConfigError(
                f"device capacity {self.device_capacity} holds no page of {self.page_size}"
            )

    def _convert_size(self, name: str, least: int) -> None:
        size = whole_number(getattr(self, name))
        if size is None:
            raise InvalidConfigError(
                f"{name} is {getattr(self, name)!r}: it must be a whole number of units"
            )
        if size < least:
            raise InvalidConfigError(f"{name} is {size}: it must be at least {least}")
        object.__setattr__(self, name, size)

    def _check_tiers(self) -> None:
        if self.swap_buffer < 1 or self.swap_buffer % self.block_size:
            raise InvalidConfigError(
                f"swap buffer {self.swap_buffer} is not a whole number of blocks of "
                f"{self.block_size}: two tiers need at least one block"
            )
        if self.host_capacity < self.swap_buffer:
            raise InvalidConfigError(
                f"host capacity {self.host_capacity} is smaller than its swap buffer "
                f"{self.swap_buffer}: enlarge the host or shrink the buffer"
            )
        for name in ("device_capacity", "host_capacity"):
            if getattr(self, name) % self.page_size:
                raise InvalidConfigError(
                    f"{name} {getattr(self, name)} is not a multiple of page size "
                    f"{self.page_size}: two tiers exchange whole pages"
                )


def _member(kind: type[_Switch], name: str, given: object) -> _Switch:
    """A switch as a member of its enumeration, given as one or by its name."""
    try:
        return kind(given)
    except ValueError:
        raise InvalidConfigError(
            f"{name} is {given!r}: choose from {', '.join(str(m.value) for m in kind)}"
        ) from None


POLICIES: dict[str, tuple[Position, Granularity]] = {
    "sglang-lru": (Position.TAIL, Granularity.NODE),
    "tail-block": (Position.TAIL, Granularity.BLOCK),
    "leaf-head-block": (Position.LEAF_HEAD, Granularity.BLOCK),
    "private-head-node": (Position.PRIVATE_HEAD, Granularity.NODE),
    "penelope": (Position.PRIVATE_HEAD, Granularity.BLOCK),
}
"""The named policies: stock behaviour, the paper's ablation, and Penelope."""


ORDERS: dict[str, tuple[Order, bool]] = {
    "penelope-queue": (Order.LRU, True),
    "expected-cost-blind": (Order.EXPECTED_COST, False),
    "expected-cost": (Order.EXPECTED_COST, True),
}
"""Penelope's position and granularity in another order: which, and whether the queue is in view."""


def ordering(name: str) -> tuple[Order, bool]:
    """The order of a named policy, and whether it is told of the requests that wait."""
    return ORDERS.get(name, (Order.LRU, False))


def named_policy(name: str) -> tuple[Position, Granularity]:
    """The switches of a named policy.  Raises `InvalidConfigError` for an unknown name."""
    try:
        return POLICIES["penelope" if name in ORDERS else name]
    except (KeyError, TypeError):
        raise InvalidConfigError(
            f"unknown policy '{name}': choose from {', '.join((*POLICIES, *ORDERS))}"
        ) from None
