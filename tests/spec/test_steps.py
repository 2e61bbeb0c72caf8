"""Every step and trace invariant names itself on a step that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from penelope.policy import (
    Adopt,
    Config,
    Effect,
    Free,
    InsufficientSpace,
    Merge,
    NodeId,
    NotAPrefix,
    Receipt,
    Remove,
    Residency,
    Split,
    State,
    acquire,
    admit,
    empty,
    evict,
    insert,
    match,
    pack,
    plan,
    refill,
    reserve,
    touch,
)
from penelope_spec import Facts, Trace, check_refused, check_step
from tests.spec.test_states import FIRST, OTHER, SECOND, changed, counted, find, good

WHOLE = len(FIRST)


class Step(NamedTuple):
    before: State
    after: State
    transition: str
    facts: Facts


def plain() -> State:
    """Two histories of 16 units that share 8, nothing running, no holes."""
    state = insert(empty(Config(40, 1, 2)), pack(FIRST)).state
    return insert(state, pack(SECOND)).state


def lose(state: State, *nodes: NodeId) -> tuple[State, tuple[Effect, ...]]:
    """The state without the KV of these nodes, and the effects that tell it."""
    effects: list[Effect] = []
    for number in nodes:
        node = state.nodes[number]
        bare = changed(state, number, residency=Residency.HOLE)
        state = counted(bare, device=-node.length, hole=node.length)
        effects.append(Free(number, node.start, node.end))
    return state, tuple(effects)


# Steps that break an invariant, and that one only


def drops_a_shared_prefix() -> Step:
    before = plain()
    after, effects = lose(before, find(before, 0, 8, FIRST))
    return Step(before, after, "evict", {"need": 8, "effects": effects})


def drops_what_is_locked() -> Step:
    state = plain()
    before = acquire(state, match(state, pack(FIRST), at_most=WHOLE)).state
    after, effects = lose(before, find(before, 8, 16, FIRST))
    return Step(before, after, "evict", {"need": 8, "effects": effects})


def drops_what_the_request_matched() -> Step:
    """The request's own prefix, which is not locked yet when the plan is made."""
    before = insert(empty(Config(20, 1, 2)), pack(FIRST)).state
    planned = plan(before, pack([*FIRST, *range(4)]))
    after, effects = lose(before, find(before, 0, 16, FIRST))
    facts: Facts = {"plan": planned._replace(compute=20), "effects": effects}
    return Step(before, after, "admit", facts)


def conceals_a_loss() -> Step:
    """Locked KV is gone, and no effect says so."""
    before = good()
    after, _ = lose(before, find(before, 12, 16, FIRST))
    return Step(before, after, "touch", {})


def frees_too_little() -> Step:
    before = plain()
    done = evict(before, 2)
    return Step(before, done.state, "evict", {"need": 3, "effects": done.effects})


def frees_a_block_too_many() -> Step:
    before = plain()
    done = evict(before, 4)
    return Step(before, done.state, "evict", {"need": 2, "effects": done.effects})


def frees_without_need() -> Step:
    before = plain()
    done = evict(before, 2)
    return Step(before, done.state, "release", {"effects": done.effects})


def evicts_the_request_and_not_the_shortfall() -> Step:
    before = good()
    done = evict(before, 6)
    units = before.free + 2
    return Step(before, done.state, "reserve", {"units": units, "effects": done.effects})


def counts_what_it_did_not_free() -> Step:
    before = plain()
    done = evict(before, 2)
    facts: Facts = {"need": 2, "effects": done.effects, "freed": 3}
    return Step(before, done.state, "evict", facts)


def eviction_gives_kv() -> Step:
    before = good()
    hole = find(before, 0, 4, OTHER)
    after = counted(changed(before, hole, residency=Residency.DEVICE), device=4, hole=-4)
    return Step(before, after, "evict", {"need": 0, "effects": (Adopt(hole, 0, 4),)})


def eviction_changes_tokens() -> Step:
    before = plain()
    node = find(before, 8, 16, SECOND)
    return Step(
        before, changed(before, node, key=pack([*SECOND[:12], 9, 9, 9, 9])), "evict", {"need": 0}
    )


