"""Orders of victims that others propose, and one that knows the future: arms of a comparison.

Matches, locks, accounts and the legality of every victim are the core's; only whose history loses
KV next, and how much of it, is the arm's own.  They read the clock, or the trace, or look at every
history at each choice, which no engine could: they are for the replay alone, with one tier.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Final, NamedTuple

from penelope import policy
from penelope.policy import UNIT_BYTES, Config, Key, NodeId, State, private_span
from penelope.policy.draft import Draft
from penelope.policy.errors import InvalidConfigError
from penelope.policy.eviction import drain
from penelope.policy.waiting import rank, soonest
from penelope.runtime.replay.caches import Admission, Ask, CoreCache, Waiter

CHUNK: Final = 16
"""Blocks that one history loses before all are compared again."""

TURN: Final = 64
"""Blocks that one history loses before it is another's turn."""

EVERYTHING: Final = 1 << 62
"""Units: until the need is met, where the same history would be chosen again."""


class ChoosingCache(CoreCache):
    """The core with another choice of victims.  Raises `InvalidConfigError` for a second tier."""

    def __init__(self, config: Config, *, queue_in_view: bool = False) -> None:
        if config.host_capacity:
            raise InvalidConfigError("this policy has one tier: leave --host-tokens out")
        super().__init__(config, queue_in_view=queue_in_view)
        self._now = 0.0

    def clock(self, now: float) -> None:
        self._now = now

    def admit(self, ask: Ask) -> Admission | None:
        plan = self._plan(ask)
        if not plan.admissible:
            return None
        freed = 0
        if plan.evict:
            # As in the core, what the request will use itself is locked before anything goes.
            self.state, _, held = policy.acquire(self.state, plan.match)
            draft = Draft(self.state)
            while freed < plan.evict:
                leaf, units = self._victim(draft)
                freed += drain(draft, leaf, min(units, plan.evict - freed))
            self.state, _ = draft.close()
            self.state = policy.release(self.state, held).state
        admission = super().admit(ask)
        assert admission is not None, "the room has been made"
        assert not admission.dropped, "the room has been made"
        return replace(admission, dropped=freed, excess=max(0, freed - plan.evict))

    @abstractmethod
    def _victim(self, draft: Draft) -> tuple[NodeId, int]:
        """The history that loses KV next, and how many units before the next choice, 1 or more.

        There is a victim whenever this is asked.
        """


def _stamp(state: State, history: Key) -> int:
    """Of the last use of a history that has just ended: what stays of it keeps the stamp."""
    node = policy.match(state, history).node
    return -1 if node is None else state.nodes[node].stamp


