"""The core and the naive model side by side: every operation on both, everything compared.

Operations take plain values, and the twin writes each down, so that a failing history prints as a
program that can be pasted into a test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import pytest

from penelope.policy import (
    Config,
    Effect,
    Match,
    Namespace,
    Plan,
    Position,
    Receipt,
    ReceiptId,
    Refused,
    State,
    Ticket,
    acquire,
    admit,
    checkpoint,
    empty,
    evict,
    insert,
    line_up,
    match,
    plan,
    refill,
    release,
    reserve,
    reset,
    retire,
    touch,
)
from penelope_spec import Trace, check_refused, check_state, check_step
from tests.property.ledger import Ledger
from tests.property.naive import Held, Matched, Model, No, Rules, Space, Units, Where
from tests.property.reading import (
    PageView,
    ends_of,
    key_of,
    pages_of,
    retired_of,
    victims_of,
    waiting_of,
)

T = TypeVar("T")
DEFAULT: Final[Space] = (None, None)


class Result(Protocol):
    @property
    def state(self) -> State: ...
    @property
    def effects(self) -> tuple[Effect, ...]: ...


class Asked(NamedTuple):
    """A match or plan, and what it was asked for."""

    answer: Match
    plan: Plan | None
    space: Space
    units: Units
    extra: int
    at_most: int | None
    version: int


def rules_of(config: Config) -> Rules:
    return Rules(
        config.device_capacity,
        config.page_size,
        config.block_size,
        config.position.value,
        config.granularity.value,
        config.sticky_shared,
        config.order.value,
        config.linear_cost,
    )


class Twin:
    """One cache, twice."""

    def __init__(self, config: Config, seen: Counter[str] | None = None) -> None:
        self.config = config
        self.state = empty(config)
        self.model = Model(rules_of(config))
        self.ledger = Ledger()
        self.trace = Trace()
        self.asked: list[Asked] = []
        self.version = 0
        self.seen: Counter[str] = Counter() if seen is None else seen
        """What has happened so far, for tests of the generator."""
        self.program = [f"twin = Twin({config!r})"]
        self.history: list[tuple[Effect, ...]] = []
        """The effects of every step."""
        self.remembered: list[tuple[State, dict[Where, PageView]]] = []

    # --- operations, each on both ---------------------------------------------------------------

    def look(self, space: Space, units: Units, at_most: int | None = None) -> Match | None:
        """Match; changes nothing.  None when refused."""
        self._write("look", space, units, at_most)

        def core() -> Match:
            return match(self.state, self._key(units), Namespace(*space), at_most=at_most)

        try:
            want = self.model.match(space, units, at_most)
        except No as no:
            self._refused("match", no.name, core)
            return None
        found = core()
        self._compare_match(found, want)
        self.asked.append(Asked(found, None, space, units, 0, at_most, self.version))
        return found

    def plan(
        self, space: Space, units: Units, extra: int = 0, at_most: int | None = None
    ) -> Plan | None:
        """Plan; changes nothing.  None when refused."""
        self._write("plan", space, units, extra, at_most)

        def core() -> Plan:
            key, space_ = self._key(units), Namespace(*space)
            return plan(self.state, key, space_, extra=extra, at_most=at_most)

        try:
            want = self.model.plan(space, units, extra, at_most)
        except No as no:
            self._refused("plan", no.name, core)
            return None
        got = core()
        self._compare_match(got.match, want.matched)
        for name in ("holes", "awaits", "allocate", "evict", "available"):
            assert getattr(got, name) == getattr(want, name), f"plan's {name}"
        assert got.new == (want.matched.end, want.matched.length)
        assert got.admissible == (want.evict <= want.available)
        assert got.admissible or self.model.receipts, "alone it must be admissible"
        if at_most is None and units:
            assert got.match.end < len(units), "a request computes at least one token"
        self.seen["awaits"] += bool(got.awaits)
        self.seen["two holes in a plan"] += len(got.holes) > 1
        self.asked.append(Asked(got.match, got, space, units, extra, at_most, self.version))
        return got

    def touch(self, asked: int) -> None:
        self._write("touch", asked)
        a = self.asked[asked]

        def model(m: Model) -> None:
            self._fresh(a)
            m.touch(a.space, a.units, a.at_most)

        self._step(
            "touch", lambda s: touch(s, a.answer), model, changes=a.answer.end > 0, match=a.answer
        )

    def acquire(self, asked: int) -> None:
        self._write("acquire", asked)
        a = self.asked[asked]

        def model(m: Model) -> int:
            self._fresh(a)
            return m.acquire(a.space, a.units, a.at_most)

        done = self._step("acquire", lambda s: acquire(s, a.answer), model, match=a.answer)
        if done:
            assert done[0].receipt.id == done[1]

    def admit(self, asked: int) -> bool:
        self._write("admit", asked)
        a = self.asked[asked]
        assert a.plan is not None
        the_plan = a.plan

        def model(m: Model) -> list[Where]:
            self._fresh(a)
            return m.admit(a.space, a.units, a.extra, a.at_most)

        done = self._step("admit", lambda s: admit(s, the_plan), model, plan=the_plan)
        if done:
            self._compare_freed(done[1], done[0].freed)
        return done is not None

    def release(self, number: int) -> None:
        self._write("release", number)
        self._step("release", lambda s: release(s, _receipt(number)), lambda m: m.release(number))

    def reserve(self, number: int, units: int) -> None:
        self._write("reserve", number, units)
        done = self._step(
            "reserve",
            lambda s: reserve(s, _receipt(number), units),
            lambda m: m.reserve(number, units),
            units=units,
        )
        if done:
            self._compare_freed(done[1], None)

    def insert(self, space: Space, units: Units, start: int = 0) -> None:
        self._write("insert", space, units, start)
        done = self._step(
            "insert",
            lambda s: insert(s, self._key(units), Namespace(*space), start=start),
            lambda m: m.insert(space, units, start),
            offer=(space, units, start),
        )
        if done:
            got, want = done
            assert (got.adopted, got.resident, got.unaligned) == want
            assert sum(want) == len(units) - start

    def checkpoint(self, number: int, units: Units) -> None:
        self._write("checkpoint", number, units)
        held = self.model.receipts.get(number, Held(DEFAULT, (), 0))
        done = self._step(
            "checkpoint",
            lambda s: checkpoint(s, _receipt(number), self._key(units)),
            lambda m: m.checkpoint(number, units),
            offer=(held.space, units, len(held.path)),
        )
        if done:
            got, want = done
            assert (got.adopted, got.resident, got.unaligned) == want

    def refill(self, number: int, start: int, end: int) -> None:
        self._write("refill", number, start, end)
        held = self.model.receipts.get(number, Held(DEFAULT, (), 0))
        done = self._step(
            "refill",
            lambda s: refill(s, _receipt(number), start, end),
            lambda m: m.refill(number, start, end),
            offer=(held.space, held.path[:end], start),
            receipt=_receipt(number),
            start=start,
        )
        if done:
            got, want = done
            assert (got.adopted, got.resident) == want

    def evict(self, need: int) -> None:
        self._write("evict", need)
        done = self._step(
            "evict",
            lambda s: evict(s, need),
            lambda m: m.evict(need),
            changes=need > 0,
            need=need,
        )
        if done:
            self._compare_freed(done[1], done[0].freed)

    def line_up(self, entries: list[int]) -> None:
        """The queue is this: a ticket by its number, an answer by minus one minus its place."""
        self._write("line_up", entries)
        asked = [None if e >= 0 else self.asked[-1 - e] for e in entries]

        def model(m: Model) -> list[int]:
            queue: list[int | tuple[Space, Units, int | None] | None] = []
            for entry, a in zip(entries, asked, strict=True):
                stale = a is not None and a.version != self.version
                queue.append(
                    None if stale else entry if a is None else (a.space, a.units, a.at_most)
                )
            return m.line_up(queue)

        queue = [
            Ticket(entry) if a is None else a.answer
            for entry, a in zip(entries, asked, strict=True)
        ]
        changes = entries != [number for number, _, _ in self.model.queue]
        done = self._step("line_up", lambda s: line_up(s, queue), model, changes=changes)
        if done:
            assert list(done[0].tickets) == done[1]

    def retire(self, asked: int) -> None:
        self._write("retire", asked)
        a = self.asked[asked]

        def model(m: Model) -> None:
            self._fresh(a)
            m.retire(a.space, a.units, a.at_most)

        trial = self.model.copy()
        if a.version == self.version:
            trial.retire(a.space, a.units, a.at_most)
        changes = trial.retired != self.model.retired
        self._step("retire", lambda s: retire(s, a.answer), model, changes=changes)

    def reset(self) -> None:
        self._write("reset")
        self._step("reset", reset, lambda m: m.reset())

    # --- how --------------------------------------------------------------------------------------

    def _key(self, units: Units) -> Any:
        return key_of(units, self.config.unit_bytes)

    def _write(self, name: str, *arguments: object) -> None:
        self.program.append(f"twin.{name}({', '.join(map(repr, arguments))})")

    def _fresh(self, asked: Asked) -> None:
        if asked.version != self.version:
            raise No("StalePlan")

    def _refused(self, transition: str, name: str, core: Callable[[], object]) -> Refused:
        with pytest.raises(Refused) as caught:
            core()
        refusal = caught.value
        assert type(refusal).__name__ == name, f"{refusal!r} where {name} was expected"
        assert "\n" not in str(refusal)
        self.seen[f"refused {name}"] += 1
        self.seen[f"{transition}: {name}"] += 1
        return refusal

    def _step(
        self,
        name: str,
        core: Callable[[State], Result_],
        model: Callable[[Model], T],
        *,
        changes: bool = True,
        offer: tuple[Space, Units, int] | None = None,
        **facts: Any,
    ) -> tuple[Result_, T] | None:
        """One transition on both; None when both refuse it, by the same name."""
        before, trial = self.state, self.model.copy()
        try:
            want = model(trial)
            trial.forget_cuts()
        except No as no:
            refusal = self._refused(name, no.name, lambda: core(before))
            assert check_refused(before, name, refusal, **facts) == []
            # A refused transition must not have scribbled on what it was given.
            assert pages_of(before) == self._pages(self.model)
            assert check_state(before) == []
            return None
        got = core(before)
        assert (got.state is not before) == changes
        self.state, self.model = got.state, trial
        self.version += changes
        self.seen[name] += 1
        self.history.append(got.effects)
        for effect in got.effects:
            self.seen[type(effect).__name__] += 1
        self.seen["evict over several histories"] += len(trial.stops) > 1
        for stop in trial.stops:
            self.seen[f"stop {stop}"] += 1
        end = None if offer is None else len(offer[1]) - len(offer[1]) % self.config.page_size
        self.freed = self.ledger.follow(got.effects, offer, end)
        if hasattr(got, "freed"):
            facts["freed"] = got.freed
        broken = check_step(before, got.state, name, effects=got.effects, **facts)
        broken += self.trace.step(before, got.state, name, effects=got.effects, **facts)
        assert not broken, broken
        self.compare()
        self._remember()
        return got, want

    def compare(self) -> None:
        """Everything that the model can say about the state."""
        state, model = self.state, self.model
        broken = check_state(state)
        assert not broken, broken
        self.ledger.check(state)
        assert pages_of(state) == self._pages(model)
        assert state.totals.device == model.device()
        assert state.totals.reserved == model.reserved()
        assert state.free == model.free()
        assert state.evictable == model.evictable()
        assert state.protected == model.device() - model.evictable()
        assert state.totals.hole == (len(model.pages) * model.rules.page - model.device())
        assert victims_of(state) == model.victims()
        nowhere = (None, None)
        assert waiting_of(state) == [(n, s if p else nowhere, p) for n, s, p in model.queue]
        assert retired_of(state) == model.retired
        if model.rules.nodes_matter:
            assert ends_of(state) == {where for where, page in model.pages.items() if page.cut}
        else:
            assert model.differences() <= ends_of(state)
        places = [model.place(*where) for where in model.victims()]
        self.seen["waits"] += any(place is not None for place in places)
        self.seen["all wait"] += len(places) > 1 and None not in places
        self.seen["retired"] += bool(model.retired)
        holes = model.families()
        self.seen["hole"] += any(not page.kv for page in model.pages.values())
        self.seen["two holes on a history"] += any(
            len(model.ranges([p for p in model.prefixes(path) if not model.pages[space, p].kv])) > 1
            for space, path in model.victims()
        )
        self.seen["fork"] += any(len(c) > 1 for (_, path), c in holes.items() if path)

    def _pages(self, model: Model) -> dict[Where, PageView]:
        return {
            where: PageView(page.kv, model.locks(*where), model.refiller(*where))
            for where, page in model.pages.items()
        }

    def _compare_match(self, got: Match, want: Matched) -> None:
        for name in Matched.__dataclass_fields__:
            assert getattr(got, name) == getattr(want, name), f"match's {name}"
        assert got.host == 0
        assert got.device + got.hole + got.arriving == got.end
        assert [(s.start, s.end) for s in got.spans] == list(
            zip([0, *(s.end for s in got.spans)], [s.end for s in got.spans], strict=False)
        )

    def _compare_freed(self, want: list[Where], freed: int | None) -> None:
        """The same pages in the same order; a tail is taken from its end backwards."""
        size, backwards = self.config.page_size, self.config.position is Position.TAIL
        got: list[Where] = []
        for (space, path), start in self.freed:
            ends = range(start + size, len(path) + 1, size)
            got += [(space, path[:end]) for end in (reversed(ends) if backwards else ends)]
        assert got == want
        if freed is not None:
            assert freed == len(want) * size

    def _remember(self) -> None:
        """Keep a few states, to see at the end that nothing that came later changed them."""
        if len(self.remembered) < 4 and self.version % 7 == 0:
            self.remembered.append((self.state, pages_of(self.state)))

    def finish(self) -> None:
        """Old states still answer as before."""
        for state, pages in self.remembered:
            assert pages_of(state) == pages
            assert check_state(state) == []


Result_ = TypeVar("Result_", bound=Result)


def _receipt(number: int) -> Receipt:
    return Receipt(ReceiptId(number))
