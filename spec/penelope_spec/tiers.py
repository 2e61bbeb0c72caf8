"""Theorems about two tiers: what may move, and that drops do not depend on where KV lies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penelope_spec import formulas
from penelope_spec.assumptions import KEPT, after, assumed, before
from penelope_spec.eviction_moves import DROP, MERGE, REMOVE, SPLIT
from penelope_spec.formulas import demotable, hole, locked, victim
from penelope_spec.logic import CELL, NODE, RECEIPT, RELATIONS, Element, Truth, View
from penelope_spec.relational import Relational
from penelope_spec.relations import Claim, Move, Setting, Variant, gone, unchanged
from penelope_spec.tier_moves import ARRIVE, RESET
from penelope_spec.walk import in_private_span

# What is dropped does not depend on placement: two states that differ only in where KV is

_PLACES: Final = ("device", "host")


def _same(s: View, t: View, relation: str) -> Claim:
    """The relation holds of the same in both."""
    sorts = RELATIONS[relation]

    def claim(w: Setting) -> Truth:
        return w.logic.forall(
            sorts,
            lambda *terms: w.logic.iff(
                w.logic.atom(s.name, relation, *terms), w.logic.atom(t.name, relation, *terms)
            ),
        )

    return claim


def _same_kv(s: View, t: View) -> Claim:
    return lambda w: w.logic.forall((NODE,), lambda n: w.logic.iff(s.kv(n), t.kv(n)))


def differ_in_placement(first: str, second: str) -> Claim:
    """All that they may differ in is the tier of what is resident."""

    def claim(w: Setting) -> Truth:
        s, t = w.view(first), w.view(second)
        return w.logic.both(
            *(_same(s, t, name)(w) for name in RELATIONS if name not in _PLACES),
            _same_kv(s, t)(w),
        )

    return claim


def _if_allowed(move: Move, relation: str) -> Claim:
    """In both states the move is made if its guards hold there; if not, the state stays."""

    def one(w: Setting) -> Truth:
        logic = w.logic
        allowed = logic.both(*(guard(w) for guard in move.guards.values()))
        return logic.both(
            logic.implies(allowed, move.effect(relation)(w)),
            logic.either(allowed, unchanged(relation)(w)),
        )

    return lambda w: w.logic.both(one(w), one(w.beside()))


def paired(move: Move) -> Move:
    """The same step of two states, side by side."""
    return Move(
        f"{move.name} twice",
        move.constants,
        {},
        {relation: _if_allowed(move, relation) for relation in RELATIONS},
    )


_PER_TIER: Final = {
    "drop decided per tier": Variant((), {"n has KV": lambda w: w.before.device(w["n"])}),
    "drop begins with the history that is oldest on the device": Variant(
        (),
        {
            "l is a victim": lambda w: w.logic.both(
                victim(w.logic, w.before, w["l"]), w.before.device(w["l"])
            )
        },
    ),
    "drop spares the host": Variant((), {"host": unchanged("host")}),
}
_REMOVE_PER_TIER: Final = {
    "remove takes what has no KV on the device": Variant(
        (),
        {"n has no KV": lambda w: w.logic.no(w.before.device(w["n"])), "host": gone("host", "n")},
    )
}
_SPLIT_PER_TIER: Final = {
    "split leaves host KV to the lower half": Variant((), {"host": unchanged("host")})
}


def _broken(move: Move, variants: Mapping[str, Variant]) -> dict[str, Move]:
    guards, effects = dict(move.guards), dict(move.effects)
    twins = {}
    for name, variant in variants.items():
        changed_guards = {
            **guards,
            **{k: v for k, v in variant.changes.items() if k in guards and v},
        }
        changed_effects = {
            **effects,
            **{k: v for k, v in variant.changes.items() if k in RELATIONS and v},
        }
        twin = Move(name, move.constants, changed_guards, changed_effects)
        pair = paired(twin)
        twins[name] = Move(name, pair.constants, pair.guards, pair.effects)
    return twins


def _choices_agree(*relations: str) -> Claim:
    """What the move leaves open is decided alike: where to cut, which stamp is the later."""

    def claim(w: Setting) -> Truth:
        s, t = w.view("after"), w.view("other")
        return w.logic.both(*(_same(s, t, name)(w) for name in relations))

    return claim


def _drops(w: Setting) -> Truth:
    """KV is lost that one state has on the device and the other on the host."""
    return w.logic.exists(
        (NODE,),
        lambda n: w.logic.both(w.before.device(n), w.middle.host(n), w.logic.no(w.after.kv(n))),
    )


def placement() -> list[Relational]:
    """Whatever eviction decides, it decides alike wherever KV lies."""
    alike: Mapping[str, Claim] = {
        "the two states differ only in placement": differ_in_placement("before", "middle")
    }
    exercised: Claim = lambda w: w.logic.exists(  # noqa: E731
        (NODE,), lambda n: w.logic.both(w.before.device(n), w.middle.host(n))
    )
    steps: tuple[tuple[Move, dict[str, Variant], dict[str, Claim]], ...] = (
        (SPLIT, _SPLIT_PER_TIER, {"the cut is at the same place": _choices_agree("owns")}),
        (DROP, _PER_TIER, {}),
        (REMOVE, _REMOVE_PER_TIER, {"the later stamp is the same": _choices_agree("twin")}),
    )
    return [
        *(
            Relational(
                f"{move.name} does the same wherever KV lies",
                "unified-order",
                move.constants,
                {**alike, **choices},
                differ_in_placement("after", "other"),
                paired(move),
                _broken(move, variants),
                exercised=_drops if move is DROP else exercised,
            )
            for move, variants, choices in steps
        ),
        Relational(
            "victims are the same wherever KV lies",
            "unified-order",
            {"l": NODE},
            {**alike, "l is a victim": lambda w: victim(w.logic, w.before, w["l"])},
            lambda w: victim(w.logic, w.middle, w["l"]),
            exercised=exercised,
        ),
        Relational(
            "the walk back reaches the same wherever KV lies",
            "unified-order",
            {"n": NODE, "l": NODE},
            {
                **alike,
                "to fork is to have more than one child": lambda w: w.logic.both(
                    formulas.forking(w.logic, w.before), formulas.forking(w.logic, w.middle)
                ),
                "moves leave recency alone": lambda w: w.logic.forall(
                    (NODE, NODE),
                    lambda n, m: w.logic.iff(w.before.later(n, m), w.middle.later(n, m)),
                ),
                "the walk reaches n": lambda w: in_private_span(w, w["n"], w["l"]),
            },
            lambda w: in_private_span(w.beside(), w["n"], w["l"]),
            exercised=exercised,
        ),
    ]


# What may leave the device


def _stops(w: Setting, m: Element, forgets: str) -> Truth:
    """Demotion goes no further up than below m; that m forks does not matter, if only one way
    leads to device KV."""
    logic, s = w.logic, w.before
    reasons = {
        "root": s.root(m),
        "locked": locked(logic, s, m),
        "hole": hole(logic, s, m),
        "used later": s.later(m, w["l"]),
    }
    return logic.either(*(reason for name, reason in reasons.items() if name != forgets))


def _reached(forgets: str = "") -> Claim:
    def claim(w: Setting) -> Truth:
        logic, above = w.logic, w.before.above
        return logic.both(
            above(w["n"], w["l"]),
            w.before.device(w["n"]),
            logic.forall(
                (NODE,),
                lambda m: logic.implies(
                    logic.both(above(w["n"], m), above(m, w["l"]), logic.differ(m, w["l"])),
                    logic.no(_stops(w, m, forgets)),
                ),
            ),
        )

    return claim


def _walk(forgets: str = "") -> Move:
    name = f"demotion that does not stop at {forgets}" if forgets else "the demotion walk"
    constants = {"n": NODE, "l": NODE}
    return Move(name, constants, {"demotion reaches n": _reached(forgets)}, {})


def _device_kv_ends(w: Setting) -> Truth:
    """At or below n there is device KV with none below it."""
    logic, s = w.logic, w.before
    return logic.exists(
        (NODE,),
        lambda m: logic.both(
            s.above(w["n"], m),
            s.device(m),
            logic.forall(
                (NODE,),
                lambda k: logic.implies(logic.both(s.above(m, k), s.device(k)), logic.same(m, k)),
            ),
        ),
    )


def _spans_stay(w: Setting) -> Truth:
    """What each move takes is made of the same cells as before."""
    logic = w.logic

    def taken(s: View, r: Element, c: Element) -> Truth:
        return logic.exists((NODE,), lambda n: logic.both(s.carries(r, n), s.owns(n, c)))

    return logic.forall(
        (RECEIPT, CELL),
        lambda r, c: logic.iff(taken(w.before, r, c), taken(w.after, r, c)),
    )


def tiers() -> list[Relational]:
    start: Mapping[str, Claim] = {
        "ancestry before": before(formulas.ancestry),
        "the walk starts where device KV ends": lambda w: demotable(w.logic, w.before, w["l"]),
    }
    return [
        Relational(
            "demotion takes nothing that is locked",
            "no-in-use-eviction",
            {"n": NODE, "l": NODE},
            start,
            lambda w: w.logic.no(locked(w.logic, w.before, w["n"])),
            _walk(),
            {_walk("locked").name: _walk("locked")},
        ),
        Relational(
            "what arrives on the host was covered by no receipt",
            "no-in-use-eviction",
            {**ARRIVE.constants, "x": NODE, "q": RECEIPT},
            {
                **assumed("in-flight"),
                "q covers x": lambda w: w.before.covers(w["q"], w["x"]),
                "q is a receipt": lambda w: w.logic.no(formulas.is_move(w.logic, w.before, w["q"])),
                "x is on the device": lambda w: w.before.device(w["x"]),
            },
            lambda w: w.after.device(w["x"]),
            ARRIVE,
        ),
        *(
            Relational(
                f"{move.name} leaves to every move its span",
                "one-copy",
                move.constants,
                assumed("ancestry", "labels", "lock-balance", "in-flight"),
                _spans_stay,
                move,
                {
                    name: move.broken(name)
                    for name, variant in move.variants.items()
                    if "span of a move" in variant.breaks
                },
            )
            for move in (SPLIT, MERGE)
        ),
        Relational(
            "two nodes to demote never share a stamp",
            "victim-order",
            {"n": NODE, "m": NODE},
            {
                **assumed("ancestry", "victim-order"),
                "n can be demoted": lambda w: demotable(w.logic, w.before, w["n"]),
                "m can be demoted": lambda w: demotable(w.logic, w.before, w["m"]),
                "they share a stamp": lambda w: w.before.twin(w["n"], w["m"]),
            },
            lambda w: w.logic.same(w["n"], w["m"]),
        ),
        Relational(
            "below unlocked device KV there is some to demote",
            "progress",
            {"n": NODE},
            {
                "order before": before(formulas.order),
                "a node's locks cover its descendants'": before(formulas.locks_cover),
                "at or below n device KV ends": _device_kv_ends,
                "n is not locked": lambda w: w.logic.no(locked(w.logic, w.before, w["n"])),
            },
            lambda w: w.logic.exists(
                (NODE,),
                lambda m: w.logic.both(w.before.above(w["n"], m), demotable(w.logic, w.before, m)),
            ),
        ),
        Relational(
            "at or below device KV there is the last of it",
            "lemma",
            {"n": NODE},
            {
                "ancestry before": before(formulas.ancestry),
                "n is on the device": lambda w: w.before.device(w["n"]),
            },
            _device_kv_ends,
            bounded=True,
        ),
        Relational(
            "a reset loses nothing in use",
            "no-in-use-eviction",
            {"n": NODE, "r": RECEIPT},
            {**assumed("lock-balance"), **RESET.guards},
            lambda w: w.logic.no(w.before.covers(w["r"], w["n"])),
        ),
        Relational(
            "the empty state is a good one",
            "lemma",
            {},
            {
                f"no {name} in it": _nothing("after", name)
                for name in ("tree", "above", "root", "device", "host", "lease", "covers")
            }
            | {
                f"no {name} in it": _nothing("after", name)
                for name in ("filler", "carries", "owns", "twin")
            },
            lambda w: w.logic.both(*(after(formula)(w) for _, formula, _ in KEPT.values())),
        ),
    ]


def _nothing(view: str, relation: str) -> Claim:
    def claim(w: Setting) -> Truth:
        return w.logic.forall(
            RELATIONS[relation], lambda *terms: w.logic.no(w.logic.atom(view, relation, *terms))
        )

    return claim
