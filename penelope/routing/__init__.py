"""Where would this request be cheapest?  A score for routers that knows costs and queues.

    index = FleetIndex(["a", "b"])                   # follows the replicas' KV events
    index.stored("a", [11, 12, 13])                  # block hashes, in the order of the history
    held = index.held([11, 12, 13, 14])              # {"a": [(0, 3)]}, in blocks
    best = choose(model, 256, candidates(held, ["a", "b"], block=64, queued={"a": 5}))
    best.name, best.cost, best.missing

`choose` alone takes spans from any index: see `Candidate`.  It needs nothing but the cost model.
"""

from penelope.routing.index import FleetIndex
from penelope.routing.scoring import (
    Candidate,
    Quote,
    RoutingError,
    candidates,
    choose,
    missing,
    quote,
)

__all__ = [
    "Candidate",
    "FleetIndex",
    "Quote",
    "RoutingError",
    "candidates",
    "choose",
    "missing",
    "quote",
]
