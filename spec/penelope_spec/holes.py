"""Theorems about what holes lead to, and about progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penelope_spec import formulas
from penelope_spec.assumptions import after, assumed, before
from penelope_spec.eviction_moves import DROP, SPLIT
from penelope_spec.formulas import dangles, leaf, locked, victim
from penelope_spec.logic import NODE, RECEIPT, Element, Truth
from penelope_spec.relational import Relational
from penelope_spec.relations import Claim, Move, Setting
from penelope_spec.use_moves import UNLOCK

# Holes


def _only_above(view: str, end: str) -> Claim:
    """Of unlocked holes, only ancestors of `end` may lead nowhere."""

    def claim(w: Setting) -> Truth:
        s = w.before if view == "before" else w.after
        return w.logic.forall(
            (NODE,),
            lambda n: w.logic.implies(dangles(w.logic, s, n), w.before.above(n, w[end])),
        )

    return claim


def _dying(w: Setting, n: Element) -> Truth:
    """All at and below n are unlocked, without KV, and on the path to the start."""
    logic, s = w.logic, w.before
    return logic.both(
        s.above(n, w["l"]),
        logic.forall(
            (NODE,),
            lambda m: logic.implies(
                s.above(n, m),
                logic.both(s.above(m, w["l"]), logic.no(s.kv(m)), logic.no(locked(logic, s, m))),
            ),
        ),
    )


def _roots_first(w: Setting) -> Truth:
    return w.logic.forall(
        (NODE, NODE),
        lambda a, r: w.logic.implies(
            w.logic.both(w.before.root(r), w.before.above(a, r)), w.logic.same(a, r)
        ),
    )


def _pruned(relation: str) -> Claim:
    def claim(w: Setting) -> Truth:
        logic = w.logic
        if relation == "above":
            return logic.forall(
                (NODE, NODE),
                lambda a, n: logic.iff(
                    w.after.above(a, n),
                    logic.both(
                        w.before.above(a, n), logic.no(w.before.dead(a)), logic.no(w.before.dead(n))
                    ),
                ),
            )
        return logic.forall(
            (NODE,),
            lambda n: logic.iff(
                logic.atom("after", relation, n),
                logic.both(logic.atom("before", relation, n), logic.no(w.before.dead(n))),
            ),
        )

    return claim


PRUNE: Final = Move(
    "prune",
    {"l": NODE},
    {
        "l exists": lambda w: w.before.tree(w["l"]),
        "the dead lead nowhere but to l": lambda w: w.logic.forall(
            (NODE,), lambda n: w.logic.iff(w.before.dead(n), _dying(w, n))
        ),
    },
    {relation: _pruned(relation) for relation in ("tree", "root", "above")},
)
"""Removes, from l upwards, every node that leads nowhere: all `remove` moves of one pruning."""


def holes() -> list[Relational]:
    tree = assumed("ancestry", "lock-balance")
    drained: Mapping[str, Claim] = {
        **tree,
        "only holes above l lead nowhere before": _only_above("before", "l"),
    }
    end_has_kv: Claim = lambda w: w.after.kv(w["l"])  # noqa: E731
    return [
        Relational(
            "drop leaves only holes above its leaf without KV below them",
            "no-dangling-hole",
            DROP.constants,
            drained,
            _only_above("after", "l"),
            DROP,
        ),
        Relational(
            "split of a node with KV leaves only holes above the leaf without KV below them",
            "no-dangling-hole",
            {**SPLIT.constants, "l": NODE},
            {**drained, "n has KV before": lambda w: w.before.kv(w["n"])},
            _only_above("after", "l"),
            SPLIT,
        ),
        Relational(
            "no hole dangles while the leaf of the drained history has KV",
            "no-dangling-hole",
            {"l": NODE},
            {
                "only holes above l lead nowhere": _only_above("after", "l"),
                "above after is that before": lambda w: w.logic.forall(
                    (NODE, NODE),
                    lambda a, n: w.logic.iff(w.before.above(a, n), w.after.above(a, n)),
                ),
                "l has KV": end_has_kv,
            },
            after(formulas.no_dangling_hole),
        ),
        Relational(
            "unlock leaves only holes above the end of the lock without KV below them",
            "no-dangling-hole",
            UNLOCK.constants,
            {**tree, **assumed("no-dangling-hole")},
            _only_above("after", "n"),
            UNLOCK,
        ),
        Relational(
            "after pruning no hole dangles",
            "no-dangling-hole",
            PRUNE.constants,
            {
                "order before": before(formulas.order),
                "a node's locks cover its descendants'": before(formulas.locks_cover),
                "only holes above l lead nowhere before": _only_above("before", "l"),
                "roots have no ancestors": _roots_first,
            },
            after(formulas.no_dangling_hole),
            PRUNE,
        ),
    ]


# Progress


def progress() -> list[Relational]:
    return [
        Relational(
            "a victim has KV",
            "progress",
            {"l": NODE},
            {
                **assumed("ancestry", "no-dangling-hole"),
                "l is a victim": lambda w: victim(w.logic, w.before, w["l"]),
            },
            lambda w: w.before.kv(w["l"]),
        ),
        Relational(
            "below unlocked KV there is a victim",
            "progress",
            {"n": NODE},
            {
                "order before": before(formulas.order),
                "a node's locks cover its descendants'": before(formulas.locks_cover),
                "roots have no ancestors": _roots_first,
                "at or below n there is a leaf": lambda w: w.logic.exists(
                    (NODE,),
                    lambda m: w.logic.both(w.before.above(w["n"], m), leaf(w.logic, w.before, m)),
                ),
                "n has KV": lambda w: w.before.kv(w["n"]),
                "n is not locked": lambda w: w.logic.no(locked(w.logic, w.before, w["n"])),
            },
            lambda w: w.logic.exists(
                (NODE,),
                lambda m: w.logic.both(w.before.above(w["n"], m), victim(w.logic, w.before, m)),
            ),
        ),
        Relational(
            "at or below every node there is a leaf",
            "lemma",
            {},
            {"ancestry before": before(formulas.ancestry)},
            before(formulas.leaves_exist),
            exercised=lambda w: w.logic.exists((NODE,), w.before.kv),
            bounded=True,
        ),
        Relational(
            "a node's locks cover its descendants'",
            "lock-balance",
            {"n": NODE, "m": NODE, "r": RECEIPT},
            {
                **assumed("ancestry", "lock-balance"),
                "m is below n": lambda w: w.before.above(w["n"], w["m"]),
                "r covers m": lambda w: w.before.covers(w["r"], w["m"]),
            },
            lambda w: w.before.covers(w["r"], w["n"]),
        ),
        Relational(
            "two victims never share a stamp",
            "victim-order",
            {"n": NODE, "m": NODE},
            {
                **assumed("ancestry", "victim-order"),
                "n is a leaf": lambda w: leaf(w.logic, w.before, w["n"]),
                "m is a leaf": lambda w: leaf(w.logic, w.before, w["m"]),
                "they share a stamp": lambda w: w.before.twin(w["n"], w["m"]),
            },
            lambda w: w.logic.same(w["n"], w["m"]),
        ),
    ]
