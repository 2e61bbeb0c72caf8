"""The theorems about trees: what every move keeps, and what eviction may take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penelope_spec import formulas
from penelope_spec.assumptions import KEPT, after, assumed
from penelope_spec.eviction_moves import DROP, MERGE, REMOVE, SPLIT
from penelope_spec.formulas import has_kv, in_tier, in_tree, in_use
from penelope_spec.holes import holes, progress
from penelope_spec.logic import CELL, NODE, Element, Truth, View
from penelope_spec.relational import Relational
from penelope_spec.relations import Claim, Move, Setting
from penelope_spec.tier_moves import ABANDON, ARRIVE, DEPART
from penelope_spec.tiers import placement, tiers
from penelope_spec.transitions import MOVES
from penelope_spec.use_moves import UNLOCK
from penelope_spec.walk import walk_back

_MAKE_HOLES_DANGLE: Final = (DROP, REMOVE, UNLOCK)
"""`no-dangling-hole` holds again once pruning is done: theorems of their own, below."""


def _variants(move: Move, breaks: str) -> dict[str, Move]:
    return {
        name: move.broken(name)
        for name, variant in move.variants.items()
        if breaks in variant.breaks
    }


def preservation() -> list[Relational]:
    """Every move keeps every state invariant."""
    return [
        Relational(
            f"{move.name} keeps {name}",
            kind,
            move.constants,
            assumed(name, *needs),
            after(formula),
            move,
            _variants(move, name),
        )
        for name, (kind, formula, needs) in KEPT.items()
        for move in MOVES
        if not (name == "no-dangling-hole" and move in _MAKE_HOLES_DANGLE)
    ]


# What a step of eviction may do.  Each of these composes: see `composition`.


def spares_what_is_in_use(w: Setting, s: View, t: View) -> Truth:
    """Between s and t no KV in use is lost, and what is in use stays so."""
    logic = w.logic
    return logic.forall(
        (CELL,),
        lambda c: logic.both(
            logic.implies(
                logic.both(has_kv(logic, s, c), in_use(logic, s, c)), has_kv(logic, t, c)
            ),
            logic.iff(in_use(logic, s, c), in_use(logic, t, c)),
        ),
    )


def spares_what_is_shared(w: Setting, s: View, t: View) -> Truth:
    """What is lost between s and t leads to one history only, and nothing is added."""
    logic = w.logic

    def one_history(c: Element) -> Truth:
        return logic.forall(
            (CELL, CELL),
            lambda d, e: logic.implies(
                logic.both(
                    s.prefix(c, d), s.prefix(c, e), in_tree(logic, t, d), in_tree(logic, t, e)
                ),
                logic.either(s.prefix(d, e), s.prefix(e, d)),
            ),
        )

    return logic.both(
        logic.forall(
            (CELL,),
            lambda c: logic.implies(
                logic.both(has_kv(logic, s, c), logic.no(has_kv(logic, t, c))), one_history(c)
            ),
        ),
        adds_nothing(w, s, t),
    )


def adds_nothing(w: Setting, s: View, t: View) -> Truth:
    """Every history of t is one of s, and no KV of t is new, or in another tier than it was."""
    logic = w.logic
    return logic.forall(
        (CELL,),
        lambda c: logic.both(
            logic.implies(in_tree(logic, t, c), in_tree(logic, s, c)),
            logic.implies(has_kv(logic, t, c), has_kv(logic, s, c)),
            logic.implies(in_tier(logic, t.device, t, c), in_tier(logic, s.device, s, c)),
            logic.implies(in_tier(logic, t.host, t, c), in_tier(logic, s.host, s, c)),
        ),
    )


def keeps_histories(w: Setting, s: View, t: View) -> Truth:
    """And tokens go only where no KV was."""
    logic = w.logic
    return logic.both(
        adds_nothing(w, s, t),
        logic.forall((CELL,), lambda c: logic.implies(has_kv(logic, s, c), in_tree(logic, t, c))),
    )


def keeps_what_is_resident(w: Setting, s: View, t: View) -> Truth:
    """The same histories, and KV for the same pages, in whichever tier."""
    logic = w.logic
    return logic.forall(
        (CELL,),
        lambda c: logic.both(
            logic.iff(in_tree(logic, s, c), in_tree(logic, t, c)),
            logic.iff(has_kv(logic, s, c), has_kv(logic, t, c)),
        ),
    )


Between = Callable[[Setting, View, View], Truth]
STEPS: Final[dict[str, Between]] = {
    "no-in-use-eviction": spares_what_is_in_use,
    "no-shared-eviction": spares_what_is_shared,
    "history-intact": keeps_histories,
    "moves-do-not-evict": keeps_what_is_resident,
}
_EVICTING: Final = (SPLIT, DROP, REMOVE, MERGE)
RESPECTED_BY: Final[dict[str, tuple[Move, ...]]] = {
    "no-in-use-eviction": _EVICTING,
    "no-shared-eviction": _EVICTING,
    "history-intact": _EVICTING,
    "moves-do-not-evict": (SPLIT, MERGE, DEPART, ARRIVE, ABANDON),
}
"""The moves of evictions, and those of moves between the tiers; `hoist` changes only stamps."""


def _holds(between: Between, first: str, second: str) -> Claim:
    return lambda w: between(w, w.view(first), w.view(second))


def _loses_kv(w: Setting) -> Truth:
    """KV goes in the first moves and KV goes in the next."""
    logic = w.logic

    def lost(s: View, t: View) -> Truth:
        return logic.exists(
            (CELL,), lambda c: logic.both(has_kv(logic, s, c), logic.no(has_kv(logic, t, c)))
        )

    proper = [formulas.well_formed(logic, s) for s in (w.before, w.middle, w.after)]
    return logic.both(*proper, lost(w.before, w.middle), lost(w.middle, w.after))


def _moves_kv(w: Setting) -> Truth:
    """KV leaves the device, and stays in the cache."""
    logic = w.logic
    proper = [formulas.well_formed(logic, s) for s in (w.before, w.middle, w.after)]
    went = logic.exists(
        (NODE, CELL),
        lambda n, c: logic.both(
            w.before.owns(n, c),
            w.before.device(n),
            logic.no(w.middle.device(n)),
            w.middle.owns(n, c),
            w.middle.host(n),
        ),
    )
    return logic.both(*proper, went)


def eviction() -> list[Relational]:
    """Every move of a transition respects its step invariants."""
    held = assumed("ancestry", "labels", "one-copy", "lock-balance", "pages")
    return [
        Relational(
            f"{move.name} respects {name}",
            name,
            move.constants,
            held,
            _holds(between, "before", "after"),
            move,
            _variants(move, name),
        )
        for name, between in STEPS.items()
        for move in RESPECTED_BY[name]
    ]


def composition() -> list[Relational]:
    """What holds of every move holds of every sequence of them, so of whole transitions."""
    return [
        Relational(
            f"{name} composes over the moves of {whole}",
            name,
            {},
            {
                "it holds of the first moves": _holds(between, "before", "middle"),
                "it holds of the next move": _holds(between, "middle", "after"),
            },
            _holds(between, "before", "after"),
            exercised=exercised,
        )
        for name, between, exercised, whole in (
            ("no-in-use-eviction", spares_what_is_in_use, _loses_kv, "an eviction"),
            ("no-shared-eviction", spares_what_is_shared, _loses_kv, "an eviction"),
            ("history-intact", adds_nothing, _loses_kv, "an eviction"),
            ("moves-do-not-evict", keeps_what_is_resident, _moves_kv, "a transfer"),
        )
    ]


def trees() -> list[Relational]:
    """All theorems about trees, in the order of the prose."""
    return [
        *walk_back(),
        *preservation(),
        *eviction(),
        *composition(),
        *holes(),
        *progress(),
        *placement(),
        *tiers(),
    ]
