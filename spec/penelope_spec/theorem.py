"""What a theorem and its verdict are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from penelope_spec.smt import Status


@dataclass(frozen=True, slots=True)
class Broken:
    """The theorem with one hypothesis left out, or about a broken transition: it must fail."""

    name: str
    status: Status
    counterexample: str = ""
    """Printed small, after the finite evaluator has confirmed it."""

    @property
    def refuted(self) -> bool:
        return self.status is Status.COUNTEREXAMPLE


@dataclass(frozen=True, slots=True)
class Verdict:
    name: str
    kind: str
    """The invariant that it is about, or `lemma`."""
    scope: str
    """`all trees`, `all integers`, `all reals`, or `bounded: …`."""
    status: Status
    seconds: float
    hypotheses: tuple[str, ...]
    witness: str
    """A smallest case in which all hypotheses hold, so that the theorem says something."""
    broken: tuple[Broken, ...] = ()
    counterexample: str = ""
    reasons: tuple[str, ...] = field(default=())
    """Why the status is what it is, when it is not PROVED."""

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "kind": self.kind,
            "scope": self.scope,
            "status": self.status.value,
            "seconds": round(self.seconds, 3),
            "hypotheses": list(self.hypotheses),
            "witness": self.witness,
            "broken_variants": [
                {
                    "name": one.name,
                    "status": one.status.value,
                    "counterexample": one.counterexample,
                }
                for one in self.broken
            ],
            "counterexample": self.counterexample,
            "reasons": list(self.reasons),
        }


class Theorem(Protocol):
    """Anything that can be decided."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    def decide(self) -> Verdict: ...


def conclude(
    status: Status, witness: str, broken: tuple[Broken, ...], reason: str
) -> tuple[Status, tuple[str, ...]]:
    """A proof counts only if its hypotheses can hold and its broken variants fail.

    Without a witness, or with a variant that could not be refuted, nothing is known: `unknown`.
    """
    reasons = [reason] if reason else []
    if status is Status.PROVED and not witness:
        status = Status.UNKNOWN
        reasons.append("no case was found in which the hypotheses hold")
    unrefuted = [one.name for one in broken if not one.refuted]
    if status is Status.PROVED and (unrefuted or not broken):
        status = Status.UNKNOWN
        reasons.append(f"not refuted: {', '.join(unrefuted) or 'any weaker hypotheses'}")
    return status, tuple(reasons)
