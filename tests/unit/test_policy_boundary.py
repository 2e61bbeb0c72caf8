"""Values at the boundary: converted where that is exact, else refused by name."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penelope.policy import (
    Config,
    Granularity,
    InvalidAmount,
    InvalidConfigError,
    InvalidKey,
    Key,
    Namespace,
    NotAPrefix,
    NotBeingRefilled,
    NothingToMove,
    Position,
    Receipt,
    ReceiptId,
    Refused,
    StalePlan,
    State,
    UnknownMove,
    UnknownReceipt,
    acquire,
    admit,
    begin_move,
    checkpoint,
    empty,
    end_move,
    evict,
    fail_move,
    forgo_promise,
    insert,
    match,
    named_policy,
    next_demotion,
    next_transfer,
    pack,
    plan,
    refill,
    release,
    reserve,
    settle_promise,
    touch,
)

NO_NUMBERS: list[Any] = [8.5, 8.0, float("nan"), True, None, "8", b"8", np.float64(8), [8]]
NO_KEYS: list[Any] = [None, 5, "abcd", [1, 2], bytearray(8), memoryview(bytes(8)), np.zeros(2)]


def _named(value: object) -> str:
    """The same in every process: no address."""
    return re.sub(r" at 0x\w+", "", repr(value))


@pytest.mark.parametrize("wrong", NO_NUMBERS, ids=_named)
@pytest.mark.parametrize(
    "name",
    ["device_capacity", "page_size", "block_size", "unit_bytes", "host_capacity", "swap_buffer"],
)
def test_a_size_is_a_whole_number(name: str, wrong: Any) -> None:
    with pytest.raises(InvalidConfigError, match=f"^{name} is .*: it must be a whole number of un"):
        Config(**{"device_capacity": 8, "block_size": 8, name: wrong})


def test_integers_of_other_types_are_converted() -> None:
    config = Config(np.int64(16), np.uint8(2), np.int32(4))  # type: ignore[arg-type]
    assert config == Config(16, 2, 4)
    assert {type(config.device_capacity), type(config.page_size)} == {int}
    state = insert(empty(config), pack(np.arange(8))).state
    assert evict(state, np.int64(3)).freed == 4  # type: ignore[arg-type]
    assert match(state, pack(range(8)), at_most=np.uint16(6)).end == 6  # type: ignore[arg-type]


def test_a_switch_is_named_or_given() -> None:
    named = Config(8, block_size=2, position="tail", granularity="node")  # type: ignore[arg-type]
    assert named == Config(8, 1, 2, Position.TAIL, Granularity.NODE)
    assert named.position is Position.TAIL
    assert named.granularity is Granularity.NODE


@pytest.mark.parametrize(
    ("name", "wrong", "choices"),
    [
        ("position", "head", "tail, leaf-head, private-head"),
        ("position", Granularity.BLOCK, "tail, leaf-head, private-head"),
        ("position", None, "tail, leaf-head, private-head"),
        ("granularity", "BLOCK", "node, block"),
        ("granularity", ["block"], "node, block"),
    ],
    ids=str,
)
def test_a_switch_that_does_not_exist_is_refused(name: str, wrong: Any, choices: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        Config(**{"device_capacity": 8, name: wrong})
    assert str(refused.value) == f"{name} is {wrong!r}: choose from {choices}"


@pytest.mark.parametrize("wrong", [1, 0, "yes", None], ids=_named)
def test_sticky_sharing_is_on_or_off(wrong: Any) -> None:
    with pytest.raises(InvalidConfigError, match=r"sticky_shared is .*: it must be True or False"):
        Config(8, sticky_shared=wrong)


@pytest.mark.parametrize("wrong", [None, 3, ["penelope"]], ids=_named)
def test_a_policy_is_a_name(wrong: Any) -> None:
    with pytest.raises(InvalidConfigError, match="unknown policy"):
        named_policy(wrong)


@pytest.mark.parametrize("raw", [b"12345678", bytearray(8), memoryview(bytes(8))], ids=_named)
def test_raw_memory_is_no_sequence_of_units(raw: Any) -> None:
    with pytest.raises(InvalidKey, match=f"pack takes unit ids, and this is {type(raw).__name__}"):
        pack(raw)


@pytest.mark.parametrize("ids", [[5, 6], (5, 6), array("q", [5, 6]), np.array([5, 6])], ids=_named)
def test_every_sequence_of_integers_packs_alike(ids: Any) -> None:
    assert pack(ids) == bytes([5, 0, 0, 0, 6, 0, 0, 0])


@pytest.mark.parametrize("wrong", ["ab", None, 7, [1.0], [None], np.array([1.5])], ids=_named)
def test_other_things_are_refused_as_units(wrong: Any) -> None:
    with pytest.raises(InvalidKey, match="a unit id must be an integer"):
        pack(wrong)


def _namespace(*parts: Any) -> Namespace:
    return Namespace(*parts)


def holding() -> tuple[State, Receipt]:
    """A request that holds [0, 4), of which it has [0, 2) to refill."""
    state = insert(empty(Config(12, 1, 2, host_capacity=4, swap_buffer=2)), pack(range(4))).state
    state = evict(state, 2).state
    done = admit(state, plan(state, pack(range(5))))
    return done.state, done.receipt


def refused(error: type[Refused], call: Callable[[], object]) -> None:
    """By name, in one line; that no other exception comes is the point."""
    with pytest.raises(error) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", [w for w in NO_NUMBERS if w is not None], ids=_named)
def test_amounts_are_whole_numbers(wrong: Any) -> None:
    state, receipt = holding()
    refused(InvalidAmount, lambda: evict(state, wrong))
    refused(InvalidAmount, lambda: reserve(state, receipt, wrong))
    refused(InvalidAmount, lambda: plan(state, pack([7]), extra=wrong))
    refused(InvalidAmount, lambda: match(state, pack([7]), at_most=wrong))
    refused(InvalidAmount, lambda: next_demotion(state, wrong))
    refused(NotAPrefix, lambda: insert(state, pack([7]), start=wrong))
    refused(NotBeingRefilled, lambda: refill(state, receipt, wrong, 2))
    refused(NotBeingRefilled, lambda: refill(state, receipt, 0, wrong))


def test_an_amount_is_given() -> None:
    state, receipt = holding()
    nothing: Any = None
    refused(InvalidAmount, lambda: evict(state, nothing))
    refused(InvalidAmount, lambda: reserve(state, receipt, nothing))
    refused(InvalidAmount, lambda: plan(state, pack([7]), extra=nothing))
    refused(NotBeingRefilled, lambda: refill(state, receipt, nothing, nothing))


@pytest.mark.parametrize("wrong", NO_KEYS, ids=_named)
def test_keys_are_packed(wrong: Any) -> None:
    state, receipt = holding()
    refused(InvalidKey, lambda: match(state, wrong))
    refused(InvalidKey, lambda: plan(state, wrong))
    refused(InvalidKey, lambda: insert(state, wrong))
    refused(InvalidKey, lambda: checkpoint(state, receipt, wrong))


@pytest.mark.parametrize(
    "wrong", ["adapter", None, ("a", None), _namespace(1), _namespace("a", b"s")], ids=repr
)
def test_namespaces_are_made_of_texts(wrong: Any) -> None:
    state, _ = holding()
    refused(InvalidKey, lambda: match(state, pack([1]), wrong))
    refused(InvalidKey, lambda: plan(state, pack([1]), wrong))
    refused(InvalidKey, lambda: insert(state, pack([1]), wrong))


@pytest.mark.parametrize("wrong", [None, 0, "receipt 0", Config(8)], ids=_named)
def test_receipts_plans_and_moves_are_what_they_claim_to_be(wrong: Any) -> None:
    state, _ = holding()
    refused(UnknownReceipt, lambda: release(state, wrong))
    refused(UnknownReceipt, lambda: reserve(state, wrong, 1))
    refused(UnknownReceipt, lambda: refill(state, wrong, 0, 2))
    refused(UnknownReceipt, lambda: checkpoint(state, wrong, pack([1])))
    refused(UnknownReceipt, lambda: settle_promise(state, wrong))
    refused(UnknownReceipt, lambda: forgo_promise(state, wrong))
    refused(UnknownReceipt, lambda: next_transfer(state, wrong))
    refused(StalePlan, lambda: admit(state, wrong))
    refused(StalePlan, lambda: touch(state, wrong))
    refused(StalePlan, lambda: acquire(state, wrong))
    refused(NothingToMove, lambda: begin_move(state, wrong))
    refused(UnknownMove, lambda: end_move(state, wrong))
    refused(UnknownMove, lambda: fail_move(state, wrong))


def test_what_another_cache_has_issued_is_refused() -> None:
    """Both caches know a receipt 0, and both have been asked the same."""
    one, receipt = holding()
    other, _ = holding()
    assert receipt.id in other.leases
    refused(UnknownReceipt, lambda: release(other, receipt))
    refused(UnknownReceipt, lambda: refill(other, receipt, 0, 2))
    refused(StalePlan, lambda: admit(other, plan(one, pack([9]))))
    refused(StalePlan, lambda: acquire(other, match(one, pack(range(4)))))
    assert not release(one, receipt).state.leases


def test_a_shell_may_keep_the_number_of_a_receipt_alone() -> None:
    state, receipt = holding()
    assert Receipt(ReceiptId(int(receipt.id))) == receipt
    assert not release(state, Receipt(receipt.id)).state.leases


def test_states_are_compared_by_what_they_hold() -> None:
    config = Config(8, block_size=2)
    one, other = (insert(empty(config), Key(pack([1, 2]))).state for _ in range(2))
    assert one == other
    assert one.origin is not other.origin
