"""What a shell must do to real memory after a transition: plain data, in the order to do it.

The core knows no slots.  A shell keeps the slots of every resident node and follows these.
Spans are [start, end) in units from the beginning of the history.
"""

from __future__ import annotations

from typing import NamedTuple

from penelope.policy.state import MoveId, NodeId, Residency


class Split(NamedTuple):
    """`upper` is a new node that takes [start, at) of `node`; `node` keeps [at, end)."""

    node: NodeId
    upper: NodeId
    at: int


class Merge(NamedTuple):
    """`node` takes the span of its parent `upper` in front of its own; `upper` is gone."""

    upper: NodeId
    node: NodeId


class Free(NamedTuple):
    """The slots of the whole node go back to the allocator of the tier that it was in."""

    node: NodeId
    start: int
    end: int
    tier: Residency = Residency.DEVICE


class Copy(NamedTuple):
    """Copy the node's KV into fresh slots of the target tier; both copies stay until it ends.

    The new device slots may be read, and the new host slots handed on, only when `Moved` says so.
    """

    move: MoveId
    node: NodeId
    start: int
    end: int
    target: Residency


class Moved(NamedTuple):
    """The copy is complete: the node, all of it, has the new slots and gives up the old ones."""

    move: MoveId
    node: NodeId
    start: int
    end: int
    target: Residency


class Unmoved(NamedTuple):
    """The copy was given up: its fresh slots are free, and the node keeps those that it has."""

    move: MoveId
    start: int
    end: int
    target: Residency


class Adopt(NamedTuple):
    """The node, all of it, takes over the slots that the caller offers for this span."""

    node: NodeId
    start: int
    end: int


class Surplus(NamedTuple):
    """The node, or this part of it, is resident already and keeps its slots.

    Slots that the caller offers for the span are to be freed, unless they are the very slots that
    the node owns: the same slot offered again is not a duplicate.
    """

    node: NodeId
    start: int
    end: int


class Remove(NamedTuple):
    """The node left the tree.  It holds no slots."""

    node: NodeId


class Reset(NamedTuple):
    """Every node left the tree; every slot that the tree held, in either tier, is free."""


Effect = Split | Merge | Free | Adopt | Surplus | Remove | Reset | Copy | Moved | Unmoved
