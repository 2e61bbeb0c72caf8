"""The conformance suite passes good stores, and names the invariant that a faulty one breaks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from penelope.policy import Config, Residency
from penelope.runtime.store import StoreError
from penelope.testing import (
    ONE_TIER,
    TWO_TIERS,
    ConformanceError,
    InspectableStore,
    InspectableSymbolicStore,
    StoreSuite,
    check_store,
)

G, C = Residency.DEVICE, Residency.HOST
Good = InspectableSymbolicStore


class TestSymbolicStore(StoreSuite):
    """The project's own store, through the class that a user would inherit from."""

    def make_store(self, config: Config) -> InspectableStore:
        return Good(config)


class FreesASlotTwice(Good):
    """The free list has it twice; what it says of its room is right."""

    def free(self, slots: Sequence[int], host: Sequence[int] = ()) -> None:
        super().free(slots, host)
        self._pools[G].free += list(slots)[:1]

    def room(self, tier: Residency) -> int:
        return len(set(self._pools[tier].free))


class HandsOutWhatIsInUse(Good):
    def allocate(self, units: int, tier: Residency = G) -> list[int]:
        used = list(self._pools[tier].held)
        taken = super().allocate(units, tier)
        if taken and len(used) > 2:
            self._pools[tier].free.append(taken[-1])
            return [*taken[:-1], used[0]]
        return taken


class ForgetsToFree(Good):
    def free(self, slots: Sequence[int], host: Sequence[int] = ()) -> None:
        super().free(slots, host)
        if len(slots) > 2:
            self._pools[G].free.pop()


class CopiesToWrongSlots(Good):
    """Each to its neighbour's place, where several are copied at once."""

    def copy(self, source: Sequence[int], target: Sequence[int], tier: Residency) -> None:
        super().copy(source, [*target[1:], *target[:1]], tier)


class LosesContentAtACopy(Good):
    def copy(self, source: Sequence[int], target: Sequence[int], tier: Residency) -> None:
        super().copy(source, target, tier)
        if tier is G:
            self._pools[tier].held[target[-1]] = None


class FreesTheSourceBeforeTheCopyIsDone(Good):
    """A copy that returns at once and is made behind the next call, when the source is free."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.waiting: list[tuple[Sequence[int], Sequence[int], Residency]] = []

    def copy(self, source: Sequence[int], target: Sequence[int], tier: Residency) -> None:
        if len(source) != len(target):
            raise StoreError("one slot for each")
        self.waiting.append((source, target, tier))

    def free(self, slots: Sequence[int], host: Sequence[int] = ()) -> None:
        super().free(slots, host)
        while self.waiting:
            source, target, tier = self.waiting.pop()
            for old, new in zip(source, target, strict=True):
                held = self._pools[C if tier is G else G].held
                self._pools[tier].held[new] = held.get(old)


class WipesTheSourceOfAFailedCopy(Good):
    def copy(self, source: Sequence[int], target: Sequence[int], tier: Residency) -> None:
        if len(source) > 1:
            for slot in source:
                self._pools[C if tier is G else G].held[slot] = None
            raise StoreError("the link is down")
        super().copy(source, target, tier)


class ReportsTooMuchRoom(Good):
    def room(self, tier: Residency) -> int:
        return super().room(tier) + (1 if len(self._pools[tier].held) > 3 else 0)


class HasLessRoomThanItSays(Good):
    def allocate(self, units: int, tier: Residency = G) -> list[int]:
        if units == len(self._pools[tier].free) > 0:
            raise StoreError("the last slot is kept for bad times")
        return super().allocate(units, tier)


class HasMoreRoomThanItsCapacity(Good):
    """A slot that is nobody's, handed out when all are gone."""

    def allocate(self, units: int, tier: Residency = G) -> list[int]:
        if units == len(self._pools[tier].free) + 1:
            self._pools[tier].free.insert(0, 1_000)
        return super().allocate(units, tier)


class AllocatesInPart(Good):
    """Takes what there is, then refuses."""

    def allocate(self, units: int, tier: Residency = G) -> list[int]:
        if units > len(self._pools[tier].free):
            super().allocate(len(self._pools[tier].free), tier)
        return super().allocate(units, tier)


class GivesFewerThanAsked(Good):
    def allocate(self, units: int, tier: Residency = G) -> list[int]:
        return super().allocate(min(units, len(self._pools[tier].free)), tier)


class TakesHostSlotsFromTheDevice(Good):
    def allocate(self, units: int, tier: Residency = G) -> list[int]:
        return super().allocate(units, G)


class FreesHostSlotsOnTheDevice(Good):
    def free(self, slots: Sequence[int], host: Sequence[int] = ()) -> None:
        try:
            super().free([*slots, *host])
        except StoreError:
            super().free(slots, host)


class ClearsTheWrongSlot(Good):
    """Fresh slots are cleared, and one more."""

    def allocate(self, units: int, tier: Residency = G) -> list[int]:
        taken = super().allocate(units, tier)
        beyond = max(taken, default=-1) + 1
        if beyond in self._pools[tier].held:
            self._pools[tier].held[beyond] = None
        return taken


