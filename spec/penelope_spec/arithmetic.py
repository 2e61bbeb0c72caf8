"""Theorems about numbers: the cost of a span, block cuts, counters.

Quantifier-free, over all integers or reals.  Sums over the nodes that a move does not touch are
one unknown number, which is what makes a lemma about two nodes one about all trees.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from penelope_spec.logic import Truth
from penelope_spec.smt import Status, negation, refute, values
from penelope_spec.theorem import Broken, Verdict, conclude


@dataclass(frozen=True)
class Arithmetic:
    """The hypotheses imply the conclusion, for all numbers."""

    name: str
    kind: str
    scope: str
    hypotheses: Mapping[str, Truth]
    conclusion: Truth
    exercised: Truth = True
    """What the witness must show besides: numbers that are not all 0."""
    variants: Mapping[str, Mapping[str, Truth]] = field(default_factory=dict)
    """Broken twins, for which it must fail: other readings of some hypotheses."""

    def decide(self) -> Verdict:
        began = time.perf_counter()
        every = list(self.hypotheses.values())
        answer = refute([*every, negation(self.conclusion)])
        refuting = _shown(answer.model) if answer.status is Status.COUNTEREXAMPLE else ""
        possible = refute([*every, self.exercised])
        witness = _shown(possible.model) if possible.status is Status.COUNTEREXAMPLE else ""
        broken = tuple(self._without(name) for name in self.hypotheses)
        refuted = tuple(one for one in broken if one.refuted)
        refuted += tuple(self._broken(name, changes) for name, changes in self.variants.items())
        status, reasons = conclude(answer.status, witness, refuted, answer.reason)
        return Verdict(
            self.name,
            self.kind,
            self.scope,
            status,
            time.perf_counter() - began,
            tuple(self.hypotheses),
            witness,
            refuted,
            refuting,
            reasons,
        )

    def _without(self, dropped: str) -> Broken:
        kept = [claim for name, claim in self.hypotheses.items() if name != dropped]
        return self._fails(f"without '{dropped}'", kept)

    def _broken(self, name: str, changes: Mapping[str, Truth]) -> Broken:
        assert changes.keys() <= self.hypotheses.keys(), f"'{name}' changes no hypothesis"
        return self._fails(name, list({**self.hypotheses, **changes}.values()))

    def _fails(self, name: str, hypotheses: list[Truth]) -> Broken:
        answer = refute([*hypotheses, negation(self.conclusion)])
        shown = _shown(answer.model) if answer.status is Status.COUNTEREXAMPLE else ""
        return Broken(name, answer.status, shown)


def _shown(model: Truth) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values(model).items()) or "any numbers"
