"""What the cache is told of the future: who waits, and which histories a session has left."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from penelope.policy import Order
from penelope.policy.waiting import IN_VIEW
from penelope.sglang_adapter import waiting_line
from penelope.sglang_adapter.paths import Path, pack_tokens
from penelope.sglang_adapter.sessions import MOST_BRANCHES, Sessions
from penelope.sglang_adapter.waiting_line import waits_in
from tests.sglang.steps import Steps

pytestmark = [pytest.mark.sglang, pytest.mark.smoke, pytest.mark.usefixtures("sglang_settings")]

ORDERS = pytest.mark.parametrize("order", list(Order), ids=lambda order: order.value)


def tokens(name: int, length: int) -> list[int]:
    """A history of its own, page by page."""
    return [(name * 100 + at) % 1000 for at in range(length)]


def served(s: Steps, *names: int, length: int = 16) -> None:
    """Histories of so many tokens, the first the least recently used."""
    for name in names:
        s.serve(tokens(name, length), rid=f"served{name}")


def wait(s: Steps, name: int, rid: str = "waits", **more: Any) -> Any:
    """Somebody wants the history of that name and more."""
    req = s.request(rid, [*tokens(name, 16), 7, 7, 7, 7], **more)
    s.waiting.append(req)
    return req


# The queue


@ORDERS
@pytest.mark.parametrize("host", [0, 32], ids=["one-tier", "two-tiers"])
def test_a_history_that_waits_is_spared(order: Order, host: int) -> None:
    for queue in (False, True):
        s = Steps(pool=64, order=order, queue=queue, host=host, swap=4 if host else 0)
        served(s, *range(1, 6 if host else 4))
        assert "_" not in s.show(tokens(1, 16))
        wait(s, 1)
        s.press(20)
        counted = s.cache.statistics.counts
        if queue:
            assert s.show(tokens(1, 16)).count("_") == 0
            assert counted.spared_requests == 1
            assert counted.queued_evicted_tokens == 0
        else:
            assert "_" in s.show(tokens(1, 16))
            assert not s.cache.state.waiting.order, "nothing is read that was not asked for"
        s.press(24)
        assert counted.spared_requests == int(queue), "it is counted once"


def test_what_even_the_queue_must_lose_is_counted() -> None:
    s = Steps(pool=48, queue=True)
    served(s, 1, 2)
    for name in (1, 2):
        wait(s, name, f"waits{name}")
    s.press(48 - 8)
    assert s.cache.statistics.counts.queued_evicted_tokens == 24
    assert s.show(tokens(1, 16)) == "__GG", "who is served first loses last"
    assert s.show(tokens(2, 16)) == ""


def test_only_who_came_into_view_is_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Steps(pool=96, queue=True, order=Order.EXPECTED_COST)
    served(s, 1, 2, 3, 4)
    matched: list[str] = []
    true_match = waiting_line.WaitingLine._match

    def match(line: Any, tree: Any, req: Any, weights: int) -> Any:
        matched.append(req.rid)
        return true_match(line, tree, req, weights)

    monkeypatch.setattr(waiting_line.WaitingLine, "_match", match)
    for name in (1, 2, 3):
        wait(s, name, f"waits{name}")
    s.press(40)
    assert matched == ["waits1", "waits2", "waits3"]
    s.press(44)
    assert len(matched) == 3, "nobody is matched twice"
    before = s.cache.state
    s.cache.look_at_queue()
    assert s.cache.state is before, "a queue that has not changed changes nothing"
    s.waiting[:] = [s.waiting[2], s.waiting[0], s.waiting[1]]
    wait(s, 4, "waits4")
    s.cache.look_at_queue()
    assert matched[3:] == ["waits4"], "a place in the queue is no new request"
    assert len(s.cache.state.waiting.order) == 4


def test_who_was_out_of_view_is_matched_again() -> None:
    s = Steps(pool=64, queue=True)
    served(s, 1, 2)
    first, second = wait(s, 1, "first"), wait(s, 2, "second")
    for waiting in ([first, second], [second], [first, second]):
        s.waiting[:] = waiting
        s.cache.look_at_queue()
        assert len(s.cache.state.waiting.order) == len(waiting)
        assert len(s.cache.state.waiting.at) == len(waiting)


def test_a_long_queue_is_looked_at_as_far_as_it_counts() -> None:
    s = Steps(pool=48, queue=True)
    served(s, 1, 2)
    for number in range(IN_VIEW):
        s.waiting.append(s.request(f"stranger{number}", [number, 999, 999]))
    wait(s, 1)
    s.press(20)
    assert len(s.cache.state.waiting.order) == IN_VIEW
    assert s.show(tokens(1, 16)) != "GGGG", "behind the view a history is idle"
    del s.waiting[0]
    s.cache.look_at_queue()
    assert len(s.cache.state.waiting.order) == IN_VIEW
    assert s.cache.state.waiting.at, "now it has come into view"


def test_who_leaves_the_queue_leaves_nothing() -> None:
    s = Steps(pool=48, queue=True)
    served(s, 1, 2)
    wait(s, 1)
    s.press(20)
    assert len(s.cache.state.waiting.order) == 1
    gone = weakref.ref(s.waiting.pop())
    gc.collect()
    assert gone() is None, "no table holds a request"
    s.press(24)
    assert not s.cache.state.waiting.order
    assert not s.cache.state.waiting.places
    assert s.show(tokens(1, 16)) != "GGGG", "nobody waits for it any more"


def test_who_was_retracted_waits_for_what_it_had() -> None:
    from sglang.srt.mem_cache.common import release_kv_cache

    s = Steps(pool=96, queue=True)
    served(s, 1)
    req = wait(s, 1)
    s.cache.look_at_queue()
    assert [place.end for place in s.cache.state.waiting.places.values()] == [16]
    s.start(req)
    release_kv_cache(req, s.cache, checkpoint=False)
    req.reset_for_retract()
    assert s.cache.state.waiting.places, "nobody has looked in between"
    s.cache.look_at_queue()
    assert [place.end for place in s.cache.state.waiting.places.values()] == [20], "its prompt"


def test_who_is_admitted_in_this_step_does_not_wait() -> None:
    s = Steps(pool=64, queue=True)
    served(s, 1, 2)
    first, second = wait(s, 1, "first"), wait(s, 2, "second")
    adder = s.admit(first)
    assert first in adder.can_run_list
    s.cache.look_at_queue()  # SGLang takes it off the queue when the step is complete
    assert len(s.cache.state.waiting.order) == 1
    (ticket,) = s.cache.state.waiting.order
    assert vars(second)[waiting_line.TICKET].ticket == ticket


@pytest.mark.parametrize(
    ("kept", "asked", "spared"),
    [
        ({}, {}, True),
        ({"extra_key": "one"}, {"extra_key": "one"}, True),
        ({"extra_key": "one"}, {"extra_key": "two"}, False),
        ({"extra_key": "one"}, {}, False),
        ({"cache_salt": "s"}, {"cache_salt": "s"}, True),
        ({"cache_salt": "s"}, {}, False),
        ({"lora_id": "l"}, {"lora_id": "l"}, True),
        ({"lora_id": "l"}, {}, False),
    ],
)
def test_a_history_is_known_by_all_that_names_it(
    kept: dict[str, Any], asked: dict[str, Any], spared: bool
) -> None:
    s = Steps(pool=64, queue=True)
    s.serve(tokens(1, 16), **kept)
    served(s, 2, 3)
    wait(s, 1, **asked)
    s.press(20)
    assert (s.show(tokens(1, 16), **kept) == "GGGG") is spared


def test_kv_of_other_weights_is_waited_for_by_nobody() -> None:
    s = Steps(pool=48, queue=True)
    served(s, 1, 2)
    req = wait(s, 1)
    s.press(20)
    s.cache.weights_changed()
    assert not s.cache.state.waiting.order
    served(s, 3, 1)
    s.cache.look_at_queue()
    (ticket,) = s.cache.state.waiting.order
    assert vars(req)[waiting_line.TICKET].ticket == ticket
    assert s.cache.state.waiting.places[ticket].end == 16, "it is matched among the new ones"
    s.waiting.clear()
    s.cache.reset()
    assert not s.cache.state.waiting.order


def test_a_prompt_of_vectors_waits_for_nothing() -> None:
    s = Steps(pool=48, queue=True)
    served(s, 1, 2)
    wait(s, 1).positional_embed_overrides = object()
    s.press(20)
    assert len(s.cache.state.waiting.order) == 1
    assert not s.cache.state.waiting.at


def test_who_waits_for_a_grammar_comes_last() -> None:
    scheduler = SimpleNamespace(
        waiting_queue=["a", "b"], grammar_manager=SimpleNamespace(grammar_queue=["c"])
    )
    assert list(waits_in(scheduler)) == ["a", "b", "c"]


def test_a_match_is_a_use_only_where_the_queue_is_out_of_view() -> None:
    for queue in (False, True):
        s = Steps(pool=64, queue=queue)
        served(s, 1)
        before = s.cache.state.tick
        s.request("looks", [*tokens(1, 16), 1, 1]).init_next_round_input(s.cache)
        assert (s.cache.state.tick > before) is not queue


# Lifetimes


def turn(s: Steps, prompt: list[int], rid: str, session: str | None = "s") -> list[int]:
    """A request of a session; its history."""
    req = s.request(rid, prompt, session_id=session)
    assert req in s.prefill(req)
    s.finish(req)
    return prompt


@ORDERS
def test_a_branch_that_its_session_has_left_goes_first(order: Order) -> None:
    for session, first in (("s", "left"), (None, "idle")):
        s = Steps(pool=96, order=order, queue=True)
        turn(s, tokens(5, 16), "idle", None)
        turn(s, tokens(1, 24), "left", session)
        turn(s, [*tokens(1, 16), *tokens(2, 8)], "rewritten", session)
        s.press(96 - 48 + 8)
        assert s.show(tokens(5, 16)) == ("GGGG" if first == "left" else "__GG")
        assert s.show(tokens(1, 24)) == ("GGGG" if first == "left" else "GGGGGG")
        assert s.show([*tokens(1, 16), *tokens(2, 8)]) == "GGGGGG"
        assert s.cache.statistics.counts.retired_histories == int(first == "left")


def test_going_on_and_branching_early_leave_nothing() -> None:
    s = Steps(pool=128)
    turn(s, tokens(1, 16), "first")
    turn(s, tokens(1, 24), "goes on")
    turn(s, tokens(1, 24), "says it again")
    turn(s, [*tokens(1, 8), *tokens(2, 24)], "sub-agent")
    turn(s, tokens(1, 32), "goes on after all")
    turn(s, tokens(3, 16), "something else")
    turn(s, [*tokens(1, 28), *tokens(4, 8)], "of another", "t")
    assert s.cache.statistics.counts.retired_histories == 0
    turn(s, [*tokens(1, 28), *tokens(4, 8)], "left at last")
    assert s.cache.statistics.counts.retired_histories == 1


def test_a_session_that_is_over_goes_first() -> None:
    s = Steps(pool=96)
    turn(s, tokens(5, 16), "idle", None)
    turn(s, tokens(1, 16), "one branch")
    turn(s, tokens(2, 16), "another")
    assert s.cache.sessions.close(s.cache, "s", [])
    assert s.cache.statistics.counts.retired_histories == 2
    s.press(96 - 48 + 32)
    assert s.show(tokens(5, 16)) == "GGGG"
    assert s.show(tokens(1, 16)) == s.show(tokens(2, 16)) == ""
    assert not s.cache.sessions.close(s.cache, "s", []), "it is forgotten"
    assert not s.cache.sessions.close(s.cache, "never heard of", [])


def test_what_still_runs_of_a_session_that_is_over_goes_when_it_ends() -> None:
    s = Steps(pool=96)
    turn(s, tokens(5, 16), "idle", None)
    req = s.request("runs", tokens(1, 16), 4, session_id="s")
    other = s.request("of another", tokens(2, 16), 4, session_id="t")
    s.prefill(req, other)
    assert s.cache.sessions.close(s.cache, "s", [req, other])
    assert s.decode(req, other)
    s.finish(req)
    s.finish(other)
    assert s.cache.statistics.counts.retired_histories == 1
    turn(s, tokens(1, 12), "comes back")
    assert s.cache.statistics.counts.retired_histories == 1, "it is a session like any other"


def test_a_session_opened_with_sglang_branches_on_purpose() -> None:
    s = Steps(pool=96)
    for end in (1, 2):
        prompt = [*tokens(1, 16), *tokens(end, 8)]
        req = s.request("r", prompt)
        req.session = SimpleNamespace(session_id="opened", streaming=False)
        s.prefill(req)
        s.finish(req)
    assert s.cache.statistics.counts.retired_histories == 0
    assert s.cache.sessions.close(s.cache, "opened", [])
    assert s.cache.statistics.counts.retired_histories == 2


def path(name: int, length: int) -> Path:
    from array import array

    return Path(key=pack_tokens(array("q", tokens(name, length)), length), end=length)


def test_sessions_that_were_not_heard_of_for_long_are_forgotten() -> None:
    sessions = Sessions(room=64, page_size=4)
    for name in range(3):
        sessions.spoke(f"s{name}", path(name, 24))
    assert sessions.end("s0") == [], "forgotten"
    assert sessions.end("s2") == [path(2, 24)]
    sessions.spoke("long", path(1, 400))
    assert sessions.end("s1") == [], "the one that speaks is never the one that goes"
    assert sessions.end("long") == [path(1, 400)]
    many = Sessions(room=10_000, page_size=4)
    for name in range(MOST_BRANCHES + 3):
        many.spoke("s", path(name, 8))
    assert many.end("s") == [path(name, 8) for name in range(3, MOST_BRANCHES + 3)]
