"""SGLang's KV placement events, from the core's effects.

Routers keep a map of which blocks a worker holds.  What they are told, and why
a hole is not withdrawn, is decided in `penelope.runtime.announcing`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from sglang.srt.disaggregation.kv_events import StorageMedium
from sglang.srt.mem_cache.events import KVCacheEventRecorder
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import compute_node_hash_values

from penelope.policy import UNIT_BYTES, Effect, Residency, State
from penelope.runtime.announcing import Announce, Announcement, announcements
from penelope.sglang_adapter.paths import extra_key_of, weights_of

if TYPE_CHECKING:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams


_MEDIA: Final = {Residency.DEVICE: StorageMedium.GPU, Residency.HOST: StorageMedium.CPU}


class _Label:
    """As much of a tree node as SGLang's recorder reads."""

    def __init__(self, key: Any, parent: _Label | None) -> None:
        self.key = key
        self.parent = parent
        self.hash_value: list[str] | None = None
        self.event_hash_value: list[str] | None = None


class PlacementEvents:
    def __init__(self, params: CacheInitParams, mode: Announce = Announce.STICKY) -> None:
        self._mode = mode
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
        """Announce what a transition changes for routers, in the order in which it happened."""
        if not self.recorder.enabled:
            return
        for told in announcements(self._mode, before, after, effects):
            if weights_of(told.namespace) != self._weights:
                continue
            tell = self.recorder.record_store if told.stored else self.recorder.record_remove
            tell(self._label(told), _MEDIA[told.tier])

    def _label(self, told: Announcement) -> _Label:
        """The span below its whole history: a block's hash chains from the beginning.

        Hashing the history again costs about a millisecond for 100,000 tokens, only where
        events are on, and saves keeping the hashes of every node through splits and merges.
        """
        above = root = _Label(_radix_key(told, 0, 0), None)
        root.hash_value = []
        if told.start:
            above = _Label(_radix_key(told, 0, told.start), root)
            above.hash_value = compute_node_hash_values(above, self.recorder.page_size)
        return _Label(_radix_key(told, told.start, told.end), above)


def _radix_key(told: Announcement, start: int, end: int) -> RadixKey:
    units = array("I")
    units.frombytes(told.key[start * UNIT_BYTES : end * UNIT_BYTES])
    return RadixKey(
        array("q", units),
        extra_key=extra_key_of(told.namespace),
        cache_salt=told.namespace.salt,
    )
