"""The smallest episode that still fails: operations are left out while the fault stays."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.server.episode import Episode


def shrink(episode: Episode, fails: Callable[[Episode], bool], more: Callable[[], bool]) -> Episode:
    """Leave out halves, quarters and at last single operations, while `fails` says that it does.

    `more` says whether there is time for another try; without time the best so far is returned.
    """
    places = list(episode.places())
    size = max(1, len(places) // 2)
    while True:
        at, shorter = 0, False
        while at < len(places) and len(places) > 1:
            if not more():
                return episode.only(set(places))
            kept = places[:at] + places[at + size :]
            if kept and fails(episode.only(set(kept))):
                places, shorter = kept, True
            else:
                at += size
        if size == 1 and not shorter:
            return episode.only(set(places))
        size = max(1, size // 2)