class RoundRobinTails(ChoosingCache):
    """Every idle history gives a little of its end in turn, from the least recently used on.

    The fair share of a memory manager that reclaims from all processes alike: nobody loses
    everything, and everybody loses the part that is dearest to recompute.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._last = -1
        """The stamp of the history that gave last."""

    def _victim(self, draft: Draft) -> tuple[NodeId, int]:
        order = list(draft.victims.in_order())
        stamp, leaf = next((one for one in order if one[0] > self._last), order[0])
        self._last = stamp
        return leaf, TURN * draft.config.block_size


class TailLatencyLru(ChoosingCache):
    """T-LRU: first goes KV without which the next turn's TTFT still stays within a threshold.

    Zhang, Li, Moallemi and Peng, *Tail-Optimized Caching for LLM Inference* (arXiv:2510.15152,
    2025).  A history of L tokens whose next turn brings about Q more needs L + Q - threshold of
    them cached, so that no more than the threshold is computed.  What is cached beyond that goes
    first, from the end, the least recently used history first; then whole histories go by LRU.
    As in the paper, TTFT is taken as proportional to the tokens computed, and Q is a constant.
    """

    def __init__(self, config: Config, slack: int) -> None:
        """`slack` is the threshold less Q, in units: what a history may lack."""
        super().__init__(config)
        self._slack = slack
        self._lengths: dict[int, int] = {}
        """Of whole histories, by the stamp of the use that ended in their end."""

    def finished(self, admission: Admission, history: Key) -> int:
        copied = super().finished(admission, history)
        self._lengths[_stamp(self.state, history)] = len(history) // UNIT_BYTES
        return copied

    def _victim(self, draft: Draft) -> tuple[NodeId, int]:
        for stamp, leaf in draft.victims.in_order():
            end = draft.nodes[leaf].end
            # A branch of which the rest has gone is a history of its own.
            spare = end - max(0, self._lengths.get(stamp, end) - self._slack)
            # In whole blocks of it: less than one more would already be too much.
            whole = spare // draft.config.block_size * draft.config.block_size
            if whole > 0:
                return leaf, whole
        return draft.victims.first_entry()[1], EVERYTHING


class Retention(ChoosingCache):
    """KV is retained for a time to live after its last use, whatever else is asked for.

    As in *Continuum: … Multi-Turn LLM Agent Scheduling with KV Cache Time-to-Live* (Li et al.,
    arXiv:2511.02230, 2025), and where prompt caches are sold by the minute: what has expired goes
    first, the oldest first, from the end.  When everything is retained and room is needed, the
    promise that was made last is broken, so that those who came before keep theirs.  Here the time
    is the same for all; Continuum sets it by the tool that a session calls, and schedules by it.
    """

    def __init__(self, config: Config, seconds: float) -> None:
        super().__init__(config)
        self._seconds = seconds
        self._ended: list[tuple[int, float]] = []
        """The stamp of every use, and when it ended, in order."""

    def finished(self, admission: Admission, history: Key) -> int:
        copied = super().finished(admission, history)
        self._ended.append((_stamp(self.state, history), self._now))
        return copied

    def _victim(self, draft: Draft) -> tuple[NodeId, int]:
        stamp, leaf = draft.victims.first_entry()
        if self._used(stamp) + self._seconds > self._now:
            _, leaf = draft.victims.last_entry()
        return leaf, EVERYTHING

    def _used(self, stamp: int) -> float:
        """When a use ended: that of this stamp, or the last before it for a mark on the way."""
        at = bisect_right(self._ended, (stamp, inf))
        return self._ended[at - 1][1] if at else 0.0


class _Coming(NamedTuple):
    arrival: float
    number: int
    """Below 0, which no request in the queue has."""
    prompt: Key


class Clairvoyant(ChoosingCache):
    """A greedy that knows which request uses a history next, and when it will arrive.

    It takes the head that costs least for each second until it is wanted: what nobody will ask for
    costs nothing, and a request is served as many places behind as there are before it, at the
    pace so far.  It is a yardstick and no bound: it knows the future and is greedy all the same,
    and its pace is a guess, because who is served when depends on what it chooses.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config, queue_in_view=True)
        self._coming: dict[Key, _Coming] = {}
        self._expected = 0
        self._queue = 0
        """Requests that wait; behind them in the line stand those to come."""
        self._arrivals: list[float] = []
        """Of those to come, in the order of the line."""
        self._served = 0

    def expect(self, prompt: Key, arrival: float) -> None:
        self._expected += 1
        self._coming[prompt] = _Coming(arrival, -self._expected, prompt)

    def line_up(self, waiting: Sequence[Waiter]) -> None:
        for waiter in waiting:
            self._coming.pop(waiter.prompt, None)
        coming = sorted(self._coming.values())
        self._queue, self._arrivals = len(waiting), [one.arrival for one in coming]
        line = [*waiting, *(Waiter(one.number, one.prompt) for one in coming)]
        super().line_up(line)

    def admit(self, ask: Ask) -> Admission | None:
        admission = super().admit(ask)
        self._served += admission is not None
        return admission

    def _victim(self, draft: Draft) -> tuple[NodeId, int]:
        best: tuple[float, NodeId] | None = None
        for _, leaf in draft.victims.in_order():
            span, _ = private_span(draft.config, draft.nodes, leaf)
            ticket = soonest(draft.waiting, span)
            if ticket is None:
                return leaf, EVERYTHING
            cost = draft.config.linear_cost + draft.nodes[span[0]].start
            price = cost / self._seconds_until(rank(draft.waiting, ticket))
            if best is None or price < best[0]:
                best = price, leaf
        assert best is not None, "evictable KV without a victim leaf"
        return best[1], CHUNK * draft.config.block_size

    def _seconds_until(self, place: int) -> float:
        """Until the request at a place of the line is served."""
        pace = self._now / self._served if self._served and self._now else 1.0
        if place < self._queue:
            return (place + 1) * pace
        wait = max(0.0, self._arrivals[place - self._queue] - self._now)
        return wait + (self._queue + 1) * pace
