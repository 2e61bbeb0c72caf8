"""The check of what routers are told, for adapters that tell it themselves, well and badly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import pytest

from penelope.policy import (
    Adopt,
    Config,
    Effect,
    Free,
    Remove,
    State,
)
from penelope.runtime.announcing import Announce, Announcement, announcements
from penelope.testing import ONE_TIER, TWO_TIERS, ConformanceError, check_announced
from penelope.testing.announced import Told


def ours(mode: Announce) -> Told:
    return lambda before, after, effects: announcements(mode, before, after, effects)


@pytest.mark.parametrize("mode", Announce)
@pytest.mark.parametrize("config", [ONE_TIER, TWO_TIERS], ids=["one tier", "two tiers"])
def test_the_projects_own_announcements_pass(config: Config, mode: Announce) -> None:
    report = check_announced(ours(mode), mode, config=config)
    assert min(report.seen[kind] for kind in ("refilled", "Free", "Adopt", "Remove", "Merge")) > 0


def forgets_refills(
    before: State, after: State, effects: tuple[Effect, ...]
) -> Iterator[Announcement]:
    """What was withdrawn behind a hole stays so."""
    told = [*announcements(Announce.PREFIX, before, after, effects)]
    return (one for one in told if not one.stored or before.totals.hole <= after.totals.hole)


def late(before: State, after: State, effects: tuple[Effect, ...]) -> Iterable[Announcement]:
    """New before old: more is promised for a moment than there is."""
    told = [*announcements(Announce.PREFIX, before, after, effects)]
    return sorted(told, key=lambda one: not one.stored)


def backwards(before: State, after: State, effects: tuple[Effect, ...]) -> Iterable[Announcement]:
    """What is withdrawn goes from the head on."""
    told = [*announcements(Announce.PREFIX, before, after, effects)]
    gone = [one for one in told if not one.stored]
    return chain(reversed(gone), (one for one in told if one.stored))


def keeps_what_is_removed(
    before: State, after: State, effects: tuple[Effect, ...]
) -> Iterable[Announcement]:
    kept = tuple(effect for effect in effects if not isinstance(effect, Remove))
    return announcements(Announce.STICKY, before, after, kept)


def block_by_block(
    before: State, after: State, effects: tuple[Effect, ...]
) -> Iterable[Announcement]:
    """Exact, to routers that were told to expect closed prefixes."""
    kept = tuple(effect for effect in effects if isinstance(effect, Adopt | Free))
    return announcements(Announce.EXACT, before, after, kept)


@pytest.mark.parametrize(
    ("told", "mode", "invariant"),
    [
        (forgets_refills, Announce.PREFIX, "announced-is-resident"),
        (backwards, Announce.PREFIX, "announced-is-resident"),
        (ours(Announce.STICKY), Announce.PREFIX, "announced-is-resident"),
        (ours(Announce.PREFIX), Announce.STICKY, "announced-covers-resident"),
        (keeps_what_is_removed, Announce.STICKY, "announced-covers-resident"),
        (block_by_block, Announce.STICKY, "announced-covers-resident"),
    ],
)
def test_faulty_announcements_are_found(told: Told, mode: Announce, invariant: str) -> None:
    with pytest.raises(ConformanceError) as found:
        check_announced(told, mode)
    assert found.value.invariant == invariant
    assert 0 < len(found.value.operations) < 12