class TrustsItsCallers(Good):
    def free(self, slots: Sequence[int], host: Sequence[int] = ()) -> None:
        known = [slot for slot in dict.fromkeys(slots) if slot in self._pools[G].held]
        super().free(known, [slot for slot in dict.fromkeys(host) if slot in self._pools[C].held])


class GlueStuck(Good):
    """No copy ever succeeds, which a store may say; but then it has no second tier."""

    def copy(self, source: Sequence[int], target: Sequence[int], tier: Residency) -> None:
        raise StoreError("the link is down")


FAULTS = [
    (FreesASlotTwice, ONE_TIER, "one-copy"),
    (HandsOutWhatIsInUse, ONE_TIER, "one-copy"),
    (ForgetsToFree, ONE_TIER, "accounting"),
    (CopiesToWrongSlots, TWO_TIERS, "moves-do-not-evict"),
    (LosesContentAtACopy, TWO_TIERS, "moves-do-not-evict"),
    (FreesTheSourceBeforeTheCopyIsDone, TWO_TIERS, "moves-do-not-evict"),
    (WipesTheSourceOfAFailedCopy, TWO_TIERS, "exact-refill"),
    (ReportsTooMuchRoom, ONE_TIER, "accounting"),
    (HasLessRoomThanItSays, ONE_TIER, "accounting"),
    (HasMoreRoomThanItsCapacity, ONE_TIER, "accounting"),
    (AllocatesInPart, ONE_TIER, "accounting"),
    (GivesFewerThanAsked, ONE_TIER, "accounting"),
    (TakesHostSlotsFromTheDevice, TWO_TIERS, "accounting"),
    (FreesHostSlotsOnTheDevice, TWO_TIERS, "accounting"),
    (ClearsTheWrongSlot, ONE_TIER, "exact-refill"),
    (TrustsItsCallers, ONE_TIER, "one-copy"),
]


@pytest.mark.parametrize(
    ("store", "config", "invariant"), FAULTS, ids=[store.__name__ for store, _, _ in FAULTS]
)
def test_a_faulty_store_fails_with_the_name_of_what_it_breaks(
    store: type[Good], config: Config, invariant: str
) -> None:
    with pytest.raises(ConformanceError) as first:
        check_store(store, config=config)
    assert first.value.invariant == invariant
    text = str(first.value)
    assert text.startswith(f"{invariant}: ")
    assert "\n" not in text
    assert f"(seed 0, after: {'; '.join(first.value.operations)})" in text
    # The shortest sequence found is one that a person can follow.
    assert 1 <= len(first.value.operations) <= 12


def test_the_same_seed_finds_the_same_fault_in_the_same_words() -> None:
    texts = []
    for _ in range(2):
        with pytest.raises(ConformanceError) as found:
            check_store(LosesContentAtACopy, config=TWO_TIERS, seed=3)
        texts.append(str(found.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("config", [ONE_TIER, TWO_TIERS], ids=["one tier", "two tiers"])
def test_what_a_run_has_shown_is_reported_and_depends_on_the_seed_only(config: Config) -> None:
    reports = [check_store(Good, config=config, operations=200, seed=seed) for seed in (5, 5, 6)]
    assert reports[0] == reports[1] != reports[2]
    assert str(reports[0]).startswith("200 operations (seed 5): ")
    assert reports[0].seen["failures"] > 0
    if config.host_capacity:
        assert reports[0].seen["staged"] > 0, "exchanges went through the swap buffer"


def test_other_sizes_and_policies() -> None:
    for page, block, device, host, swap in ((2, 4, 24, 28, 4), (3, 3, 18, 0, 0), (1, 1, 5, 5, 1)):
        config = Config(device, page, block, host_capacity=host, swap_buffer=swap)
        assert check_store(Good, config=config).seen["admitted"] > 20


def test_a_store_may_trust_its_callers_where_it_says_so() -> None:
    check_store(TrustsItsCallers, misuse=False)


def test_the_class_reports_a_second_tier_that_does_nothing() -> None:
    class Stuck(StoreSuite):
        def make_store(self, config: Config) -> InspectableStore:
            return GlueStuck(config)

    Stuck().test_one_tier()
    with pytest.raises(AssertionError, match="no copy has succeeded"):
        Stuck().test_two_tiers()
    Stuck.two_tiers = None
    Stuck().test_two_tiers()
    with pytest.raises(NotImplementedError, match="override make_store"):
        StoreSuite().test_one_tier()


def test_a_store_that_breaks_down_says_after_what() -> None:
    class Breaks(Good):
        def allocate(self, units: int, tier: Residency = G) -> list[int]:
            raise MemoryError

    with pytest.raises(MemoryError) as broken:
        check_store(Breaks)
    assert broken.value.__notes__[0].startswith("after: ")


def test_the_suite_needs_nothing_but_the_core() -> None:
    """An engine developer has no pytest, no Hypothesis and no z3 on the machine with the GPU."""
    program = """
import sys
for name in ("pytest", "hypothesis", "z3", "numpy", "click", "rich", "torch"):
    sys.modules[name] = None
from penelope.testing import TWO_TIERS, InspectableSymbolicStore, check_store
print(check_store(InspectableSymbolicStore, config=TWO_TIERS, operations=50).operations)
"""
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "50\n"