def keeps_a_split_to_itself() -> Step:
    before = plain()
    done = touch(before, match(before, pack(FIRST), at_most=12))
    assert any(isinstance(effect, Split) for effect in done.effects)
    return Step(before, done.state, "touch", {})


def tells_a_split_that_was_none() -> Step:
    before = plain()
    node = find(before, 8, 16, FIRST)
    return Step(before, before, "release", {"effects": (Split(node, NodeId(99), 20),)})


def merges_what_is_not_alike() -> Step:
    before = good()
    upper, lower = find(before, 0, 4, OTHER), find(before, 4, 6, OTHER)
    above = before.nodes[upper].parent
    assert above is not None
    after = changed(before, lower, start=0, parent=above)
    root = after.nodes[above]
    after = changed(after, root.id, children=root.children.set(pack([5]), lower))
    after = counted(replace(after, nodes=after.nodes.delete(upper)), device=4, hole=-4)
    return Step(before, after, "release", {"effects": (Merge(upper, lower),)})


def removes_kv() -> Step:
    before = plain()
    node = before.nodes[find(before, 8, 16, SECOND)]
    above = before.nodes[find(before, 0, 8, SECOND)]
    after = replace(before, nodes=before.nodes.delete(node.id))
    after = changed(after, above.id, children=above.children.delete(pack([20])), stamp=node.stamp)
    return Step(before, after, "release", {"effects": (Remove(node.id),)})


def eviction_makes_recent() -> Step:
    before = plain()
    done = evict(before, 2)
    leaf = find(done.state, 10, 16, FIRST)
    after = replace(changed(done.state, leaf, stamp=done.state.tick + 1), tick=done.state.tick + 1)
    return Step(before, after, "evict", {"need": 2, "effects": done.effects})


def a_use_ages_what_it_did_not_use() -> Step:
    before = plain()
    leaf = find(before, 8, 16, SECOND)
    return Step(before, changed(before, leaf, stamp=1), "touch", {})


def two_histories_used_at_once() -> Step:
    before = plain()
    now = before.tick + 1
    after = changed(before, find(before, 8, 16, FIRST), stamp=now)
    after = replace(changed(after, find(before, 8, 16, SECOND), stamp=now), tick=now)
    return Step(before, after, "touch", {})


def matching_touches() -> Step:
    before = plain()
    return Step(before, replace(before), "match", {})


BROKEN: dict[Callable[[], Step], set[str]] = {
    # Neither was anybody's turn.
    drops_a_shared_prefix: {"no-shared-eviction", "order-followed"},
    drops_what_is_locked: {"no-in-use-eviction", "order-followed"},
    drops_what_the_request_matched: {"no-in-use-eviction"},
    conceals_a_loss: {"no-in-use-eviction", "effects-tell-all"},
    frees_too_little: {"minimal-eviction"},
    frees_a_block_too_many: {"minimal-eviction"},
    frees_without_need: {"minimal-eviction"},
    evicts_the_request_and_not_the_shortfall: {"minimal-eviction"},
    counts_what_it_did_not_free: {"minimal-eviction"},
    eviction_gives_kv: {"history-intact"},
    eviction_changes_tokens: {"history-intact"},
    keeps_a_split_to_itself: {"effects-tell-all"},
    tells_a_split_that_was_none: {"effects-tell-all"},
    merges_what_is_not_alike: {"effects-tell-all"},
    removes_kv: {"effects-tell-all"},
    eviction_makes_recent: {"recency-kept"},
    a_use_ages_what_it_did_not_use: {"recency-kept"},
    two_histories_used_at_once: {"recency-kept"},
    matching_touches: {"reads-change-nothing"},
}


@pytest.mark.parametrize("make", BROKEN, ids=lambda make: make.__name__)
def test_a_broken_step_is_named(make: Callable[[], Step]) -> None:
    step = make()
    found = check_step(step.before, step.after, step.transition, **step.facts)
    assert {violation.invariant for violation in found} == BROKEN[make], found


# Progress: refusals that are wrong


