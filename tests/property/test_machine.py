"""Random histories on the core and on the naive model: every answer and every state is compared."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from hypothesis import Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from tests.property import moves
from tests.property.moves import Moves
from tests.property.twin import Twin


class CacheMachine(RuleBasedStateMachine):
    """Driven by Hypothesis, which shrinks what fails."""

    twin: Twin
    seen: ClassVar[Counter[str] | None] = None
    """What happened, where a test wants to know."""

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.twin = Twin(moves.config(_pick(data)), self.seen)

    def _moves(self, data: st.DataObject) -> Moves:
        return Moves(self.twin, _pick(data))

    @rule(data=st.data())
    def turn(self, data: st.DataObject) -> None:
        self._moves(data).turn()

    @rule(data=st.data())
    def turn_under_pressure(self, data: st.DataObject) -> None:
        self._moves(data).turn_under_pressure()

    @rule(data=st.data())
    def insert(self, data: st.DataObject) -> None:
        self._moves(data).insert()

    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self._moves(data).begin()

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        self._moves(data).evict()

    @rule(data=st.data())
    def refill(self, data: st.DataObject) -> None:
        self._moves(data).refill()

    @rule(data=st.data())
    def rival(self, data: st.DataObject) -> None:
        self._moves(data).rival()

    @rule(data=st.data())
    def hold_part(self, data: st.DataObject) -> None:
        self._moves(data).hold_part()

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        self._moves(data).hold()

    @rule(data=st.data(), then=st.booleans())
    def ask(self, data: st.DataObject, then: bool) -> None:
        self._moves(data).ask()
        if then:
            self._moves(data).use()

    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        self._moves(data).use()

    @rule(data=st.data())
    def checkpoint(self, data: st.DataObject) -> None:
        self._moves(data).checkpoint()

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self._moves(data).release()

    @rule(data=st.data())
    def reserve(self, data: st.DataObject) -> None:
        self._moves(data).reserve()

    @rule(data=st.data())
    def queue(self, data: st.DataObject) -> None:
        self._moves(data).queue()

    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        self._moves(data).retire()

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        self._moves(data).reset()

    def teardown(self) -> None:
        if not hasattr(self, "twin"):
            return
        # Hypothesis shows notes of the failing example only: the history as a program.
        note("\n".join(self.twin.program))
        self.twin.finish()


def _pick(data: st.DataObject) -> moves.Pick:
    return lambda most: data.draw(st.integers(0, most))


TestCache = CacheMachine.TestCase


def test_the_machine_reaches_what_matters() -> None:
    """A generator that finds nothing proves nothing: what must turn up among so few examples."""

    class Counting(CacheMachine):
        seen: ClassVar[Counter[str] | None] = Counter()

    run_state_machine_as_test(
        Counting,
        settings=settings(
            max_examples=60,
            stateful_step_count=50,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
        ),
    )
    wanted = {
        "hole",
        "fork",
        "Split",
        "Merge",
        "Surplus",
        "refill",
        "stop ROOT",
        "stop SHARED",
        "stop LOCKED",
        "stop HOLE",
        "stop USED_LATER",
        "waits",
        "all wait",
        "retired",
        "refused UnknownTicket",
        "refused InsufficientSpace",
        "refused StalePlan",
        "refused UnknownReceipt",
    }
    assert Counting.seen is not None
    assert {name for name in wanted if not Counting.seen[name]} == set()
