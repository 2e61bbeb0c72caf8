"""The moves of eviction: split, drop, remove, merge."""

from __future__ import annotations

from typing import Final

from penelope_spec.formulas import chain_below, child, leaf, locked, victim
from penelope_spec.logic import CELL, NODE, RECEIPT, Element, Truth
from penelope_spec.relations import (
    Move,
    Setting,
    Variant,
    becomes,
    copied,
    gone,
    inherited,
    swapped,
    unchanged,
)

# Split: `n` gives the head of its span to a new node `u` above it


def _above_split(w: Setting, a: Element, b: Element) -> Truth:
    logic, above = w.logic, w.before.above
    return logic.either(
        logic.both(logic.differ(a, w["u"]), logic.differ(b, w["u"]), above(a, b)),
        logic.both(logic.same(a, w["u"]), logic.either(logic.same(b, w["u"]), above(w["n"], b))),
        logic.both(
            logic.same(b, w["u"]),
            logic.differ(a, w["u"]),
            logic.differ(a, w["n"]),
            above(a, w["n"]),
        ),
    )


def _owns_split(w: Setting) -> Truth:
    """The cells of `n` are divided between the two: the first ones to `u`."""
    logic, before, after = w.logic, w.before, w.after
    n, u = w["n"], w["u"]
    others = logic.forall(
        (NODE, CELL),
        lambda x, c: logic.implies(
            logic.both(logic.differ(x, n), logic.differ(x, u)),
            logic.iff(after.owns(x, c), before.owns(x, c)),
        ),
    )
    divided = logic.forall(
        (CELL,),
        lambda c: logic.both(
            logic.iff(before.owns(n, c), logic.either(after.owns(n, c), after.owns(u, c))),
            logic.no(logic.both(after.owns(n, c), after.owns(u, c))),
        ),
    )
    in_order = logic.forall(
        (CELL, CELL),
        lambda c, d: logic.implies(
            logic.both(after.owns(u, c), after.owns(n, d)), before.prefix(c, d)
        ),
    )
    return logic.both(others, divided, in_order)


SPLIT: Final = Move(
    "split",
    {"n": NODE, "u": NODE},
    {
        "n has a span": lambda w: w.logic.both(
            w.before.tree(w["n"]), w.logic.no(w.before.root(w["n"]))
        ),
        "u is new": lambda w: w.logic.no(w.before.tree(w["u"])),
    },
    {
        "tree": becomes(
            "tree", lambda w, x: w.logic.either(w.before.tree(x), w.logic.same(x, w["u"]))
        ),
        "above": becomes("above", _above_split),
        "device": copied("device", "u", "n"),
        "host": copied("host", "u", "n"),
        "covers": copied("covers", "u", "n"),
        "filler": copied("filler", "u", "n"),
        "carries": copied("carries", "u", "n"),
        "owns": _owns_split,
        "twin": becomes("twin", lambda w, x, y: swapped(w, x, y, w["u"], w["n"])),
    },
    {
        "split leaves the upper half unlocked": Variant(
            ("lock-balance",), {"covers": unchanged("covers")}
        ),
        "split leaves the span with both halves": Variant(
            ("one-copy",), {"owns": copied("owns", "u", "n")}
        ),
        "split loses the KV of the upper half": Variant(
            ("no-in-use-eviction", "no-shared-eviction"), {"device": unchanged("device")}
        ),
        "split leaves the mark of a move with the lower half": Variant(
            ("in-flight", "span of a move"), {"carries": unchanged("carries")}
        ),
        "split gives KV to the upper half of a hole": Variant(
            ("in-flight",),
            {
                "device": becomes(
                    "device",
                    lambda w, x: w.logic.either(w.before.device(x), w.logic.same(x, w["u"])),
                )
            },
        ),
    },
)


# Drop: the KV of `n`, on the history that ends in `l`

DROP: Final = Move(
    "drop",
    {"n": NODE, "l": NODE},
    {
        "n has KV": lambda w: w.before.kv(w["n"]),
        "n is not locked": lambda w: w.logic.no(locked(w.logic, w.before, w["n"])),
        "n is not shared": lambda w: chain_below(w.logic, w.before, w["n"]),
        "n is on the history of l": lambda w: w.before.above(w["n"], w["l"]),
        "l is a victim": lambda w: victim(w.logic, w.before, w["l"]),
    },
    {"device": gone("device", "n"), "host": gone("host", "n")},
    {
        "drop forgets the locks": Variant(
            ("no-in-use-eviction",), {"n is not locked": None, "l is a victim": None}
        ),
        "drop forgets a second child": Variant(("no-shared-eviction",), {"n is not shared": None}),
        "drop forgets the tokens too": Variant(
            ("labels", "history-intact"),
            {
                **{name: gone(name, "n") for name in ("tree", "above", "device", "host", "owns")},
                "n is not shared": None,
            },
        ),
    },
)

