"""The moves of use: receipts, KV that comes, recency."""

from __future__ import annotations

from typing import Final

from penelope_spec.formulas import hole, is_move, moved, none_leaving_above
from penelope_spec.logic import CELL, NODE, RECEIPT, Truth
from penelope_spec.relations import Move, Setting, Variant, becomes, gone, unchanged

# Receipts

LOCK: Final = Move(
    "lock",
    {"r": RECEIPT, "n": NODE},
    {
        "n exists": lambda w: w.before.tree(w["n"]),
        "r is new": lambda w: w.logic.forall(
            (NODE,), lambda m: w.logic.no(w.before.lease(w["r"], m))
        ),
        "nothing on the path is leaving": lambda w: none_leaving_above(w.logic, w.before, w["n"]),
    },
    {
        "lease": becomes(
            "lease",
            lambda w, q, m: w.logic.either(
                w.before.lease(q, m), w.logic.both(w.logic.same(q, w["r"]), w.logic.same(m, w["n"]))
            ),
        ),
        "covers": becomes(
            "covers",
            lambda w, q, m: w.logic.either(
                w.before.covers(q, m),
                w.logic.both(w.logic.same(q, w["r"]), w.before.above(m, w["n"])),
            ),
        ),
    },
    {
        "lock counts only where it ends": Variant(
            ("lock-balance",),
            {
                "covers": becomes(
                    "covers",
                    lambda w, q, m: w.logic.either(
                        w.before.covers(q, m),
                        w.logic.both(w.logic.same(q, w["r"]), w.logic.same(m, w["n"])),
                    ),
                )
            },
        ),
        "lock what is leaving": Variant(("in-flight",), {"nothing on the path is leaving": None}),
    },
)

EXTEND: Final = Move(
    "extend",
    {"r": RECEIPT, "h": NODE, "n": NODE},
    {
        "r is live": lambda w: w.before.lease(w["r"], w["h"]),
        "r is no move": lambda w: w.logic.no(is_move(w.logic, w.before, w["r"])),
        "n continues the locked path": lambda w: w.before.above(w["h"], w["n"]),
        "nothing on the path is leaving": lambda w: none_leaving_above(w.logic, w.before, w["n"]),
    },
    {
        "lease": becomes(
            "lease",
            lambda w, q, m: w.logic.either(
                w.logic.both(w.logic.differ(q, w["r"]), w.before.lease(q, m)),
                w.logic.both(w.logic.same(q, w["r"]), w.logic.same(m, w["n"])),
            ),
        ),
        "covers": LOCK.effects["covers"],
    },
    {
        "extend leaves the locked path": Variant(
            ("lock-balance",), {"n continues the locked path": None}
        )
    },
)

UNLOCK: Final = Move(
    "unlock",
    {"r": RECEIPT, "n": NODE},
    {
        "r is live": lambda w: w.before.lease(w["r"], w["n"]),
        "r is no move": lambda w: w.logic.no(is_move(w.logic, w.before, w["r"])),
    },
    {
        "lease": becomes(
            "lease", lambda w, q, m: w.logic.both(w.before.lease(q, m), w.logic.differ(q, w["r"]))
        ),
        "covers": becomes(
            "covers",
            lambda w, q, m: w.logic.both(
                w.before.covers(q, m),
                w.logic.no(w.logic.both(w.logic.same(q, w["r"]), w.before.above(m, w["n"]))),
            ),
        ),
        "filler": becomes(
            "filler", lambda w, q, m: w.logic.both(w.before.filler(q, m), w.logic.differ(q, w["r"]))
        ),
    },
    {
        "unlock forgets what is in flight": Variant(
            ("in-flight",), {"filler": unchanged("filler")}
        ),
        "unlock needs no live receipt": Variant(("lock-balance",), {"r is live": None}),
    },
)

UNDERTAKE: Final = Move(
    "undertake",
    {"r": RECEIPT, "n": NODE},
    {
        "n is a hole": lambda w: hole(w.logic, w.before, w["n"]),
        "r is no move": lambda w: w.logic.no(is_move(w.logic, w.before, w["r"])),
        "r covers n": lambda w: w.before.covers(w["r"], w["n"]),
        "nobody refills n": lambda w: w.logic.forall(
            (RECEIPT,), lambda q: w.logic.no(w.before.filler(q, w["n"]))
        ),
    },
    {
        "filler": becomes(
            "filler",
            lambda w, q, m: w.logic.either(
                w.before.filler(q, m),
                w.logic.both(w.logic.same(q, w["r"]), w.logic.same(m, w["n"])),
            ),
        )
    },
    {"undertake what another refills": Variant(("in-flight",), {"nobody refills n": None})},
)


# KV that comes: a hole is filled, or a host copy makes way

FILL: Final = Move(
    "fill",
    {"n": NODE},
    {
        "n has a span": lambda w: w.logic.both(
            w.before.tree(w["n"]), w.logic.no(w.before.root(w["n"]))
        ),
        "n has no KV on the device": lambda w: w.logic.no(w.before.device(w["n"])),
        "n is not moved": lambda w: w.logic.no(moved(w.logic, w.before, w["n"])),
    },
    {
        "device": becomes(
            "device", lambda w, x: w.logic.either(w.before.device(x), w.logic.same(x, w["n"]))
        ),
        "host": gone("host", "n"),
        "filler": gone("filler", "n"),
    },
    {
        "fill stays in flight": Variant(("in-flight",), {"filler": unchanged("filler")}),
        "fill keeps the host copy": Variant(("one-copy",), {"host": unchanged("host")}),
        "fill meets a move": Variant(("in-flight",), {"n is not moved": None}),
    },
)


