"""A conformance suite for what is not ours: your KV store, or your whole cache.

    from penelope.testing import check_store
    print(check_store(MyStore.for_config))         # raises ConformanceError, or says what was done

    from penelope.testing import StoreSuite        # the same for pytest
    class TestMyStore(StoreSuite):
        def make_store(self, config): ...

It needs nothing but Penelope's core.  What failure looks like: docs/conformance.md.
"""

from penelope.testing.announced import Follower, check_announced
from penelope.testing.audit import audit
from penelope.testing.conformance import (
    ONE_TIER,
    TWO_TIERS,
    Report,
    check_cache,
    check_store,
)
from penelope.testing.errors import ConformanceError
from penelope.testing.inspect import InspectableStore, InspectableSymbolicStore
from penelope.testing.serving import Operation, ServingCache
from penelope.testing.suite import StoreSuite

__all__ = [
    "ONE_TIER",
    "TWO_TIERS",
    "ConformanceError",
    "Follower",
    "InspectableStore",
    "InspectableSymbolicStore",
    "Operation",
    "Report",
    "ServingCache",
    "StoreSuite",
    "audit",
    "check_announced",
    "check_cache",
    "check_store",
]
