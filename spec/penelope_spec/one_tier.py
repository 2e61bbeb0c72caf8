"""`unified-order`: the same step where all KV lies in one tier drops the same.

The state before is drawn again with one tier as large as both together, everything on it, and the
same step is taken there.  Whatever differs in what is dropped then depends on where KV lay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from immutables import Map

from penelope.policy import (
    Config,
    Key,
    Namespace,
    NodeId,
    Plan,
    Receipt,
    ReceiptId,
    Refused,
    Residency,
    State,
    admit,
    evict,
    match,
    reserve,
)
from penelope.policy.ticks import TickMap
from penelope_spec.balance import recount
from penelope_spec.facts import EVICTING, Happened
from penelope_spec.structure import preorder

Page = tuple[Namespace, bytes]
"""A page of a history, and all before it."""
_SOME: Final = 3
"""How many pages a violation names."""


def unified_order(happened: Happened) -> list[str]:
    """What a step drops is what it drops when all KV lies in one tier."""
    before = happened.before
    if happened.transition not in EVICTING or not before.config.host_capacity:
        return []
    dropped = resident(before) - resident(happened.after)
    alike = one_tier(before)
    try:
        expected = resident(alike) - resident(_step(happened, alike))
    except (Refused, AssertionError) as error:
        return [f"with all KV in one tier {happened.transition} fails: {error}"]
    return [
        f"{len(pages)} pages are dropped {where}: {', '.join(_named(before, pages))}"
        for where, pages in (
            ("that would stay if all KV lay in one tier", dropped - expected),
            ("only if all KV lies in one tier", expected - dropped),
        )
        if pages
    ]


def one_tier(state: State) -> State:
    """The same histories, locks and recency, all KV on a device as large as both tiers."""
    config = state.config
    single = Config(
        config.logical_capacity,
        config.page_size,
        config.block_size,
        config.position,
        config.granularity,
        config.sticky_shared,
        config.unit_bytes,
        order=config.order,
        linear_cost=config.linear_cost,
    )
    nodes = state.nodes
    for node in preorder(state):
        residency = Residency.DEVICE if node.residency is Residency.HOST else node.residency
        nodes = nodes.set(node.id, node._replace(residency=residency, move=None, device_below=0))
    leases = state.leases
    for receipt, lease in state.leases.items():
        held = lease._replace(reserved=lease.reserved + lease.due, due=0, promote=0)
        leases = leases.set(receipt, held)
    # Moves in flight leave their locks behind: what they move is not dropped in one tier either.
    alike = replace(
        state, config=single, nodes=nodes, leases=leases, moves=Map(), demotable=TickMap()
    )
    return replace(alike, totals=recount(alike))


def _step(happened: Happened, alike: State) -> State:
    facts = happened.facts
    if happened.transition == "evict":
        return evict(alike, facts["need"]).state
    if happened.transition == "reserve":
        return reserve(alike, _asking(happened), facts["units"]).state
    planned = facts["plan"]
    return admit(alike, _planned(planned, alike)).state


def _asking(happened: Happened) -> Receipt:
    """Whose reservation it is does not matter for what is dropped."""
    given = happened.facts.get("receipt")
    return given if given is not None else Receipt(min(happened.before.leases, default=_NOBODY))


_NOBODY: Final = ReceiptId(-1)


def _planned(planned: Plan, alike: State) -> Plan:
    """The same request planned where all KV is in one tier: nothing is to be promoted there.

    What is held outside the tree is asked for like the rest: an exchange that was given up may
    have left so much in the swap buffer that there is no room for it until KV is dropped.
    """
    asked = planned.match
    found = match(alike, asked.key, asked.namespace, at_most=asked.end)
    return Plan(found, planned.held + planned.compute)


def resident(state: State) -> set[Page]:
    """Every page whose KV exists, in either tier."""
    page, width = state.config.page_size, state.config.unit_bytes
    return {
        (node.namespace, Key(node.key[: end * width]))
        for node in state.nodes.values()
        if node.residency is not Residency.HOLE and not node.is_root
        for end in range(node.start + page, node.end + 1, page)
    }


def _named(state: State, pages: set[Page]) -> list[str]:
    """The first few, by the node that they were part of."""
    width = state.config.unit_bytes
    found: list[tuple[NodeId, int]] = []
    for node in state.nodes.values():
        for namespace, history in pages:
            end = len(history) // width
            if (
                node.namespace == namespace
                and node.start < end <= node.end
                and node.key[: len(history)] == history
            ):
                found.append((node.id, end))
    named = [f"node {node} to {end}" for node, end in sorted(found)[:_SOME]]
    return [*named, "…"] if len(found) > _SOME else named
