"""Every field of a node declares what happens to it when the node is split."""

from __future__ import annotations

from typing import Final

from immutables import Map

from penelope.policy import Config, NodeId, ReceiptId, acquire, empty, insert, match, pack
from penelope.policy.draft import Draft
from penelope.policy.state import ON_SPLIT, Node

KEY: Final = pack(range(6))


def test_every_field_of_a_node_has_a_declared_fate() -> None:
    assert set(ON_SPLIT) == set(Node._fields)


def test_a_split_does_what_the_declaration_says() -> None:
    state = insert(empty(Config(16)), KEY).state
    state = acquire(state, match(state, KEY, at_most=6)).state
    draft = Draft(state)
    (node,) = (n for n in state.nodes.values() if not n.is_root)
    node = node._replace(branched=True, filler=ReceiptId(3), children=Map({b"edge": NodeId(9)}))
    upper, lower = draft.split(node, 2)
    # Listed field by field, so that each phrase of the declaration has its line here.
    assert (upper.id, lower.id) == (state.next_node, node.id)
    assert draft.next_node == state.next_node + 1
    assert (upper.parent, lower.parent) == (node.parent, upper.id)
    assert upper.namespace == lower.namespace == node.namespace
    assert (upper.start, upper.end, lower.start, lower.end) == (0, 2, 2, 6)
    assert upper.key is lower.key is node.key
    assert upper.residency is lower.residency is node.residency
    assert upper.locks == lower.locks == node.locks == 1
    assert upper.stamp == lower.stamp == node.stamp
    assert upper.children == Map({KEY[8:12]: lower.id})
    assert lower.children == node.children
    assert upper.filler == lower.filler == node.filler
    assert (upper.branched, lower.branched) == (False, True)
    root = draft.nodes[state.roots[node.namespace]]
    assert root.children == Map({KEY[:4]: upper.id})


def test_a_split_changes_no_counter() -> None:
    state = insert(empty(Config(16)), KEY).state
    split = acquire(state, match(state, KEY, at_most=3)).state
    assert split.totals._replace(locked=0) == state.totals
    assert split.totals.locked == 3
