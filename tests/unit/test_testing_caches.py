"""The conformance suite for whole caches: shells that follow the core, well and badly."""

from __future__ import annotations

from contextlib import suppress

import pytest

from penelope import policy
from penelope.policy import Config, Effect, Key, MoveId, Plan, Split, State
from penelope.runtime.cache import Cache, Offered, Request
from penelope.runtime.keeping import Keeper
from penelope.runtime.slots import Staged
from penelope.runtime.store import StoreError
from penelope.testing import ONE_TIER, TWO_TIERS, ConformanceError, check_cache


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("config", [ONE_TIER, TWO_TIERS], ids=["one tier", "two tiers"])
def test_the_projects_own_cache_passes(config: Config, seed: int) -> None:
    seen = check_cache(Cache, config=config, seed=seed).seen
    assert min(seen[name] for name in ("admitted", "refilled", "evicted", "failures")) > 0
    if config.host_capacity:
        assert min(seen["read from the host"], seen["staged"]) > 20


class ForgetsToUnlock(Cache):
    def release(self, request: Request) -> None:
        self._kept.free(request.owned)
        request.holes, request.tail = {}, []


class NoDuplicates(Keeper):
    def adopt(
        self, name: str, state: State, effects: tuple[Effect, ...], mine: list[int], start: int
    ) -> list[int]:
        self.commit(state, self.stage(name, state, effects, mine, start))
        return []


class KeepsDuplicates(Cache):
    """What the tree had already is not given back."""

    _keeper = NoDuplicates


class EvictsOnPaperOnly(Cache):
    def evict(self, need: int) -> int:
        state, effects, freed = policy.evict(self.state, need)
        self._kept.commit(state, self._kept.stage("evict", state, effects))
        return freed


class Optimist(Keeper):
    def give_up(self, move: MoveId) -> None:
        self.arrive(move)


class TakesAFailedCopyForDone(Cache):
    _keeper = Optimist


class Hasty(Keeper):
    def arrive(self, move: MoveId) -> None:
        self.free_all(self.slots.stage(policy.end_move(self.state, move).effects))

    def give_up(self, move: MoveId) -> None:
        self.free_all(self.slots.stage(policy.fail_move(self.state, move).effects))


class FreesTooEarly(Cache):
    """The old slots of a move are free while the core still has them."""

    _keeper = Hasty


class PutsSlotsInTheWrongOrder(Cache):
    def table(self, request: Request, beside: object = ()) -> list[int]:
        slots = super().table(request)
        return [*slots[1::-1], *slots[2:]]


class RefillsTheWrongWayRound(Cache):
    def refill(self, request: Request, start: int, end: int) -> Offered:
        request.holes = {span: slots[::-1] for span, slots in request.holes.items()}
        return super().refill(request, start, end)


class AllocatesMoreThanItReserves(Cache):
    def admit(self, plan: Plan) -> Request:
        request = super().admit(plan)
        with suppress(StoreError):
            request.tail = request.tail + self._kept.store.allocate(1)
        return request


class TellsNoSplits(Keeper):
    def stage(
        self,
        name: str,
        state: State,
        effects: tuple[Effect, ...],
        mine: list[int] | None = None,
        start: int = 0,
    ) -> Staged[list[int]]:
        told = tuple(effect for effect in effects if not isinstance(effect, Split))
        super().stage(name, state, told, mine, start)
        return super().stage(name, state, effects, mine, start)


class ReportsItsOwnEffects(Cache):
    """A split is left out of what the observer is told."""

    _keeper = TellsNoSplits


class FollowsNoSplits(Keeper):
    def stage(
        self,
        name: str,
        state: State,
        effects: tuple[Effect, ...],
        mine: list[int] | None = None,
        start: int = 0,
    ) -> Staged[list[int]]:
        kept = tuple(effect for effect in effects if not isinstance(effect, Split))
        staged = super().stage(name, state, effects, mine, start)
        return staged if kept == effects else self.slots.stage(kept)


class IgnoresSplits(Cache):
    """The table of slots is not told where nodes were cut."""

    _keeper = FollowsNoSplits


class EvictsMore(Cache):
    """A whole block more than is needed, to be on the safe side."""

    def evict(self, need: int) -> int:
        return super().evict(min(need + 2, self.state.evictable))


class RefusesWhatItCouldDo(Cache):
    def evict(self, need: int) -> int:
        if need == self.state.evictable:
            raise policy.InsufficientSpace("the last units are kept")
        return super().evict(need)


class ForgetsARequestsTail(Cache):
    def checkpoint(self, request: Request, key: Key) -> Offered:
        offered = super().checkpoint(request, key)
        request.tail = []
        return offered


FAULTS = [
    (ForgetsToUnlock, ONE_TIER, "lock-balance"),
    (KeepsDuplicates, ONE_TIER, "one-copy"),
    (EvictsOnPaperOnly, ONE_TIER, "one-copy"),
    (TakesAFailedCopyForDone, TWO_TIERS, "exact-refill"),
    (FreesTooEarly, TWO_TIERS, "one-copy"),
    (PutsSlotsInTheWrongOrder, ONE_TIER, "exact-refill"),
    (RefillsTheWrongWayRound, ONE_TIER, "exact-refill"),
    (AllocatesMoreThanItReserves, ONE_TIER, "accounting"),
    (ReportsItsOwnEffects, ONE_TIER, "effects-tell-all"),
    (EvictsMore, ONE_TIER, "minimal-eviction"),
    (RefusesWhatItCouldDo, ONE_TIER, "progress"),
    (ForgetsARequestsTail, ONE_TIER, "one-copy"),
]


@pytest.mark.parametrize(
    ("cache", "config", "invariant"), FAULTS, ids=[cache.__name__ for cache, _, _ in FAULTS]
)
def test_a_faulty_cache_fails_with_the_name_of_what_it_breaks(
    cache: type[Cache], config: Config, invariant: str
) -> None:
    with pytest.raises(ConformanceError) as found:
        check_cache(cache, config=config)
    assert found.value.invariant == invariant
    assert 1 <= len(found.value.operations) <= 10


def test_a_cache_that_breaks_down_says_after_what() -> None:
    with pytest.raises(KeyError) as broken:
        check_cache(IgnoresSplits)
    assert broken.value.__notes__[0].startswith("after: ")
