"""The moves between the tiers: depart, arrive, abandon, and hoist.

A move in flight is a holder of locks: `m` is a receipt that nobody but the core has.
"""

from __future__ import annotations

from typing import Final

from penelope_spec.formulas import locked, moved
from penelope_spec.logic import NODE, RECEIPT, RELATIONS, Element, Truth
from penelope_spec.relations import Claim, Move, Setting, Variant, becomes, gone, swapped, unchanged


def _with_m(relation: str) -> Claim:
    """And `m` is there, at `n`."""
    return becomes(
        relation,
        lambda w, q, x: w.logic.either(
            w.logic.atom(w.before.name, relation, q, x),
            w.logic.both(w.logic.same(q, w["m"]), w.logic.same(x, w["n"])),
        ),
    )


def _without_m(relation: str) -> Claim:
    return becomes(
        relation,
        lambda w, q, x: w.logic.both(
            w.logic.atom(w.before.name, relation, q, x), w.logic.differ(q, w["m"])
        ),
    )


DEPART: Final = Move(
    "depart",
    {"m": RECEIPT, "n": NODE},
    {
        "m is new": lambda w: w.logic.forall(
            (NODE,), lambda x: w.logic.no(w.before.lease(w["m"], x))
        ),
        "n has KV": lambda w: w.before.kv(w["n"]),
        "n is not moved": lambda w: w.logic.no(moved(w.logic, w.before, w["n"])),
        "what leaves the device is not locked": lambda w: w.logic.implies(
            w.before.device(w["n"]), w.logic.no(locked(w.logic, w.before, w["n"]))
        ),
    },
    {
        "lease": _with_m("lease"),
        "carries": _with_m("carries"),
        "covers": becomes(
            "covers",
            lambda w, q, x: w.logic.either(
                w.before.covers(q, x),
                w.logic.both(w.logic.same(q, w["m"]), w.before.above(x, w["n"])),
            ),
        ),
    },
    {
        "depart takes a locked span off the device": Variant(
            ("in-flight",), {"what leaves the device is not locked": None}
        ),
        "depart takes what is moved already": Variant(("in-flight",), {"n is not moved": None}),
        "depart frees what it copies from": Variant(
            ("moves-do-not-evict",), {"device": gone("device", "n"), "host": gone("host", "n")}
        ),
        "depart locks nothing": Variant(
            ("lock-balance", "in-flight"), {"covers": unchanged("covers")}
        ),
    },
)

_ENDING: Final[dict[str, Claim]] = {
    "m is in flight": lambda w: w.before.lease(w["m"], w["n"]),
    "m takes n": lambda w: w.before.carries(w["m"], w["n"]),
}


def _arrived(tier: str, other: str) -> Claim:
    """What m carries is where it was not, and no longer where it was."""

    def rule(w: Setting, x: Element) -> Truth:
        logic, carried = w.logic, w.before.carries(w["m"], x)
        return logic.either(
            logic.both(carried, logic.atom(w.before.name, other, x)),
            logic.both(logic.no(carried), logic.atom(w.before.name, tier, x)),
        )

    return becomes(tier, rule)


def _copied_in(w: Setting, x: Element) -> Truth:
    """On the device, and what m carries as well."""
    return w.logic.either(w.before.device(x), w.before.carries(w["m"], x))


def _given_up(tier: str) -> Claim:
    return becomes(
        tier,
        lambda w, x: w.logic.both(
            w.logic.atom(w.before.name, tier, x), w.logic.no(w.before.carries(w["m"], x))
        ),
    )


ARRIVE: Final = Move(
    "arrive",
    {"m": RECEIPT, "n": NODE},
    _ENDING,
    {
        "device": _arrived("device", "host"),
        "host": _arrived("host", "device"),
        "lease": _without_m("lease"),
        "covers": _without_m("covers"),
        "carries": _without_m("carries"),
    },
    {
        "arrive keeps the host copy of what is promoted": Variant(
            ("one-copy",), {"device": becomes("device", _copied_in), "host": unchanged("host")}
        ),
        "arrive frees both copies": Variant(
            ("moves-do-not-evict",), {"device": _given_up("device"), "host": _given_up("host")}
        ),
        "arrive keeps its locks": Variant(("lock-balance",), {"covers": unchanged("covers")}),
        "arrive keeps its mark": Variant(("in-flight",), {"carries": unchanged("carries")}),
    },
)

ABANDON: Final = Move(
    "abandon",
    {"m": RECEIPT, "n": NODE},
    _ENDING,
    {
        "lease": _without_m("lease"),
        "covers": _without_m("covers"),
        "carries": _without_m("carries"),
    },
    {
        "abandon frees the copy that it has": Variant(
            ("moves-do-not-evict",), {"device": _given_up("device"), "host": _given_up("host")}
        ),
        "abandon keeps its locks": Variant(("lock-balance",), {"covers": unchanged("covers")}),
        "abandon keeps its mark": Variant(("in-flight",), {"carries": unchanged("carries")}),
    },
)

# Hoist: `p` gets the stamp of `n` below it, when the last device KV below it has gone

HOIST: Final = Move(
    "hoist",
    {"p": NODE, "n": NODE},
    {
        "p has a span": lambda w: w.logic.both(
            w.before.tree(w["p"]), w.logic.no(w.before.root(w["p"]))
        ),
        "n is below p": lambda w: w.before.above(w["p"], w["n"]),
    },
    {"twin": becomes("twin", lambda w, x, y: swapped(w, x, y, w["p"], w["n"]))},
    {"hoist takes a stamp from elsewhere": Variant(("victim-order",), {"n is below p": None})},
)

# Reset: everything goes, while nothing is held

RESET: Final = Move(
    "reset",
    {},
    {
        "nothing is held": lambda w: w.logic.forall(
            (RECEIPT, NODE), lambda r, n: w.logic.no(w.before.lease(r, n))
        )
    },
    {relation: becomes(relation, lambda w, *_: w.logic.either()) for relation in RELATIONS},
)
"""No relation holds of anything afterwards."""
