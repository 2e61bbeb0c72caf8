"""Which histories a session has left behind, as far as requests say whose they are.

A request's `session_id` does not change its prompt, and clients use it loosely: sub-agents may
speak under one id by turns.  So a history counts as left only if the session has gone on from its
second half: then a wrong guess costs less than what is kept.  One that goes on from an earlier
point, such as a common system prompt, is a branch beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from penelope import policy
from penelope.policy import UNIT_BYTES
from penelope.policy.keys import common_prefix
from penelope.runtime.mirror import Mirror
from penelope.sglang_adapter.paths import Path, weights_of
from penelope.sglang_adapter.statistics import Statistics

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

MOST_BRANCHES = 8
"""Branches of one session that are remembered; the one that has been silent longest is forgotten.
"""


LAST = "penelope_last"
"""Attribute of a request whose session was over before the request had ended."""


class Cache(Protocol):
    """The cache that has the histories."""

    mirror: Mirror[Any]
    statistics: Statistics
    weights: int


class Sessions:
    """The ends of sessions' histories.  `room`: tokens of them that are remembered at most.

    Of sessions beyond that, those not heard of for longest are forgotten: what others have spoken
    since fills the cache.  A forgotten session is treated like one that never said who it was.
    """

    def __init__(self, room: int, page_size: int) -> None:
        self._room = room
        self._page = page_size
        self._ends: dict[str, list[Path]] = {}
        """By session, the one that spoke last at the end; so are the branches of each."""
        self._tokens = 0

    def heard(self, cache: Cache, req: Req) -> None:
        """A request has ended, and what it computed is in the tree."""
        session = session_of(req)
        if session is None or weights_of(req.last_node.namespace) != cache.weights:
            return
        if vars(req).pop(LAST, False):
            _retire(cache, req.last_node)
        elif (left := self.spoke(session, req.last_node, linear=req.session is None)) is not None:
            _retire(cache, left)

    def close(self, cache: Cache, session: str, running: Iterable[Req]) -> bool:
        """A session is over: nobody will ask for its histories.  False if nothing of it is known.

        `running`: requests that wait or run; what those of the session leave goes first as well.
        """
        branches = self.end(session)
        for path in branches:
            _retire(cache, path)
        last = [req for req in running if session_of(req) == session]
        for req in last:
            setattr(req, LAST, True)
        return bool(branches or last)

    def spoke(self, session: str, path: Path, *, linear: bool = True) -> Path | None:
        """A request of the session has ended with this history; the one that it has left, if any.

        `linear`: a session that branches on purpose leaves nothing.
        """
        if not path.end:
            return None  # It fills no page: nothing is kept of it.
        branches = self._forget(session)
        left = None
        shared, nearest = max(
            ((self._shared(end, path), at) for at, end in enumerate(branches)), default=(0, None)
        )
        if nearest is not None:
            end = branches[nearest]
            if shared == path.end:
                path = end  # It has said less than before: nothing is known of where it goes on.
            elif linear and shared < end.end <= 2 * shared:
                left = end
            if shared == end.end or left is end or path is end:
                del branches[nearest]
        self._remember(session, [*branches, path][-MOST_BRANCHES:])
        return left

    def end(self, session: str) -> list[Path]:
        """The session is over: all histories that are remembered of it."""
        return self._forget(session)

    def clear(self) -> None:
        self._ends.clear()
        self._tokens = 0

    def _shared(self, one: Path, other: Path) -> int:
        """Tokens in whole pages from the beginning that two histories have in common."""
        if one.namespace != other.namespace:
            return 0
        stop = min(one.end, other.end) * UNIT_BYTES
        return common_prefix(one.key, other.key, 0, stop, self._page * UNIT_BYTES) // UNIT_BYTES

    def _remember(self, session: str, branches: list[Path]) -> None:
        self._ends[session] = branches
        self._tokens += sum(end.end for end in branches)
        while self._tokens > self._room and len(self._ends) > 1:
            self._forget(next(iter(self._ends)))

    def _forget(self, session: str) -> list[Path]:
        branches = self._ends.pop(session, [])
        self._tokens -= sum(end.end for end in branches)
        return branches


def session_of(req: Req) -> str | None:
    """The session that a request says it belongs to, opened with SGLang or not."""
    session: str | None = req.session_id
    return req.session.session_id if session is None and req.session is not None else session


def _retire(cache: Cache, path: Path) -> None:
    before = cache.mirror.state
    matched = policy.match(before, path.key, path.namespace, at_most=path.end)
    state, effects = policy.retire(before, matched)
    if state is not before:
        cache.statistics.add("retired_histories")
        cache.mirror.apply(state, effects)
