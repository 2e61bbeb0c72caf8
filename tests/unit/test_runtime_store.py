"""The symbolic store tells right KV from wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penelope.policy import Residency, pack
from penelope.runtime.store import StoreError
from penelope.runtime.symbolic import Job, SymbolicStore, WrongKV, prefill


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda store: store.allocate(4), "4 slots of the device are asked for and 1 are free"),
        (lambda store: store.free([0, 0]), "freed twice in one call"),
        (lambda store: store.free([0, 3]), "slot 3 is freed and is not allocated"),
        (lambda store: store.free([0], [3]), "slot 3 is freed and is not allocated"),
        (lambda store: store.copy([0], [0, 1], Residency.HOST), "1 slots are copied to 2"),
        (lambda store: store.copy([0], [3], Residency.HOST), "slot 3 is copied to and is not"),
        (lambda store: store.copy([3], [0], Residency.HOST), "slot 3 is copied from and is not"),
    ],
)
def test_the_symbolic_store_refuses_and_changes_nothing(
    act: Callable[[SymbolicStore], object], says: str
) -> None:
    store = SymbolicStore(4, host_capacity=4)
    taken = store.allocate(3)
    store.step([Job(pack(range(3)), taken, 0, 3)])
    store.allocate(2, Residency.HOST)
    before = store.held(), store.held(Residency.HOST)
    with pytest.raises(StoreError, match=says):
        act(store)
    assert (store.held(), store.held(Residency.HOST)) == before


def test_copied_kv_is_the_same_kv() -> None:
    store = SymbolicStore(2, host_capacity=2)
    key, slots = pack(range(2)), store.allocate(2)
    store.step([Job(key, slots, 0, 2)])
    host = store.allocate(2, Residency.HOST)
    store.copy(slots, host[::-1], Residency.HOST)
    store.check(host[::-1], prefill(key), "is kept", Residency.HOST)
    with pytest.raises(WrongKV):
        store.check(host, prefill(key), "is kept", Residency.HOST)
    store.free(slots)
    back = store.allocate(2)
    store.copy(host[::-1], back, Residency.DEVICE)
    store.check(back, prefill(key), "is read")


@pytest.mark.parametrize(("start", "says"), [(0, "is written to slot"), (1, "is read from slot")])
def test_a_freed_slot_cannot_be_used(start: int, says: str) -> None:
    store = SymbolicStore(4)
    key, slots = pack(range(2)), store.allocate(2)
    store.step([Job(key, slots, 0, 2)])
    store.free(slots[:1])
    with pytest.raises(WrongKV, match=f"position 0 {says} {slots[0]}, which is free"):
        store.step([Job(key, slots, start, 2)])


def test_a_slot_without_kv_cannot_be_read() -> None:
    store = SymbolicStore(4)
    slots = store.allocate(2)
    with pytest.raises(WrongKV, match="which holds nothing yet"):
        store.step([Job(pack(range(2)), slots, 1, 2)])


def test_what_a_job_writes_itself_is_read_as_well() -> None:
    """Two positions in one slot: the first is overwritten before anybody reads it."""
    store = SymbolicStore(4)
    (slot,) = store.allocate(1)
    with pytest.raises(WrongKV, match="position 0 is read from slot 0, which holds KV of another"):
        store.step([Job(pack([1, 2]), [slot, slot], 0, 2)])


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_the_jobs_in_a_batch_does_not_matter(order: int) -> None:
    """All write, then all read: a phantom may stand behind the request that it serves."""
    store = SymbolicStore(4)
    key, slots = pack(range(4)), store.allocate(4)
    phantom, real = Job(key, slots, 0, 2), Job(key, slots, 2, 4)
    store.step([phantom, real][::order])
    store.check(slots, prefill(key), "is kept")