def _owns_grown(w: Setting) -> Truth:
    logic, before, after, new = w.logic, w.before, w.after, w["n"]
    return logic.both(
        logic.forall(
            (NODE, CELL),
            lambda x, c: logic.implies(
                logic.differ(x, new), logic.iff(after.owns(x, c), before.owns(x, c))
            ),
        ),
        logic.forall(
            (CELL, CELL),
            lambda c, d: logic.implies(
                logic.both(after.owns(new, c), after.owns(new, d)),
                logic.either(before.prefix(c, d), before.prefix(d, c)),
            ),
        ),
    )


GROW: Final = Move(
    "grow",
    {"p": NODE, "n": NODE},
    {
        "p exists": lambda w: w.before.tree(w["p"]),
        "n is new": lambda w: w.logic.no(w.before.tree(w["n"])),
        "the span is new": lambda w: w.logic.forall(
            (NODE, CELL),
            lambda m, c: w.logic.no(w.logic.both(w.after.owns(w["n"], c), w.before.owns(m, c))),
        ),
        "the span continues p's history": lambda w: w.logic.forall(
            (NODE, CELL, CELL),
            lambda m, c, d: w.logic.implies(
                w.logic.both(
                    w.after.owns(w["n"], c), w.before.owns(m, d), w.before.above(m, w["p"])
                ),
                w.before.prefix(d, c),
            ),
        ),
        "nothing is missing before the span": lambda w: w.logic.forall(
            (CELL, CELL),
            lambda c, d: w.logic.implies(
                w.logic.both(w.after.owns(w["n"], c), w.before.prefix(d, c)),
                w.logic.either(
                    w.after.owns(w["n"], d),
                    w.logic.exists(
                        (NODE,),
                        lambda m: w.logic.both(w.before.above(m, w["p"]), w.before.owns(m, d)),
                    ),
                ),
            ),
        ),
    },
    {
        "tree": becomes(
            "tree", lambda w, x: w.logic.either(w.before.tree(x), w.logic.same(x, w["n"]))
        ),
        "above": becomes(
            "above",
            lambda w, a, b: w.logic.either(
                w.before.above(a, b),
                w.logic.both(
                    w.logic.same(b, w["n"]),
                    w.logic.either(w.logic.same(a, w["n"]), w.before.above(a, w["p"])),
                ),
            ),
        ),
        "device": becomes(
            "device", lambda w, x: w.logic.either(w.before.device(x), w.logic.same(x, w["n"]))
        ),
        "owns": _owns_grown,
        "twin": becomes(
            "twin",
            lambda w, x, y: w.logic.either(
                w.before.twin(x, y), w.logic.both(w.logic.same(x, w["n"]), w.logic.same(y, w["n"]))
            ),
        ),
    },
    {
        "grow adopts what the tree has": Variant(("one-copy",), {"the span is new": None}),
        "grow leaves a gap before the span": Variant(
            ("labels",), {"nothing is missing before the span": None}
        ),
        "grow counts as a use of another history": Variant(
            ("victim-order",),
            {
                "twin": becomes(
                    "twin",
                    lambda w, x, y: w.logic.either(
                        w.before.twin(x, y),
                        w.logic.both(w.logic.same(x, w["n"]), w.before.tree(y)),
                    ),
                )
            },
        ),
    },
)

PLANT: Final = Move(
    "plant",
    {"n": NODE},
    {"n is new": lambda w: w.logic.no(w.before.tree(w["n"]))},
    {
        "tree": becomes(
            "tree", lambda w, x: w.logic.either(w.before.tree(x), w.logic.same(x, w["n"]))
        ),
        "root": becomes(
            "root", lambda w, x: w.logic.either(w.before.root(x), w.logic.same(x, w["n"]))
        ),
        "above": becomes(
            "above",
            lambda w, a, b: w.logic.either(
                w.before.above(a, b),
                w.logic.both(w.logic.same(a, w["n"]), w.logic.same(b, w["n"])),
            ),
        ),
    },
    {"plant a root in a tree": Variant(("ancestry",), {"n is new": None})},
)


# Use

STAMP: Final = Move(
    "stamp",
    {"n": NODE},
    {
        "n has a span": lambda w: w.logic.both(
            w.before.tree(w["n"]), w.logic.no(w.before.root(w["n"]))
        )
    },
    {
        "twin": becomes(
            "twin",
            lambda w, x, y: w.logic.either(
                w.logic.both(
                    w.logic.differ(x, w["n"]), w.logic.differ(y, w["n"]), w.before.twin(x, y)
                ),
                w.logic.both(w.logic.same(x, w["n"]), w.logic.same(y, w["n"])),
            ),
        )
    },
    {
        "stamp marks everything with one tick": Variant(
            ("victim-order",),
            {
                "twin": becomes(
                    "twin", lambda w, x, y: w.logic.both(w.before.tree(x), w.before.tree(y))
                )
            },
        )
    },
)
