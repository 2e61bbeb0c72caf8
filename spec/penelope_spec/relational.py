"""Theorems about trees: proved for all of them, and refuted, where broken, on the smallest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, product
from typing import Final

from penelope_spec.logic import NODE, RELATIONS, Element, Finite, Logic, Sort, Truth
from penelope_spec.relations import Claim, Move, Setting
from penelope_spec.render import render
from penelope_spec.smt import Answer, Bounded, Status, Unbounded, missed, refute
from penelope_spec.theorem import Broken, Verdict, conclude

LARGEST: Final = {Sort.NODE: 5, Sort.RECEIPT: 2, Sort.CELL: 3}
"""How far the search for witnesses and counterexamples goes; proofs have no bound."""
SMALL: Final = 5
"""Elements in all, where a hypothesis to leave out is sought: a smaller case is a clearer one."""
VIEWS: Final = ("before", "middle", "after", "other")


@dataclass(frozen=True)
class Relational:
    """`assumptions`, and the guards and effects of `move`, imply `conclusion`."""

    name: str
    kind: str
    constants: Mapping[str, Sort]
    assumptions: Mapping[str, Claim]
    conclusion: Claim
    move: Move | None = None
    variants: Mapping[str, Move] = field(default_factory=dict)
    """Broken moves for which the theorem must fail."""
    exercised: Claim | None = None
    """What the witness must show besides the hypotheses, where these alone admit an idle case."""
    bounded: bool = False
    """Proved by exhausting the cases up to `LARGEST`: a fact of finite trees, not of the order."""

    def hypotheses(self) -> dict[str, Claim]:
        """By name.  Effects on relations that cannot matter here are left out."""
        claims = dict(self.assumptions)
        if self.move is None:
            return claims
        claims.update(self.move.guards)
        if not self.move.effects:
            return claims
        mentioned = _mentioned([self.conclusion, *claims.values()], self.constants)
        seen: set[str] = set()
        while mentioned - seen:
            relation = min(mentioned - seen)
            seen.add(relation)
            mentioned |= _mentioned([self.move.effect(relation)], self.constants)
        for relation in RELATIONS:
            if relation in seen:
                claims[f"{self.move.name}: {relation}"] = self.move.effect(relation)
        return claims

    def decide(self) -> Verdict:
        began = time.perf_counter()
        hypotheses = self.hypotheses()
        twins = [replace(self, name=n, move=m, variants={}) for n, m in self.variants.items()]
        cases = _Cases(self._sorts(twins), self.constants)
        answer = Answer(Status.PROVED) if self.bounded else self._prove(hypotheses)
        counterexample = ""
        if self.bounded or answer.status is not Status.PROVED:
            counterexample = self.smallest(cases, hypotheses, negate=True) or ""
        witness = self._witness(cases, hypotheses)
        broken = [
            Broken(twin.name, Status.COUNTEREXAMPLE if found else Status.UNKNOWN, found or "")
            for twin in twins
            for found in [twin.smallest(cases, twin.hypotheses(), negate=True)]
        ]
        weakened = self._weakened(cases, hypotheses)
        if weakened.refuted or not broken:
            broken.insert(0, weakened)
        status = Status.COUNTEREXAMPLE if counterexample else answer.status
        status, reasons = conclude(status, witness, tuple(broken), answer.reason)
        return Verdict(
            self.name,
            self.kind,
            _bound(cases.sorts) if self.bounded else "all trees",
            status,
            time.perf_counter() - began,
            tuple(hypotheses),
            witness,
            tuple(broken),
            counterexample,
            reasons,
        )

    def _prove(self, hypotheses: Mapping[str, Claim]) -> Answer:
        logic = Unbounded()
        w = Setting(logic, {name: logic.constant(name, s) for name, s in self.constants.items()})
        return refute([*(claim(w) for claim in hypotheses.values()), logic.no(self.conclusion(w))])

    def _witness(self, cases: _Cases, hypotheses: Mapping[str, Claim]) -> str:
        wanted = dict(hypotheses)
        if self.exercised is not None:
            wanted["it is exercised"] = self.exercised
        return self.smallest(cases, wanted, negate=False) or ""

    def _weakened(self, cases: _Cases, hypotheses: Mapping[str, Claim]) -> Broken:
        """The theorem without that hypothesis which is missed in the smallest case."""
        effect = f"{self.move.name}: " if self.move else None
        candidates = [n for n in hypotheses if effect is None or not n.startswith(effect)]
        for case in cases.up_to(SMALL):
            claims = {name: case.read(claim) for name, claim in hypotheses.items()}
            found = missed(claims, candidates, case.logic.no(case.read(self.conclusion)))
            if found is not None:
                dropped, model = found
                remaining = {n: c for n, c in hypotheses.items() if n != dropped}
                text = self._confirmed(case, model, remaining, negate=True)
                return Broken(f"without '{dropped}'", Status.COUNTEREXAMPLE, text)
        return Broken("without any one hypothesis", Status.UNKNOWN)

    def smallest(
        self, cases: _Cases, hypotheses: Mapping[str, Claim], *, negate: bool
    ) -> str | None:
        """The smallest case of the hypotheses, with or against the conclusion, printed."""
        for case in cases.up_to(sum(LARGEST.values())):
            parts = [case.read(claim) for claim in hypotheses.values()]
            if negate:
                parts.append(case.logic.no(case.read(self.conclusion)))
            answer = refute(parts)
            if answer.status is Status.COUNTEREXAMPLE:
                return self._confirmed(case, answer.model, hypotheses, negate=negate)
        return None

    def _confirmed(
        self, case: _Case, model: Truth, hypotheses: Mapping[str, Claim], *, negate: bool
    ) -> str:
        """The case, once an evaluator that knows nothing of the solver agrees."""
        finite = case.logic.concrete(model, VIEWS)
        w = Setting(finite, case.setting.constants)
        wrong = [name for name, claim in hypotheses.items() if not claim(w)]
        if wrong or (negate and self.conclusion(w)):
            raise AssertionError(f"the solver's model of '{self.name}' is none: {wrong}")
        views = [view for view in VIEWS if any(finite.facts[view, name] for name in RELATIONS)]
        text = render(finite, case.setting.constants, self.constants, views)
        return text or "the empty state"

    def _sorts(self, twins: Sequence[Relational]) -> set[Sort]:
        recorder = _Recorder()
        w = Setting(recorder, {name: name for name in self.constants})
        for theorem in (self, *twins):
            for claim in (*theorem.hypotheses().values(), theorem.conclusion):
                claim(w)
        return recorder.sorts | set(self.constants.values())


@dataclass(frozen=True)
class _Case:
    """A number of elements of each sort, and which of them the constants are."""

    logic: Bounded
    setting: Setting
    known: dict[Claim, Truth] = field(default_factory=dict)

    def read(self, claim: Claim) -> Truth:
        """The claim expanded over the elements, once."""
        if claim not in self.known:
            self.known[claim] = claim(self.setting)
        return self.known[claim]


def _bound(sorts: set[Sort]) -> str:
    sizes = [f"{LARGEST[sort]} {sort.value}s" for sort in Sort if sort in sorts]
    return f"bounded: up to {', '.join(sizes)}"


class _Cases:
    """All cases of one theorem and its variants, smallest first.

    They are made once, because expanding a formula takes longer than solving it.
    """

    def __init__(self, sorts: set[Sort], constants: Mapping[str, Sort]) -> None:
        self.sorts = sorts
        self._named = {sort: [n for n, s in constants.items() if s is sort] for sort in Sort}
        self._made: list[tuple[int, _Case]] = []
        self._coming = self._make()

    def up_to(self, limit: int) -> Iterator[_Case]:
        """Those with at most so many elements in all."""
        for index in count():
            while index >= len(self._made):
                made = next(self._coming, None)
                if made is None:
                    return
                self._made.append(made)
            size, case = self._made[index]
            if size > limit:
                return
            yield case

    def _make(self) -> Iterator[tuple[int, _Case]]:
        """Which of several equal elements a constant is does not matter."""
        ranges = [
            range(1 if sort is NODE or self._named[sort] else 0, LARGEST[sort] + 1)
            if sort in self.sorts
            else range(1)
            for sort in Sort
        ]
        for sizes in sorted(product(*ranges), key=lambda sizes: (sum(sizes), sizes)):
            size = dict(zip(Sort, sizes, strict=True))
            for choice in product(*(_partitions(len(self._named[s]), size[s]) for s in Sort)):
                values = {
                    name: value
                    for sort, picked in zip(Sort, choice, strict=True)
                    for name, value in zip(self._named[sort], picked, strict=True)
                }
                logic = Bounded(size)
                yield sum(sizes), _Case(logic, Setting(logic, values))


def _partitions(constants: int, size: int) -> Iterator[tuple[int, ...]]:
    """Ways to be equal or different among the constants and at most `size` elements."""

    def grow(prefix: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(prefix) == constants:
            yield prefix
            return
        fresh = max(prefix, default=-1) + 1
        for value in range(min(fresh + 1, size)):
            yield from grow((*prefix, value))

    yield from grow(())


class _Recorder(Logic):
    """Reads a formula for the relations and sorts that it mentions; every formula is true."""

    def __init__(self) -> None:
        self.relations: set[str] = set()
        self.sorts: set[Sort] = set()

    def atom(self, view: str, relation: str, *terms: Element) -> Truth:
        del view, terms
        self.relations.add(relation)
        return True

    def same(self, one: Element, other: Element) -> Truth:
        del one, other
        return True

    def forall(self, sorts: Sequence[Sort], body: Callable[..., Truth]) -> Truth:
        self.sorts.update(sorts)
        return body(*sorts)

    def exists(self, sorts: Sequence[Sort], body: Callable[..., Truth]) -> Truth:
        return self.forall(sorts, body)

    def both(self, *parts: Truth) -> Truth:
        del parts
        return True

    def either(self, *parts: Truth) -> Truth:
        del parts
        return True

    def no(self, part: Truth) -> Truth:
        del part
        return True


def _mentioned(claims: Sequence[Claim], constants: Mapping[str, Sort]) -> set[str]:
    recorder = _Recorder()
    w = Setting(recorder, {name: name for name in constants})
    for claim in claims:
        claim(w)
    return recorder.relations & RELATIONS.keys()


def evaluate(
    claims: Mapping[str, Claim], finite: Finite, constants: Mapping[str, Element]
) -> list[str]:
    """The names of the claims that do not hold of a concrete step."""
    w = Setting(finite, constants)
    return [name for name, claim in claims.items() if not claim(w)]
