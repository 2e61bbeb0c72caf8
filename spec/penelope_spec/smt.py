"""The solver, behind types: the only module that imports z3.

z3 has no type stubs, so its values are `Truth` and `Element` (which are `Any`) outside, and every
question to it is asked through the functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import Final

import z3

from penelope_spec.logic import DERIVED, PREFIX, RELATIONS, Element, Finite, Logic, Sort, Truth

TIMEOUT_MS: Final = 20_000
"""For one question; the answers take milliseconds, and running out of time is `unknown`."""


SIGNATURES: Final = {**RELATIONS, **DERIVED, PREFIX: (Sort.CELL, Sort.CELL)}


class Status(Enum):
    PROVED = "proved"
    COUNTEREXAMPLE = "counterexample"
    UNKNOWN = "unknown"


class Unbounded(Logic):
    """Uninterpreted sorts: whatever is proved here holds for trees of any size."""

    def __init__(self) -> None:
        self.sorts = {sort: z3.DeclareSort(sort.value) for sort in Sort}
        self._fresh = 0

    def constant(self, name: str, sort: Sort) -> Element:
        return z3.Const(name, self.sorts[sort])

    def atom(self, view: str, relation: str, *terms: Element) -> Truth:
        arity = SIGNATURES[relation]
        symbol = z3.Function(
            f"{view}.{relation}", *(self.sorts[sort] for sort in arity), z3.BoolSort()
        )
        return symbol(*terms)

    def same(self, one: Element, other: Element) -> Truth:
        return one == other

    def forall(self, sorts: Sequence[Sort], body: Callable[..., Truth]) -> Truth:
        bound = self._bound(sorts)
        return z3.ForAll(bound, body(*bound))

    def exists(self, sorts: Sequence[Sort], body: Callable[..., Truth]) -> Truth:
        bound = self._bound(sorts)
        return z3.Exists(bound, body(*bound))

    def _bound(self, sorts: Sequence[Sort]) -> list[Element]:
        bound = []
        for sort in sorts:
            self._fresh += 1
            bound.append(z3.Const(f"{sort.value}!{self._fresh}", self.sorts[sort]))
        return bound

    def both(self, *parts: Truth) -> Truth:
        return z3.And(*parts)

    def either(self, *parts: Truth) -> Truth:
        return z3.Or(*parts)

    def no(self, part: Truth) -> Truth:
        return z3.Not(part)


class Bounded(Logic):
    """A few elements of each sort, numbered; relations are the unknowns."""

    def __init__(self, sizes: Mapping[Sort, int]) -> None:
        self.sizes = sizes
        self._atoms: dict[tuple[str, str, tuple[int, ...]], Truth] = {}

    def atom(self, view: str, relation: str, *terms: Element) -> Truth:
        key = (view, relation, terms)
        if key not in self._atoms:
            self._atoms[key] = z3.Bool(f"{view}.{relation}{terms}")
        return self._atoms[key]

    def same(self, one: Element, other: Element) -> Truth:
        return one == other

    def forall(self, sorts: Sequence[Sort], body: Callable[..., Truth]) -> Truth:
        return self.both(*(body(*v) for v in product(*(range(self.sizes[s]) for s in sorts))))

    def exists(self, sorts: Sequence[Sort], body: Callable[..., Truth]) -> Truth:
        return self.either(*(body(*v) for v in product(*(range(self.sizes[s]) for s in sorts))))

    # Constants are folded here: most of an expanded formula is decided by which elements are equal.

    def both(self, *parts: Truth) -> Truth:
        if any(part is False for part in parts):
            return False
        rest = [part for part in parts if part is not True]
        return _joined(z3.Z3_mk_and, rest) if len(rest) > 1 else (rest[0] if rest else True)

    def either(self, *parts: Truth) -> Truth:
        if any(part is True for part in parts):
            return True
        rest = [part for part in parts if part is not False]
        return _joined(z3.Z3_mk_or, rest) if len(rest) > 1 else (rest[0] if rest else False)

    def no(self, part: Truth) -> Truth:
        return not part if isinstance(part, bool) else z3.Not(part)

    def concrete(self, model: Truth, views: Sequence[str]) -> Finite:
        """The solver's model as relations that the finite evaluator reads."""
        universe = {sort: tuple(range(size)) for sort, size in self.sizes.items()}
        wanted = {(view, name): sorts for view in views for name, sorts in SIGNATURES.items()}
        wanted["", PREFIX] = SIGNATURES[PREFIX]
        facts = {
            (view, name): frozenset(
                terms
                for terms in product(*(universe[sort] for sort in sorts))
                if (view, name, terms) in self._atoms
                and z3.is_true(model.eval(self._atoms[view, name, terms], model_completion=True))
            )
            for (view, name), sorts in wanted.items()
        }
        return Finite(universe, facts)


