"""All theorems, decided one after another, and what that comes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from penelope_spec.lemmas import numbers
from penelope_spec.smt import Status
from penelope_spec.theorem import Theorem, Verdict
from penelope_spec.theorems import trees

PROVED: Final = 0
FAILED: Final = 1
UNKNOWN: Final = 2


def theorems() -> list[Theorem]:
    """Every theorem of the specification, in the order of the prose."""
    return [*numbers(), *trees()]


def run(only: str = "") -> Iterator[Verdict]:
    """Decide them one by one; `only` selects by a part of the name or by the invariant."""
    for theorem in theorems():
        if only in theorem.name or only == theorem.kind:
            yield theorem.decide()


def exit_status(verdicts: Sequence[Verdict]) -> int:
    """0 when all are proved, 1 when one has a counterexample, else 2: nothing is known."""
    statuses = {verdict.status for verdict in verdicts}
    if Status.COUNTEREXAMPLE in statuses:
        return FAILED
    return UNKNOWN if Status.UNKNOWN in statuses or not verdicts else PROVED


def table_row(verdict: Verdict) -> str:
    """Status, time, broken variants refuted, name."""
    refuted = sum(one.refuted for one in verdict.broken)
    return f"{verdict.status.value:<14} {verdict.seconds:5.2f} s {refuted:>2}  {verdict.name}"


def details(verdict: Verdict) -> list[str]:
    """What a row leaves out."""
    lines = [
        f"about: {verdict.kind}; scope: {verdict.scope}",
        f"hypotheses: {'; '.join(verdict.hypotheses) or 'none'}",
        f"witness: {verdict.witness or 'none'}",
    ]
    lines += [f"{one.name}: {one.counterexample or one.status.value}" for one in verdict.broken]
    lines += [f"because: {reason}" for reason in verdict.reasons]
    if verdict.counterexample:
        lines.append(f"counterexample: {verdict.counterexample}")
    return lines


def summary(verdicts: Sequence[Verdict]) -> list[str]:
    count = {status: sum(v.status is status for v in verdicts) for status in Status}
    bounded = sum(v.scope.startswith("bounded") for v in verdicts)
    broken = [one for v in verdicts for one in v.broken]
    seconds = sum(v.seconds for v in verdicts)
    total = (
        f"{count[Status.PROVED]} of {len(verdicts)} proved in {seconds:.1f} s, "
        f"{count[Status.COUNTEREXAMPLE]} with a counterexample, {count[Status.UNKNOWN]} unknown; "
        f"{bounded} by exhausting bounded trees, the others without a bound."
    )
    refuted = sum(one.refuted for one in broken)
    return [total, f"{refuted} of {len(broken)} broken variants refuted."]
