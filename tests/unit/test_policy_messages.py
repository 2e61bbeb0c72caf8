"""What the core says when it refuses, word for word: the text is part of the interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from penelope.policy import (
    Config,
    InFlight,
    InsufficientSpace,
    InUse,
    InvalidAmount,
    InvalidConfigError,
    InvalidKey,
    Key,
    MoveId,
    NotAPrefix,
    NotBeingRefilled,
    NothingToMove,
    Order,
    OverCapacity,
    PenelopeError,
    Position,
    Receipt,
    RequestTooLarge,
    Residency,
    StalePlan,
    Ticket,
    UnknownMove,
    UnknownReceipt,
    UnknownTicket,
    acquire,
    admit,
    insert,
    line_up,
    match,
    named_policy,
    pack,
    settle_promise,
)
from penelope.policy import errors as every_error
from tests.cases.scene import Scene

G, C = Residency.DEVICE, Residency.HOST
Scenario = Callable[[], object]
REFUSED: Final[list[tuple[Scenario, type[PenelopeError], str]]] = []


def says(error: type[PenelopeError], text: str) -> Callable[[Scenario], Scenario]:
    def listed(scenario: Scenario) -> Scenario:
        REFUSED.append((scenario, error, text))
        return scenario

    return listed


def resting() -> Scene:
    """abcd on the device, used at tick 1; 4 of 8 units are free."""
    s = Scene(capacity=8)
    s.insert("abcd")
    return s


def running() -> tuple[Scene, Receipt]:
    """A request that holds ab and may allocate 2 more of 8 units."""
    s = Scene(capacity=8)
    r = s.begin("ab", extra=2)
    s.checkpoint(r, "ab")
    return s, r


def moving() -> Scene:
    """abcd on its way to the host: move 0."""
    s = Scene(capacity=8, keeps=4, swap=2)
    s.insert("abcd")
    s.depart(s.transfer("abcd", 0, C))
    return s


def waiting() -> tuple[Scene, Receipt]:
    """2 of 6 units are free, and a request waits for 4 from the host and for 1 new one."""
    s = Scene(capacity=6, keeps=4, swap=2)
    s.insert("abcd")
    s.move("abcd", 0, C)
    s.insert("uvwxyz")
    return s, s.begin("abcde")


# Eviction


@says(
    InsufficientSpace,
    "asked to evict 3 units where 2 are evictable and 2 are in use: ask for less or wait until a "
    "running request ends",
)
def evicting_too_much() -> None:
    s, _ = running()
    s.insert("xy")
    s.evict(3)


@says(InvalidAmount, "cannot evict -1 units: give 0 or more")
def evicting_less_than_nothing() -> None:
    resting().evict(-1)


# Matching


@says(InvalidAmount, "cannot match at most -1 units: give 0 or more")
def matching_less_than_nothing() -> None:
    resting().match("abcd", at_most=-1)


@says(InvalidKey, "a key of 5 bytes is not whole units of 4 bytes: make keys with pack()")
def matching_part_of_a_unit() -> None:
    match(resting().state, Key(b"abcde"))


@says(StalePlan, "matched at tick 1 on another state than this one (tick 2): match again")
def using_a_match_of_before() -> None:
    s = resting()
    found = s.match("abcd")
    s.insert("x")
    acquire(s.state, found)


@says(
    InFlight,
    "4 matched units are leaving the device: wait for the move or fail it, and match again",
)
def locking_what_is_leaving() -> None:
    moving().lock("abcd")


@says(
    InFlight,
    "4 matched units are leaving the device: wait for the move or fail it, and match again",
)
def admitting_what_is_leaving() -> None:
    s = moving()
    admit(s.state, s.plan("abcde"))


# Receipts


@says(UnknownReceipt, "receipt 0 is not live: it was released before or never issued")
def releasing_twice() -> None:
    s, r = running()
    s.release(r)
    s.release(r)


@says(
    InsufficientSpace,
    "5 units are promised to requests that wait for moves, and this would take them: carry out "
    "their transfers first",
)
def locking_what_was_promised() -> None:
    s, _ = waiting()
    s.lock("uvwxyz")


# Offers


@says(NotAPrefix, "an offer cannot start at 3: start at a multiple of the page size 2")
def starting_off_the_pages() -> None:
    Scene(page=2).insert("abcd", start=3)


@says(NotAPrefix, "an offer cannot start at -1: start at a multiple of the page size 1")
def starting_before_the_beginning() -> None:
    resting().insert("abcd", start=-1)


@says(
    NotAPrefix,
    "the key leaves the tree at 2, before 3 where the offer starts: offer from the end of the "
    "match",
)
def starting_past_the_tree() -> None:
    resting().insert("abxyz", start=3)


@says(InvalidKey, "a key of 5 bytes is not whole units of 4 bytes: make keys with pack()")
def offering_part_of_a_unit() -> None:
    insert(resting().state, Key(b"abcde"))


@says(
    OverCapacity,
    "6 units are offered for adoption, 2 more than are free: evict or reserve them first",
)
def offering_more_than_is_free() -> None:
    resting().insert("abcdefghij")


@says(
    OverCapacity,
    "8 units are offered for adoption, 2 more than are free: evict or reserve them first",
)
def computing_more_than_was_reserved_and_is_free() -> None:
    s, r = running()
    s.checkpoint(r, "abcdefghij")


@says(
    OverCapacity,
    "1 units are offered for adoption: 5 units are promised to requests that wait for moves, and "
    "this would take them: carry out their transfers first",
)
def offering_what_was_promised() -> None:
    s = Scene(capacity=6, keeps=4, swap=2)
    s.insert("abcd")
    s.move("abcd", 0, C)
    s.insert("vwxyz")
    s.begin("abcde")
    s.insert("k")


@says(
    InFlight,
    "[0, 4) is being moved to the host: wait for the move or fail it, and offer again",
)
def offering_what_is_leaving() -> None:
    moving().insert("abcd")


@says(
    InFlight,
    "[1, 3) is being moved to the device: wait for the move or fail it, and offer again",
)
def offering_what_is_arriving() -> None:
    s = moving()
    s.arrive(MoveId(0))
    s.depart(s.transfer("abcd", 0, G))
    s.insert("abc", start=1)


@says(
    NotAPrefix,
    "the key leaves the path of 2 units that receipt 0 holds: give the request's whole history",
)
def leaving_the_locked_path() -> None:
    s, r = running()
    s.checkpoint(r, "axy")


@says(
    NotBeingRefilled,
    "[1, 2) is not a span of whole pages on the path that receipt 0 holds: refill the holes of the "
    "plan that was admitted",
)
def refilling_half_a_page() -> None:
    s = Scene(page=2, block=2)
    s.insert("abcdef")
    s.evict(2)
    s.refill(s.begin("abcdefg"), 1, 2)


@says(
    NotBeingRefilled,
    "[0, 2) is a hole that receipt 0 has not undertaken to refill: plan and admit the request "
    "again",
)
def refilling_what_nobody_undertook() -> None:
    s = Scene(block=2)
    s.insert("abcdef")
    s.evict(1)
    s.refill(s.lock("abcdef"), 0, 3)


# Requests


@says(InvalidAmount, "cannot make room for -1 further units: give 0 or more")
def asking_for_less_than_nothing() -> None:
    resting().plan("abcd", extra=-1)


@says(
    RequestTooLarge,
    "the request needs 9 units and the device holds 8: shorten it or enlarge the device cache",
)
def asking_for_more_than_the_device() -> None:
    resting().plan("abcdefgh", extra=1)


@says(
    InsufficientSpace,
    "the request must free 3 units where 2 are evictable: wait until a running request ends",
)
def admitting_what_does_not_fit() -> None:
    s, _ = running()
    s.insert("xy")
    s.admit(s.plan("klmno"))


@says(InvalidAmount, "cannot reserve -1 units: give 0 or more")
def reserving_less_than_nothing() -> None:
    s, r = running()
    s.reserve(r, -1)


@says(
    InsufficientSpace,
    "5 units are needed, 1 are free and 3 can be freed: wait until a running request ends",
)
def reserving_too_much_now() -> None:
    s, _ = running()
    s.insert("xyz")
    s.reserve(s.lock(""), 5)


@says(
    RequestTooLarge,
    "the request holds 4 units and asks for 5 more where the device holds 8: end it or enlarge the "
    "device cache",
)
def reserving_too_much_for_ever() -> None:
    s, r = running()
    s.reserve(r, 5)


@says(
    RequestTooLarge,
    "the request holds 4 units and asks for 3 more where the device holds 6: end it or enlarge the "
    "device cache",
)
def reserving_more_than_the_device_although_the_host_is_empty() -> None:
    s = Scene(capacity=6, keeps=8, swap=2)
    r = s.serve("abcd")
    s.insert("xy")
    s.reserve(r, 3)


# Moves


@says(
    InsufficientSpace,
    "1 units are promised, 2 are free and 4 are still on the host: carry out the transfers of "
    "this receipt first",
)
def settling_too_early() -> None:
    s, r = waiting()
    settle_promise(s.state, r)


@says(
    NothingToMove,
    "[0, 4) is not a span of idle KV on the host: ask for the next transfer",
)
def promoting_what_is_on_the_device() -> None:
    s = Scene(capacity=8, keeps=4, swap=2)
    s.insert("abcd")
    s.move("abcd", 0, G)


@says(
    NothingToMove,
    "[0, 4) is not a span of idle KV on the device: ask for the next transfer",
)
def demoting_what_is_moving() -> None:
    s = moving()
    s.depart(s.transfer("abcd", 0, C))


@says(
    NothingToMove,
    "4 units do not fit the host, where 2 are free: ask for the next transfer",
)
def demoting_more_than_fits() -> None:
    s = Scene(capacity=8, swap=2)
    s.insert("abcd")
    s.move("abcd", 0, C)


@says(
    NothingToMove,
    "4 units do not fit the device, where 2 are free: ask for the next transfer",
)
def promoting_more_than_fits() -> None:
    s, _ = waiting()
    s.depart(s.transfer("abcd", 0, G))


@says(NothingToMove, "[0, 4) is in use: it may not leave the device")
def demoting_what_is_in_use() -> None:
    s = Scene(capacity=8, keeps=4, swap=2)
    s.insert("abcd")
    s.lock("abcd")
    s.move("abcd", 0, C)


@says(UnknownMove, "move 0 is not in flight: it has ended, or never began")
def ending_a_move_twice() -> None:
    s = moving()
    s.arrive(MoveId(0))
    s.arrive(MoveId(0))


@says(UnknownMove, "move 3 is not in flight: it has ended, or never began")
def failing_what_never_began() -> None:
    resting().give_up(MoveId(3))


# The whole cache


@says(InUse, "1 receipts are live: release them before a reset")
def resetting_under_a_request() -> None:
    running()[0].reset()


@says(InUse, "1 moves are in flight: end them before a reset")
def resetting_under_a_move() -> None:
    moving().reset()


@says(UnknownTicket, "ticket 0 is not in the queue, or named twice: give the match")
def naming_a_ticket_that_waits_no_more() -> None:
    line_up(Scene().state, [Ticket(0)])


@says(InvalidConfigError, "linear_cost is -1: it must be at least 0")
def weighing_with_a_negative_cost() -> None:
    Config(8, linear_cost=-1)


@says(
    InvalidConfigError,
    "order 'expected-cost' weighs blocks at the head of a private span: choose position "
    "private-head and granularity block, or order lru",
)
def weighing_what_goes_from_its_tail() -> None:
    Config(8, block_size=1, position=Position.TAIL, order=Order.EXPECTED_COST)


@says(
    InvalidConfigError,
    "unknown policy 'lru': choose from sglang-lru, tail-block, leaf-head-block, "
    "private-head-node, penelope, penelope-queue, expected-cost-blind, expected-cost",
)
def choosing_an_unknown_policy() -> None:
    named_policy("lru")


@pytest.mark.parametrize(
    ("scenario", "error", "text"), REFUSED, ids=[scenario.__name__ for scenario, _, _ in REFUSED]
)
def test_a_refusal_says_what_is_wrong_and_what_to_do(
    scenario: Scenario, error: type[PenelopeError], text: str
) -> None:
    with pytest.raises(error) as refused:
        scenario()
    assert (type(refused.value), str(refused.value)) == (error, text)


def test_every_kind_of_refusal_is_shown() -> None:
    bases = {"PenelopeError", "Refused"}
    kinds = {name for name, kind in vars(every_error).items() if isinstance(kind, type)}
    assert {error.__name__ for _, error, _ in REFUSED} == kinds - bases


@pytest.mark.parametrize("unit", [-1, 2**32, "a", 1.5])
def test_what_is_no_unit_id_is_named(unit: Any) -> None:
    with pytest.raises(InvalidKey, match=r"^a unit id must be an integer in \[0, 2\*\*32\): ."):
        pack([unit])


def test_a_state_shows_its_numbers_in_one_line() -> None:
    s = Scene(capacity=20, keeps=6, swap=2)
    s.insert("abcdef")
    s.evict(1)
    s.insert("xy")
    s.move("xy", 0, C)
    s.begin("abcdefgh")
    assert repr(s.state) == (
        "<State tick 3: 4 nodes, 1 receipts, device 4 (4 locked) + 4 reserved of 20, host 2, "
        "holes 2>"
    )
