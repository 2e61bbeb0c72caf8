"""How a store or a cache fails the suite."""

from __future__ import annotations

from collections.abc import Sequence

from penelope_spec import INVARIANTS


class ConformanceError(AssertionError):
    """A named invariant is broken.  Its text is one line: which, what was seen, and after what."""

    def __init__(
        self, invariant: str, seen: str, operations: Sequence[str] = (), seed: int | None = None
    ) -> None:
        assert invariant in INVARIANTS, f"{invariant} is no invariant of the specification"
        self.invariant = invariant
        self.seen = seen
        self.operations = tuple(operations)
        """The shortest sequence found; the last one is where it was seen."""
        self.seed = seed
        after = f" (seed {seed}, after: {'; '.join(operations)})" if operations else ""
        super().__init__(f"{invariant}: {seen}{after}")
