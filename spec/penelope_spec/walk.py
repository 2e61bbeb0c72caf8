"""Theorems about the walk from a victim to the earliest evictable point of its history."""

from __future__ import annotations

from typing import Final

from penelope_spec import formulas
from penelope_spec.assumptions import before
from penelope_spec.formulas import chain_below, hole, locked, victim
from penelope_spec.logic import NODE, Element, Truth
from penelope_spec.relational import Relational
from penelope_spec.relations import Claim, Move, Setting

# The walk back


def stops(w: Setting, m: Element, end: Element, *, forgets: str = "") -> Truth:
    """The walk from the leaf `end` goes no further than below m."""
    logic, s = w.logic, w.before
    reasons = {
        "root": s.root(m),
        "shared": s.forks(m),
        "locked": locked(logic, s, m),
        "hole": hole(logic, s, m),
        "used later": s.later(m, end),
    }
    return logic.either(*(reason for name, reason in reasons.items() if name != forgets))


def in_private_span(w: Setting, n: Element, end: Element, *, forgets: str = "") -> Truth:
    """The walk from the leaf `end` reaches n: nothing from n down to it makes the walk stop."""
    logic, above = w.logic, w.before.above
    return logic.both(
        above(n, end),
        logic.forall(
            (NODE,),
            lambda m: logic.implies(
                logic.both(above(n, m), above(m, end), logic.differ(m, end)),
                logic.no(stops(w, m, end, forgets=forgets)),
            ),
        ),
    )


WALK: Final[dict[str, Claim]] = {
    "ancestry before": before(formulas.ancestry),
    "the walk starts at a victim": lambda w: victim(w.logic, w.before, w["l"]),
    "no hole dangles before": before(formulas.no_dangling_hole),
    "where paths part a node forks": before(formulas.parting),
    "the walk reaches n": lambda w: in_private_span(w, w["n"], w["l"]),
}


def _walk(
    name: str, kind: str, conclusion: Claim, forgets: str, needs: tuple[str, ...]
) -> Relational:
    """One property of every node that the walk returns; a walk without that stop violates it."""
    assumptions = {need: WALK[need] for need in needs}
    forgetful = Move(
        f"a walk that does not stop at {forgets}",
        {"n": NODE, "l": NODE},
        {"the walk reaches n": lambda w: in_private_span(w, w["n"], w["l"], forgets=forgets)},
        {},
    )
    walk = Move(
        "the walk", forgetful.constants, {"the walk reaches n": WALK["the walk reaches n"]}, {}
    )
    return Relational(
        name, kind, walk.constants, assumptions, conclusion, walk, {forgetful.name: forgetful}
    )


def _only_to_l(w: Setting) -> Truth:
    """Everything at or below n is on the path to l."""
    return w.logic.forall(
        (NODE,),
        lambda m: w.logic.implies(w.before.above(w["n"], m), w.before.above(m, w["l"])),
    )


def walk_back() -> list[Relational]:
    tree = ("ancestry before", "the walk starts at a victim")
    return [
        _walk(
            "the walk back returns no locked node",
            "no-in-use-eviction",
            lambda w: w.logic.no(locked(w.logic, w.before, w["n"])),
            "locked",
            tree,
        ),
        _walk(
            "the walk back returns no hole and no root",
            "lemma",
            lambda w: w.before.kv(w["n"]),
            "hole",
            (*tree, "no hole dangles before"),
        ),
        _walk(
            "the walk back returns no node that leads anywhere but to its leaf",
            "no-shared-eviction",
            _only_to_l,
            "shared",
            (*tree, "where paths part a node forks"),
        ),
        _walk(
            "the walk back returns nothing above its leaf that was used later",
            "lemma",
            lambda w: w.logic.either(
                w.logic.same(w["n"], w["l"]), w.logic.no(w.before.later(w["n"], w["l"]))
            ),
            "used later",
            tree,
        ),
        Relational(
            "a node that leads to one leaf only is not shared",
            "no-shared-eviction",
            {"n": NODE, "l": NODE},
            {
                "ancestry before": before(formulas.ancestry),
                "n leads nowhere but to l": _only_to_l,
            },
            lambda w: chain_below(w.logic, w.before, w["n"]),
        ),
        Relational(
            "where paths part a node forks",
            "lemma",
            {},
            {
                "ancestry before": before(formulas.ancestry),
                "to fork is to have more than one child": before(formulas.forking),
            },
            before(formulas.parting),
            exercised=lambda w: w.logic.exists((NODE,), w.before.forks),
            bounded=True,
        ),
        _walk(
            "the walk back returns everything between its first node and the leaf",
            "lemma",
            lambda w: w.logic.forall(
                (NODE,),
                lambda m: w.logic.implies(
                    w.logic.both(w.before.above(w["n"], m), w.before.above(m, w["l"])),
                    w.logic.both(w.before.kv(m), in_private_span(w, m, w["l"])),
                ),
            ),
            "hole",
            (*tree, "no hole dangles before"),
        ),
    ]
