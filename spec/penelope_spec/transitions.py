"""Which moves make up which transition."""

from __future__ import annotations

from typing import Final

from penelope_spec.eviction_moves import DROP, MERGE, REMOVE, SPLIT
from penelope_spec.relations import Move
from penelope_spec.tier_moves import ABANDON, ARRIVE, DEPART, HOIST, RESET
from penelope_spec.use_moves import EXTEND, FILL, GROW, LOCK, PLANT, STAMP, UNDERTAKE, UNLOCK

MOVES: Final = (
    SPLIT,
    DROP,
    REMOVE,
    MERGE,
    LOCK,
    EXTEND,
    UNLOCK,
    UNDERTAKE,
    FILL,
    GROW,
    PLANT,
    STAMP,
    DEPART,
    ARRIVE,
    ABANDON,
    HOIST,
)

_EVICTION: Final = (SPLIT, DROP, REMOVE, MERGE, HOIST)
MOVES_OF: Final[dict[str, tuple[Move, ...]]] = {
    "match": (),
    "plan": (),
    "touch": (SPLIT, STAMP, HOIST, MERGE),
    "insert": (PLANT, SPLIT, FILL, GROW, STAMP, MERGE),
    "checkpoint": (SPLIT, FILL, GROW, STAMP, HOIST, EXTEND, MERGE),
    "acquire": (PLANT, SPLIT, LOCK),
    "release": (UNLOCK, REMOVE, MERGE),
    "admit": (PLANT, SPLIT, STAMP, HOIST, LOCK, UNDERTAKE, DROP, REMOVE, MERGE),
    "reserve": _EVICTION,
    "refill": (SPLIT, FILL, MERGE),
    "evict": _EVICTION,
    "reset": (RESET,),
    "begin_move": (SPLIT, DEPART),
    "end_move": (ARRIVE, HOIST, MERGE),
    "fail_move": (ABANDON, MERGE),
    "settle_promise": (),
    "forgo_promise": (),
    "line_up": (),
    "retire": (),
}
"""Every accepted transition is a sequence of these moves."""
