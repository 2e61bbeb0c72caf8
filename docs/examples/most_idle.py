"""A policy of one's own, in a comparison: the head of whichever history has most of it to give.

    cd docs/examples
    penelope replay --policy penelope,most_idle:make

Matches, locks, accounts and what may be evicted at all are the core's; this only says whose KV goes
next.  It looks at every history at each choice, which no engine should.
"""

from __future__ import annotations

from penelope.policy import Config, NodeId, private_span
from penelope.policy.draft import Draft
from penelope.runtime.replay.others import CHUNK, ChoosingCache


class MostIdle(ChoosingCache):
    def _victim(self, draft: Draft) -> tuple[NodeId, int]:
        """The history with the longest private span; of equals the least recently used."""
        longest, chosen = 0, None
        for _, leaf in draft.victims.in_order():
            span, _ = private_span(draft.config, draft.nodes, leaf)
            length = sum(draft.nodes[node].length for node in span)
            if length > longest:
                longest, chosen = length, leaf
        assert chosen is not None, "it is asked only while there is something to evict"
        return chosen, CHUNK * draft.config.block_size


def make(config: Config, unit_tokens: int) -> MostIdle:
    """Called once a replay; `config` is that of `make.base`, `penelope` if it is not said."""
    del unit_tokens
    return MostIdle(config)