def _joined(make: Callable[..., Truth], parts: Sequence[Truth]) -> Truth:
    """A conjunction or disjunction, without the coercions that would take most of the time."""
    context = z3.main_ctx()
    arguments = (z3.Ast * len(parts))(*(part.as_ast() for part in parts))
    return z3.BoolRef(make(context.ref(), len(parts), arguments), context)


@dataclass(frozen=True, slots=True)
class Answer:
    status: Status
    model: Truth = None
    """Of the negation, when there is a counterexample."""
    reason: str = ""


def refute(assumptions: Sequence[Truth], timeout_ms: int = TIMEOUT_MS) -> Answer:
    """Whether the assumptions are contradictory: PROVED, or a model of them."""
    if any(part is False for part in assumptions):
        return Answer(Status.PROVED)
    solver = z3.Solver()
    solver.set("timeout", timeout_ms)
    solver.set("random_seed", 0)
    solver.add(*(part for part in assumptions if part is not True))
    result = solver.check()
    if result == z3.unsat:
        return Answer(Status.PROVED)
    if result == z3.sat:
        return Answer(Status.COUNTEREXAMPLE, solver.model())
    return Answer(Status.UNKNOWN, reason=str(solver.reason_unknown()))


def missed(
    claims: Mapping[str, Truth], candidates: Sequence[str], goal: Truth
) -> tuple[str, Truth] | None:
    """A candidate without which the claims no longer contradict the goal, and a model of that.

    One solver for all candidates: those that are in no proof of the contradiction are passed over.
    """
    if goal is False or any(claims[n] is False for n in claims if n not in candidates):
        return None
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT_MS)
    switches = {name: z3.Bool(f"use {name}") for name in candidates}
    for name, claim in claims.items():
        claim = z3.BoolVal(claim) if isinstance(claim, bool) else claim
        solver.add(z3.Implies(switches[name], claim) if name in switches else claim)
    solver.add(z3.BoolVal(goal) if isinstance(goal, bool) else goal)
    if solver.check(*switches.values()) != z3.unsat:
        return None
    core = {str(switch) for switch in solver.unsat_core()}
    for name in candidates:
        if str(switches[name]) in core:
            kept = [switch for other, switch in switches.items() if other != name]
            if solver.check(*kept) == z3.sat:
                return name, solver.model()
    return None


# Numbers: quantifier-free terms


def integer(name: str) -> Element:
    return z3.Int(name)


def real(name: str) -> Element:
    return z3.Real(name)


def boolean(name: str) -> Truth:
    return z3.Bool(name)


def constant(value: bool) -> Truth:
    return z3.BoolVal(value)


def when(condition: Truth, then: Element, otherwise: Element) -> Element:
    return z3.If(condition, then, otherwise)


def every(*parts: Truth) -> Truth:
    return z3.And(*parts)


def some(*parts: Truth) -> Truth:
    return z3.Or(*parts)


def negation(part: Truth) -> Truth:
    return z3.Not(part)


def true_of(claim: Truth, numbers: Mapping[str, int]) -> bool:
    """Whether a claim about integers is true of these, by name."""
    given = [(z3.Int(name), z3.IntVal(value)) for name, value in numbers.items()]
    return bool(z3.is_true(z3.simplify(z3.substitute(claim, *given))))


def values(model: Truth) -> dict[str, str]:
    """The assignment of a model of numbers, by name."""
    return {str(symbol): str(model[symbol]) for symbol in sorted(model.decls(), key=str)}
