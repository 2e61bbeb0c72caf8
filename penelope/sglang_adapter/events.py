"""SGLang's KV placement events, from the core's effects.

Routers keep a map of which blocks a worker holds.  A block is announced when
its KV arrives in a tier (also when a hole is refilled) and withdrawn when it
goes, so replaying the events gives exactly the resident blocks of each tier.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from sglang.srt.disaggregation.kv_events import StorageMedium
from sglang.srt.mem_cache.events import KVCacheEventRecorder
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import compute_node_hash_values

from penelope.policy import (
    UNIT_BYTES,
    Adopt,
    Effect,
    Free,
    Merge,
    Moved,
    Node,
    NodeId,
    Residency,
    State,
)
from penelope.sglang_adapter.paths import extra_key_of, weights_of

if TYPE_CHECKING:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams


_MEDIA: Final = {Residency.DEVICE: StorageMedium.GPU, Residency.HOST: StorageMedium.CPU}
_OTHER: Final = {Residency.DEVICE: Residency.HOST, Residency.HOST: Residency.DEVICE}


class _Label:
    """As much of a tree node as SGLang's recorder reads."""

    def __init__(self, key: Any, parent: _Label | None) -> None:
        self.key = key
        self.parent = parent
        self.hash_value: list[str] | None = None
        self.event_hash_value: list[str] | None = None


class PlacementEvents:
    def __init__(self, params: CacheInitParams) -> None:
        self.recorder = KVCacheEventRecorder(
            enabled=params.enable_kv_cache_events,
            page_size=params.page_size,
            dynamo_format=params.dynamo_kv_event_format,
            lora_names=params.kv_event_lora_names,
        )
        self._weights = 0
        self.recorder.record_all_cleared()

    def cleared(self, weights: int) -> None:
        """Nothing is held any more; KV of other weights than these is not spoken of again.

        A request that runs on keeps such KV, under hashes that new KV will have.
        """
        self._weights = weights
        self.recorder.record_all_cleared()

    def record(self, before: State, after: State, effects: Iterable[Effect]) -> None:
        """Announce what the effects adopted and withdraw what they freed, in their order."""
        if not self.recorder.enabled:
            return
        survivor: dict[NodeId, NodeId] = {}
        for effect in effects:
            if isinstance(effect, Merge):
                survivor[effect.upper] = effect.node
        for effect in effects:
            if isinstance(effect, Adopt | Free | Moved):
                node = _holder(before, after, survivor, effect.node)
                if weights_of(node.namespace) != self._weights:
                    continue
                label = self._label(node, effect.start, effect.end)
                match effect:
                    case Adopt():
                        self.recorder.record_store(label, _MEDIA[Residency.DEVICE])
                    case Free(tier=tier):
                        self.recorder.record_remove(label, _MEDIA[tier])
                    case Moved(target=target):
                        # Announced where it is before it is withdrawn from where it was.
                        self.recorder.record_store(label, _MEDIA[target])
                        self.recorder.record_remove(label, _MEDIA[_OTHER[target]])

    def _label(self, node: Node, start: int, end: int) -> _Label:
        """The span below its whole history: a block's hash chains from the beginning.

        Hashing the history again costs about a millisecond for 100,000 tokens, only where
        events are on, and saves keeping the hashes of every node through splits and merges.
        """
        above = root = _Label(_radix_key(node, 0, 0), None)
        root.hash_value = []
        if start:
            above = _Label(_radix_key(node, 0, start), root)
            above.hash_value = compute_node_hash_values(above, self.recorder.page_size)
        return _Label(_radix_key(node, start, end), above)


def _holder(before: State, after: State, survivor: dict[NodeId, NodeId], node: NodeId) -> Node:
    """A node whose key runs through the span: the node itself, or the one it merged into.

    An effect may name a node that the same transition made and merged or pruned again.
    """
    while node in survivor:
        node = survivor[node]
    return after.nodes[node] if node in after.nodes else before.nodes[node]


def _radix_key(node: Node, start: int, end: int) -> RadixKey:
    units = array("I")
    units.frombytes(node.key[start * UNIT_BYTES : end * UNIT_BYTES])
    return RadixKey(
        array("q", units),
        extra_key=extra_key_of(node.namespace),
        cache_salt=node.namespace.salt,
    )