def test_a_wrong_refusal_is_named() -> None:
    state = good()
    error = InsufficientSpace("no")
    enough, room = state.evictable, state.free + state.evictable
    planned = plan(state, pack([9, 9, 9]))

    def told(transition: str, **facts: int) -> list[str]:
        given: Facts = {**facts}  # type: ignore[typeddict-item]
        return [v.invariant for v in check_refused(state, transition, error, **given)]

    assert told("evict", need=enough) == ["progress"]
    assert told("evict", need=enough + 1) == []
    assert told("reserve", units=room) == ["progress"]
    assert told("reserve", units=room + 1) == []
    wrong = check_refused(state, "admit", error, plan=planned)
    assert [v.invariant for v in wrong] == ["progress"]
    assert check_refused(state, "admit", error, plan=planned._replace(compute=room + 1)) == []
    assert check_refused(state, "insert", NotAPrefix("no")) == []


def test_the_requests_own_prefix_is_not_evictable() -> None:
    """Refused for want of space although the cache is full of unlocked KV: of its own."""
    state = insert(empty(Config(16, 1, 2)), pack(FIRST)).state
    planned = plan(state, pack(FIRST))
    error = InsufficientSpace("no")
    assert check_refused(state, "admit", error, plan=planned._replace(compute=2)) == []
    assert check_refused(state, "evict", error, need=2) != []


def test_a_check_without_its_facts_is_refused() -> None:
    state = plain()
    with pytest.raises(ValueError, match="'evict' needs the fact need"):
        check_step(state, state, "evict")
    with pytest.raises(ValueError, match="'reserve' needs the fact units"):
        check_refused(state, "reserve", InsufficientSpace("no"))
    with pytest.raises(ValueError, match="no transition 'evcit'"):
        check_step(state, state, "evcit")


# one-hole


def test_one_hole_is_promised_and_checked() -> None:
    trace, state = Trace(), plain()
    done = evict(state, 2)
    assert trace.step(state, done.state, "evict", need=2, effects=done.effects) == []
    assert trace.promised
    planned = plan(done.state, pack([*FIRST, 1]))
    back = admit(done.state, planned)
    assert trace.step(done.state, back.state, "admit", plan=planned) == []
    (hole,) = planned.holes
    filled = refill(back.state, back.receipt, hole[0], hole[1])
    facts: Facts = {"receipt": back.receipt, "start": hole[0], "effects": filled.effects}
    assert trace.step(back.state, filled.state, "refill", **facts) == []
    assert trace.promised


def test_a_second_hole_is_named_while_one_is_promised() -> None:
    before = evict(plain(), 2).state
    leaf = before.nodes[find(before, 10, 16, FIRST)]
    upper, middle = NodeId(before.next_node), NodeId(before.next_node + 1)
    above = leaf.parent
    assert above is not None
    first = leaf._replace(id=upper, end=12, children=leaf.children.set(pack([10]), middle))
    second = leaf._replace(
        id=middle,
        parent=upper,
        start=12,
        end=14,
        residency=Residency.HOLE,
        children=leaf.children.set(pack([10]), leaf.id),
    )
    nodes = before.nodes.set(upper, first).set(middle, second)
    after = replace(before, nodes=nodes, next_node=middle + 1)
    after = changed(after, leaf.id, start=14, parent=middle)
    after = changed(after, above, children=before.nodes[above].children.set(pack([10]), upper))
    trace = Trace()
    (violation,) = trace.step(before, after, "evict", need=2)
    assert violation.invariant == "one-hole"
    assert violation.text == f"2 holes on the history of node {leaf.id} [14, 16)"


def test_what_suspends_the_promise() -> None:
    """A lock that ends inside a history may rightly lead to a second hole."""
    state = evict(plain(), 2).state
    trace = Trace()
    matched = match(state, pack(FIRST), at_most=12)
    held = acquire(state, matched)
    assert trace.step(state, held.state, "acquire", match=matched) == []
    assert not trace.promised
    done = evict(held.state, 2)
    assert trace.step(held.state, done.state, "evict", need=2, effects=done.effects) == []
    again = insert(plain(), pack([7])).state
    assert trace.step(done.state, again, "insert") == []
    assert trace.promised, "a state without holes renews it"


def test_reserve_counts_only_the_shortfall() -> None:
    before = good()
    (receipt_id,) = before.leases
    units = before.free + 3
    done = reserve(before, Receipt(receipt_id), units)
    assert check_step(before, done.state, "reserve", units=units, effects=done.effects) == []
