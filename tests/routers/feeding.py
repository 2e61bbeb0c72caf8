"""One history of 104 blocks of which 16 become a hole, and deliveries that go wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from penelope.policy import Config, Effect, State, pack
from penelope.runtime.announcing import Announce, announcements
from penelope.runtime.cache import Cache
from penelope.runtime.symbolic import SymbolicStore
from tests.routers.fleet import Blocks, Fleet, Listener, Sizes
from tests.routers.indexes import Event, Index

SCORES = {
    Announce.STICKY: [104, 104, 104],
    Announce.PREFIX: [104, 4, 104],
    Announce.EXACT: [104, 4, 20],
}
"""Of Dynamo's index: before the hole, with it, and after the refill."""

SMALL = Sizes(replicas=3, sessions=8, capacity=60, shared=5, turn=6, longest=36, resets=0.02)


def scores_of_a_hole(index: Index, mode: Announce) -> list[int]:
    """104 blocks, 4 of them shared: before 16 become a hole, with it, and after its refill."""
    page, seen = 2, []
    blocks = Blocks(page, 4)

    def observe(before: State, name: str, after: State, effects: tuple[Effect, ...]) -> None:
        for told in announcements(mode, before, after, effects):
            index.apply(blocks.event(0, told))

    store = SymbolicStore(512)
    cache = Cache(Config(512, page, page), store, observe)
    history = [*range(208)]
    request = blocks.of(pack(history))
    cache.insert(pack([*history[:8], 900, 901]), store.allocate(10))
    cache.insert(pack(history), store.allocate(208))
    keeps = cache.admit(cache.plan(pack([*history[:8], 900, 901, 902])))
    seen.append(index.scores(request).get(0, 0))
    cache.evict(32)
    cache.release(keeps)
    seen.append(index.scores(request).get(0, 0))
    again = cache.admit(cache.plan(pack([*history, 999])))
    assert list(again.holes) == [(8, 40)]
    cache.refill(again, 8, 40)
    seen.append(index.scores(request).get(0, 0))
    return seen


class Recorder:
    """An index that only keeps what it is told; a clearance is None."""

    def __init__(self) -> None:
        self.refused = 0
        self.events: list[Event | int] = []

    def apply(self, event: Event) -> None:
        self.events.append(event)

    def clear(self, replica: int) -> None:
        self.events.append(replica)

    def scores(self, request: Sequence[int]) -> dict[int, int]:
        return {}


def recorded(seed: int, mode: Announce, requests: int = 60) -> tuple[list[Event], list[list[int]]]:
    """The events of a fleet that nobody clears, and the requests that it served."""
    recorder = Recorder()
    fleet = Fleet(seed, SMALL._replace(resets=0), [Listener(mode, recorder)])
    asked = [fleet.blocks.of(pack(units)) for units in fleet.requests(requests)]
    return [event for event in recorder.events if isinstance(event, Event)], asked


Spoil = Callable[[Random, list[Event]], list[Event]]


def lost_removes(random: Random, events: list[Event]) -> list[Event]:
    return [event for event in events if event.stored or random.random() > 0.2]


def lost_stores(random: Random, events: list[Event]) -> list[Event]:
    return [event for event in events if not event.stored or random.random() > 0.2]


def repeated(random: Random, events: list[Event]) -> list[Event]:
    """A batch that is delivered twice, at once."""
    found: list[Event] = []
    at = 0
    while at < len(events):
        batch = [events[at]]
        # Of one kind: the second time, a block that came and went would come again.
        for event in events[at + 1 : at + random.randrange(1, 6)]:
            if event.stored is not batch[0].stored:
                break
            batch.append(event)
        found += batch * (2 if random.random() < 0.3 else 1)
        at += len(batch)
    return found


def reordered(random: Random, events: list[Event]) -> list[Event]:
    """Neighbours that overtake each other."""
    found = [*events]
    for at in range(len(found) - 1):
        if random.random() < 0.2:
            found[at], found[at + 1] = found[at + 1], found[at]
    return found


def delivered(index: Index, events: list[Event]) -> Index:
    for event in events:
        index.apply(event)
    return index
