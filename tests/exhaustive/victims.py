"""What an eviction must take, page by page, as the naive model of the property tests chooses it."""

from __future__ import annotations

from penelope.policy import (
    POLICIES,
    Effect,
    Free,
    Move,
    NodeId,
    Residency,
    Split,
    State,
)
from penelope.policy.state import Lease
from penelope_spec import Violation
from tests.property.naive import Held, Model, Where
from tests.property.naive_cache import Page
from tests.property.reading import path_of, retired_of, waiting_of
from tests.property.twin import rules_of


def modelled(state: State) -> Model:
    """The state as the model sees it: in which tier KV lies makes no difference there."""
    model = Model(rules_of(state.config))
    size = state.config.page_size
    for node in state.nodes.values():
        if not node.is_root:
            space, path = path_of(state, node.id)
            for end in range(node.start + size, node.end + 1, size):
                kv = node.residency is not Residency.HOLE
                forked = node.branched and end == node.end
                model.pages[space, path[:end]] = Page(kv, _last(state, node.id), forked=forked)
    holders: list[Lease | Move] = [*state.leases.values(), *state.moves.values()]
    for number, holder in enumerate(holders):
        space, path = path_of(state, holder.node)
        model.receipts[number] = Held(space, path, 0)
    model.queue = waiting_of(state)
    model.retired = retired_of(state)
    model.clock = state.tick
    return model


def _last(state: State, node_id: NodeId) -> int:
    """When a use last passed through the node."""
    node = state.nodes[node_id]
    return max([node.stamp, *(_last(state, child) for child in node.children.values())])


def wrong_victims(before: State, effects: tuple[Effect, ...], need: int) -> list[Violation]:
    """Where an eviction took other pages than the model, or in another order."""
    config = before.config
    if need <= 0 or (config.position, config.granularity) != POLICIES["penelope"]:
        return []
    size = config.page_size
    node_of: dict[NodeId, NodeId] = {}
    gone: list[Where] = []
    for effect in effects:
        if isinstance(effect, Split):
            node_of[effect.upper] = node_of.get(effect.node, effect.node)
        elif isinstance(effect, Free):
            space, path = path_of(before, node_of.get(effect.node, effect.node))
            ends = range(effect.start + size, effect.end + 1, size)
            gone += [(space, path[:end]) for end in ends]
    due = modelled(before).take(need)
    if gone == due:
        return []
    return [Violation("order-followed", f"evict({need}) takes {gone}, {due} are first")]