# Remove: the leaf `n`, worth nothing without KV, leaves the tree; `p` is its parent


def _parent_of(w: Setting) -> Truth:
    logic = w.logic
    return logic.either(
        logic.both(logic.no(w.before.root(w["n"])), child(logic, w.before, w["p"], w["n"])),
        logic.both(w.before.root(w["n"]), logic.same(w["p"], w["n"])),
    )


REMOVE: Final = Move(
    "remove",
    {"n": NODE, "p": NODE},
    {
        "p is the parent of n, or n a root": _parent_of,
        "n is a leaf": lambda w: leaf(w.logic, w.before, w["n"]),
        "n is not locked": lambda w: w.logic.no(locked(w.logic, w.before, w["n"])),
        "n has no KV": lambda w: w.logic.no(w.before.kv(w["n"])),
    },
    {
        "tree": gone("tree", "n"),
        "above": gone("above", "n"),
        "root": gone("root", "n"),
        "owns": gone("owns", "n"),
        "twin": inherited("p", "n", "n"),
    },
    {
        "remove takes an inner node": Variant(("labels",), {"n is a leaf": None}),
        "remove takes KV with it": Variant(("history-intact",), {"n has no KV": None}),
        "remove takes an inner node with KV": Variant(
            ("no-shared-eviction",), {"n is a leaf": None, "n has no KV": None}
        ),
        "remove takes a locked hole": Variant(("lock-balance",), {"n is not locked": None}),
    },
)


# Merge: `n`, the only child of `u`, takes over the span of `u`

MERGE: Final = Move(
    "merge",
    {"n": NODE, "u": NODE},
    {
        "u has a span": lambda w: w.logic.no(w.before.root(w["u"])),
        "n is a child of u": lambda w: child(w.logic, w.before, w["u"], w["n"]),
        "n is the only one": lambda w: w.logic.forall(
            (NODE,),
            lambda m: w.logic.implies(
                w.logic.both(w.before.above(w["u"], m), w.logic.differ(m, w["u"])),
                w.before.above(w["n"], m),
            ),
        ),
        "both have KV or neither": lambda w: w.logic.iff(w.before.kv(w["u"]), w.before.kv(w["n"])),
        "both are in the same tier": lambda w: w.logic.both(
            w.logic.iff(w.before.device(w["u"]), w.before.device(w["n"])),
            w.logic.iff(w.before.host(w["u"]), w.before.host(w["n"])),
        ),
        "both have the same locks": lambda w: w.logic.forall(
            (RECEIPT,),
            lambda r: w.logic.iff(w.before.covers(r, w["u"]), w.before.covers(r, w["n"])),
        ),
        "both are moved by the same": lambda w: w.logic.forall(
            (RECEIPT,),
            lambda r: w.logic.iff(w.before.carries(r, w["u"]), w.before.carries(r, w["n"])),
        ),
        "both are in flight for the same": lambda w: w.logic.forall(
            (RECEIPT,),
            lambda r: w.logic.iff(w.before.filler(r, w["u"]), w.before.filler(r, w["n"])),
        ),
    },
    {
        **{
            relation: gone(relation, "u")
            for relation in ("tree", "above", "device", "host", "covers", "filler", "carries")
        },
        "owns": becomes(
            "owns",
            lambda w, x, c: w.logic.both(
                w.logic.differ(x, w["u"]),
                w.logic.either(
                    w.before.owns(x, c),
                    w.logic.both(w.logic.same(x, w["n"]), w.before.owns(w["u"], c)),
                ),
            ),
        ),
        "twin": inherited("n", "u", "u"),
    },
    {
        "merge ignores locks": Variant(("lock-balance",), {"both have the same locks": None}),
        "merge ignores residency": Variant(
            ("history-intact",),
            {"both have KV or neither": None, "both are in the same tier": None},
        ),
        "merge ignores the tier": Variant(("history-intact",), {"both are in the same tier": None}),
        "merge ignores a move": Variant(("span of a move",), {"both are moved by the same": None}),
        "merge ignores a second child": Variant(("labels",), {"n is the only one": None}),
        "merge forgets the upper span": Variant(("labels",), {"owns": gone("owns", "u")}),
    },
)
