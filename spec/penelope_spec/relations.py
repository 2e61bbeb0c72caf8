"""What a move is: an elementary step of the state, as a relation.

A move relates the views `before` and `after`.  Its guards say when the core may make it, its
effects what every relation of the state becomes; each has a name, so that a proof can list it and
a broken variant can leave it out.  The moves are in `eviction_moves` and `use_moves`; which of them
make up which transition is in `transitions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeAlias

from penelope_spec.logic import NODE, RELATIONS, Element, Logic, Sort, Truth, View


class Setting:
    """What a claim about a step may speak of: states before and after, and named elements."""

    def __init__(
        self,
        logic: Logic,
        constants: Mapping[str, Element],
        views: tuple[str, str] = ("before", "after"),
    ) -> None:
        self.logic = logic
        self.before, self.after = (View(logic, name) for name in views)
        self.middle = View(logic, "middle")
        self.constants = constants

    def view(self, name: str) -> View:
        return View(self.logic, name)

    def beside(self) -> Setting:
        """The same step of a second state: from `middle` to `other`."""
        return Setting(self.logic, self.constants, ("middle", "other"))

    def __getitem__(self, name: str) -> Element:
        return self.constants[name]


Claim: TypeAlias = Callable[[Setting], Truth]


@dataclass(frozen=True)
class Variant:
    """A broken twin of a move: guards or effects replaced, or left out (None)."""

    breaks: tuple[str, ...]
    """The invariants whose proof must fail for it."""
    changes: Mapping[str, Claim | None]


@dataclass(frozen=True)
class Move:
    """One elementary move."""

    name: str
    constants: Mapping[str, Sort]
    guards: Mapping[str, Claim]
    effects: Mapping[str, Claim]
    """By relation; what is not named stays."""
    variants: Mapping[str, Variant] = field(default_factory=dict)

    def effect(self, relation: str) -> Claim:
        """What the relation becomes."""
        return self.effects.get(relation, unchanged(relation))

    def broken(self, variant: str) -> Move:
        guards, effects = dict(self.guards), dict(self.effects)
        for name, claim in self.variants[variant].changes.items():
            target = effects if name in RELATIONS else guards
            assert name in RELATIONS or name in guards, f"{self.name} has no guard '{name}'"
            if claim is None:
                del target[name]
            else:
                target[name] = claim
        return replace(self, name=variant, guards=guards, effects=effects)


def becomes(relation: str, rule: Callable[..., Truth]) -> Claim:
    """After the move the relation holds exactly where the rule, about the state before, does."""
    sorts = RELATIONS[relation]

    def claim(w: Setting) -> Truth:
        return w.logic.forall(
            sorts,
            lambda *terms: w.logic.iff(
                w.logic.atom(w.after.name, relation, *terms), rule(w, *terms)
            ),
        )

    return claim


@cache
def unchanged(relation: str) -> Claim:
    return becomes(relation, lambda w, *terms: w.logic.atom(w.before.name, relation, *terms))


def gone(relation: str, name: str) -> Claim:
    """As before, but nothing about the node `name`."""
    at = [index for index, sort in enumerate(RELATIONS[relation]) if sort is NODE]
    return becomes(
        relation,
        lambda w, *terms: w.logic.both(
            w.logic.atom(w.before.name, relation, *terms),
            *(w.logic.differ(terms[index], w[name]) for index in at),
        ),
    )


def copied(relation: str, new: str, old: str) -> Claim:
    """As before, and the node `new` has what `old` has."""
    at = RELATIONS[relation].index(NODE)

    def rule(w: Setting, *terms: Element) -> Truth:
        also = (*terms[:at], w[old], *terms[at + 1 :])
        return w.logic.either(
            w.logic.both(
                w.logic.differ(terms[at], w[new]), w.logic.atom(w.before.name, relation, *terms)
            ),
            w.logic.both(
                w.logic.same(terms[at], w[new]), w.logic.atom(w.before.name, relation, *also)
            ),
        )

    return becomes(relation, rule)


def swapped(w: Setting, x: Element, y: Element, taker: Element, giver: Element) -> Truth:
    """`x` and `y` are twins once `taker` has the stamp of `giver`."""
    logic, twin = w.logic, w.before.twin
    takes_x, takes_y = logic.same(x, taker), logic.same(y, taker)
    return logic.either(
        logic.both(logic.no(takes_x), logic.no(takes_y), twin(x, y)),
        logic.both(takes_x, logic.no(takes_y), twin(giver, y)),
        logic.both(logic.no(takes_x), takes_y, twin(x, giver)),
        logic.both(takes_x, takes_y, twin(giver, giver)),
    )


def inherited(taker: str, giver: str, leaving: str) -> Claim:
    """Stamps when the node `leaving` goes: `taker` keeps its stamp, or gets that of `giver`.

    The later of the two, in the core; which one that is does not matter here.
    """

    def claim(w: Setting) -> Truth:
        logic = w.logic

        def stays(x: Element, y: Element) -> Truth:
            return logic.both(logic.differ(x, w[leaving]), logic.differ(y, w[leaving]))

        def kept(_: Setting, x: Element, y: Element) -> Truth:
            return logic.both(stays(x, y), w.before.twin(x, y))

        def given(_: Setting, x: Element, y: Element) -> Truth:
            return logic.both(stays(x, y), swapped(w, x, y, w[taker], w[giver]))

        return logic.either(
            becomes("twin", kept)(w),
            logic.both(logic.no(w.before.root(w[taker])), becomes("twin", given)(w)),
        )

    return claim
