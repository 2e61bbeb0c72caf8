"""Which requests lost most of their private history, and what they recompute."""

from __future__ import annotations

import pytest

from penelope.runtime.replay.closed_loop import Replayed, replay
from penelope.runtime.replay.sharing import shared_units
from tests.unit.replaying import Ask, server, span, stream, trace

SHARED = range(2)
A = [*SHARED, *range(10, 20)]
"""Two blocks that everyone has, then ten of its own; its output is the last of them."""
B = [*SHARED, *range(100, 200)]


def returning(lost: int, policy: str = "penelope") -> Replayed:
    """A's second request, after B took so many of the ten private blocks it had."""
    one = stream([Ask(A[:-1], output=A[-1:]), Ask([*A, 50], output=[51], think_s=1000.0)])
    end = len(SHARED) + lost + 2
    other = stream([Ask(B[: end - 1], output=B[end - 1 : end], think_s=500.0)])
    # A's second request just fits, so that two blocks are free when B comes.
    return replay(trace([one], [other]), server(len(A) + 2, policy), 2)


@pytest.mark.parametrize(("lost", "mostly"), [(8, 0), (9, 1), (10, 1)])
@pytest.mark.parametrize("policy", ["penelope", "tail-block"])
def test_nine_tenths_of_what_was_private_are_most_of_it(
    lost: int, mostly: int, policy: str
) -> None:
    counters = returning(lost, policy).counters
    # Nine of ten private blocks; of all twelve they would be three quarters.
    gone = (20, 20 + 10 * lost) if policy == "penelope" else (120 - 10 * lost, 120)
    assert counters.recomputed == span(*gone)
    assert counters.mostly_lost == mostly
    assert counters.mostly_lost_recomputed == mostly * span(*gone)


def test_a_first_request_has_lost_nothing() -> None:
    first = [stream([Ask(A[:-1])])]
    counters = replay(trace(first, [stream([Ask(B[:5])])]), server(), 1).counters
    assert (counters.mostly_lost, counters.recomputed) == (0, 0)


def test_streams_share_what_their_first_prompts_begin_with() -> None:
    main = stream([Ask([0, 1, 2, 3]), Ask([0, 1, 2, 3, 4])])
    agent = stream([Ask([7, 8, 40])], starts_after=1)
    other = stream([Ask([0, 1, 30, 3])])
    twin = stream([Ask([7, 8])])
    alone = stream([Ask([60, 0, 1])])
    # A unit that comes again after one of its own is no beginning; a whole prompt may be shared.
    assert shared_units(trace([main, agent], [other], [twin, alone])) == [(2, 2), (2,), (2, 0)]
