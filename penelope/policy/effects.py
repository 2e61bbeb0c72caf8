"""What a shell must do to real memory after a transition: plain data, in the order to do it.

The core knows no slots.  A shell keeps the slots of every resident node and follows these.
Spans are [start, end) in units from the beginning of the history.
"""

from __future__ import annotations

from typing import NamedTuple

from penelope.policy.tree import NodeId


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
    """The device slots of the whole node go back to the allocator: it is a hole now."""

    node: NodeId
    start: int
    end: int


class Adopt(NamedTuple):
    """The node, all of it, takes over the slots that the caller offers for this span."""

    node: NodeId
    start: int
    end: int


class Surplus(NamedTuple):
    """The node, or this part of it, is resident already and keeps its slots.

    Slots that the caller offers for the span stay the caller's, to be freed, unless they are
    the very slots that the node owns: the same slot offered again is not a duplicate.
    """

    node: NodeId
    start: int
    end: int


class Remove(NamedTuple):
    """The node left the tree.  It holds no slots."""

    node: NodeId


class Reset(NamedTuple):
    """Every node left the tree; every slot that the tree held is free."""


Effect = Split | Merge | Free | Adopt | Surplus | Remove | Reset
