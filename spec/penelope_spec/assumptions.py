"""What the theorems about trees have in common: the invariants that hold before a step."""

from __future__ import annotations

from typing import Final

from penelope_spec import formulas
from penelope_spec.logic import Formula
from penelope_spec.relations import Claim


def before(formula: Formula) -> Claim:
    return lambda w: formula(w.logic, w.before)


def after(formula: Formula) -> Claim:
    return lambda w: formula(w.logic, w.after)


KEPT: Final[dict[str, tuple[str, Formula, tuple[str, ...]]]] = {
    "ancestry": ("well-formed", formulas.ancestry, ()),
    "labels": ("well-formed", formulas.labels, ("ancestry", "one-copy", "pages")),
    "one-copy": ("one-copy", formulas.one_copy, ("ancestry", "labels")),
    "lock-balance": ("lock-balance", formulas.lock_balance, ("ancestry",)),
    "in-flight": ("in-flight", formulas.in_flight, ("ancestry", "lock-balance")),
    "victim-order": ("victim-order", formulas.stamps, ("ancestry",)),
    "no-dangling-hole": (
        "no-dangling-hole",
        formulas.no_dangling_hole,
        ("ancestry", "lock-balance", "in-flight"),
    ),
}
"""What moves keep: the invariant, its formula, and what else must hold before."""

_ASSUMED: Final[dict[str, Claim]] = {
    **{name: before(formula) for name, (_, formula, _) in KEPT.items()},
    "pages": before(formulas.cell_order),
}


def assumed(*names: str) -> dict[str, Claim]:
    return {f"{name} before": _ASSUMED[name] for name in names}
