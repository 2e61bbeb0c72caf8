"""A baseline: two exclusive tiers, each of which evicts on its own.

The device gives up what Penelope's would, the head of the least recently used private history,
but to a host that makes room for it by itself, by the same rule among what lies there.  What is
finally lost is therefore chosen by where it lies: a head that is demoted into a full host costs
a later, dearer part of, perhaps, the same history.
"""

from __future__ import annotations

from dataclasses import replace

from penelope.policy import Config, NodeId, Plan, Receipt, Residency, State, private_span
from penelope.policy.draft import Draft
from penelope.policy.eviction import head_target
from penelope.runtime.replay.caches import CoreCache


class IndependentTiers(CoreCache):
    """The core's matches, locks and moves; only the choice of what is lost is the tiers' own."""

    def __init__(self, config: Config) -> None:
        # The core is told of a host that can take all that the device has, so that its own order
        # drops nothing; what the host really keeps is looked after here.
        room = config.device_capacity + config.swap_buffer
        super().__init__(replace(config, host_capacity=config.host_capacity + room))
        self._keeps = config.host_resident

    def _needed(self, plan: Plan) -> int:
        fresh = plan.compute
        both = self.state.config.device_capacity + self._keeps
        return max(0, self.state.logical_used + fresh - both)

    def _drop_for_moves(self, receipt: Receipt) -> int:
        """Make room on the host for all that the device is going to send it.

        Each tier sees itself only: the host does not count on what promotion will take from it.
        """
        lease = self.state.leases[receipt.id]
        coming = max(0, lease.due + lease.promote - self.state.free)
        over = self.state.host_used + coming - self._keeps
        dropped = 0
        while dropped < over:
            self.state, units = _drop_on_host(self.state, over - dropped)
            if not units:
                break  # all that is left there is about to be promoted, or has not come yet
            dropped += units
        return dropped


def _drop_on_host(state: State, need: int) -> tuple[State, int]:
    """Drop up to `need` units, in whole blocks, from the head of the host's oldest history."""
    found = _host_head(state)
    if found is None:
        return state, 0
    draft = Draft(state)
    node = draft.nodes[found]
    target = head_target(state.config, node.start, need)
    if target < node.end:
        node, _ = draft.split(node, target)
    draft.drop(node)
    if node.children:
        draft.merge_each([node.id])
    else:
        draft.prune(node.id)
    return draft.close()[0], node.length


def _host_head(state: State) -> NodeId | None:
    """The first span on the host of the least recently used history that has one there."""
    for _, leaf in state.victims.in_order():
        span, _ = private_span(state.config, state.nodes, leaf)
        for node_id in span:
            if state.nodes[node_id].residency is Residency.HOST:
                return node_id
    # Above a hole or a branch, where no walk begins while the device has what is below.
    idle = [
        node for node in state.nodes.values() if node.residency is Residency.HOST and not node.locks
    ]
    oldest = min(idle, key=lambda node: (node.stamp, -node.start, node.id), default=None)
    return None if oldest is None else oldest.id
