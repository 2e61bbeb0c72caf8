"""Which history loses KV, and which part of it."""

from __future__ import annotations

from typing import NamedTuple

from penelope.policy.amounts import amount
from penelope.policy.config import Config, Granularity, Position
from penelope.policy.draft import Draft
from penelope.policy.effects import Effect
from penelope.policy.errors import InsufficientSpace
from penelope.policy.order import first_victim, share
from penelope.policy.state import Node, NodeId, Residency, State
from penelope.policy.walk import is_victim, parent_of, private_span


class Evicted(NamedTuple):
    state: State
    effects: tuple[Effect, ...]
    freed: int
    """Units; at least the need, and less than one block more at block granularity."""


def evict(state: State, need: int) -> Evicted:
    """Drop at least `need` units of unlocked KV, from the first history of the order on.

    One order for both tiers: which units are dropped does not depend on where they lie.

    All or nothing: raises `InsufficientSpace` if less than `need` is evictable, `InvalidAmount`
    if it is no whole number or negative.
    At risk: `no-shared-eviction`, `no-in-use-eviction`, `minimal-eviction`, `progress`.
    Cost: logarithmic in the number of histories, linear in the nodes dropped.
    """
    need = amount(need, "evict {} units")
    if need == 0:
        return Evicted(state, (), 0)
    if need > state.evictable:
        raise InsufficientSpace(
            f"asked to evict {need} units where {state.evictable} are evictable and "
            f"{state.protected} are in use: ask for less or wait until a running request ends"
        )
    draft = Draft(state)
    freed = evict_in(draft, need)
    return Evicted(*draft.close(), freed)


def evict_in(draft: Draft, need: int) -> int:
    """Evict inside a transition that has made sure that `need` is evictable."""
    freed = 0
    while freed < need:
        leaf = first_victim(draft)
        freed += drain(draft, leaf, share(draft, leaf, need - freed))
    return freed


def drain(draft: Draft, leaf: NodeId, need: int) -> int:
    """Take up to `need` units, rounded up as the granularity says, from one history."""
    if draft.config.position is Position.TAIL:
        return _drain_tail(draft, draft.nodes[leaf], need)
    span = [leaf]
    if draft.config.position is Position.PRIVATE_HEAD:
        span, _ = private_span(draft.config, draft.nodes, leaf)
    start = draft.nodes[span[0]].start
    # One target for the whole span: where nodes begin and end must not matter.
    target = head_target(draft.config, start, need)
    dropped: list[NodeId] = []
    end = start
    for node_id in span:
        if end >= target:
            break
        node = draft.nodes[node_id]
        if draft.config.granularity is Granularity.BLOCK and target < node.end:
            node, _ = draft.split(node, target)
        draft.drop(node)
        dropped.append(node.id)
        end = node.end
    if draft.nodes[leaf].residency is Residency.HOLE:
        draft.prune(leaf)
    else:
        draft.merge_each(dropped)
    return end - start


def _drain_tail(draft: Draft, leaf: Node, need: int) -> int:
    start = end = leaf.end
    target = tail_target(draft.config, end, need)
    last_use = leaf.stamp
    while start > target:
        if draft.config.granularity is Granularity.BLOCK and leaf.start < target:
            _, leaf = draft.split(leaf, target)
        draft.drop(leaf)
        draft.prune(leaf.id)
        start = leaf.start
        above = draft.nodes.get(parent_of(leaf))
        # What was used later than this history has its own turn in the order.
        if above is None or not is_victim(above) or above.stamp > last_use:
            break
        leaf = above
    return end - start


def head_target(config: Config, start: int, need: int) -> int:
    """Up to where a head that begins at `start` goes, to free `need` units: a block boundary."""
    if config.granularity is Granularity.NODE:
        return start + need
    return -(-(start + need) // config.block_size) * config.block_size


def tail_target(config: Config, end: int, need: int) -> int:
    """From where a tail that ends at `end` goes, to free `need` units: a block boundary."""
    if config.granularity is Granularity.NODE:
        return end - need
    return max(0, (end - need) // config.block_size * config.block_size)
