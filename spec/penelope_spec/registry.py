"""What an invariant is: one name for docs, tests, proofs and error messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penelope.policy import State
from penelope_spec.facts import Happened, Turned
from penelope_spec.logic import Formula


class Kind(Enum):
    """What an invariant speaks about, which decides who can check it."""

    STATE = "state"
    """One state, at rest between transitions."""
    STEP = "step"
    """The states before and after one transition, and its result."""
    TRACE = "trace"
    """A whole run, or several."""


class Violation(NamedTuple):
    """A broken invariant, by name, and what is wrong: nodes and numbers."""

    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


StateCheck = Callable[[State], list[str]]
StepCheck = Callable[[Happened], list[str]]
RefusalCheck = Callable[[Turned], list[str]]


@dataclass(frozen=True, slots=True)
class Invariant:
    """Defined once, in `penelope_spec.invariants`."""

    name: str
    kind: Kind
    says: str
    """One sentence: the same in the prose of `spec/README.md`, which a test compares."""
    checked: str
    """Where it is executed or proved, for the reader of the table."""
    on_state: StateCheck | None = None
    on_step: StepCheck | None = None
    on_refusal: RefusalCheck | None = None
    formula: Formula | None = None
    """Over the relations of `penelope_spec.logic`: read by z3, and evaluated on real states."""
    presumes_others: bool = False
    """Whether `on_state` asks the core itself, so that the state must be sound in all else."""
