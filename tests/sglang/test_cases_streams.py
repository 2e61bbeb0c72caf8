"""Faults from the field on the adapter: copies in the order of the engine's work.

`Steps` with a stream runs nothing until the end: what the scheduler decides is then far ahead of
what the device has done, and only the order of enqueueing keeps KV right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penelope.policy import Residency
from tests.sglang.steps import Steps

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.smoke,
    pytest.mark.usefixtures("sglang_settings"),
]

X = list(range(1, 25))
Y = list(range(101, 125))
Z = list(range(201, 225))


def streamed(late: Callable[[list[Callable[[], None]]], None] | None = None, **sizes: Any) -> Steps:
    """Steps whose copies go on the stream; `late` may put them somewhere else on it."""
    s = Steps(**{"pool": 64, "host": 48, "swap": 8, "block": 8, **sizes})
    assert s.cache.host is not None
    memory: Any = s.cache.host
    copy = memory.copy

    def enqueue(device: Any, host: Any, target: Residency) -> None:
        s.enqueue(lambda: copy(device, host, target))
        if late is not None and s.stream is not None:
            late(s.stream)

    memory.copy = enqueue
    s.stream = []
    return s


def every_path_that_allocates(s: Steps) -> None:
    """Prefill, chunks, decode, phantoms and loads, each while memory is full."""
    source = random.Random(4)
    for turn in range(24):
        start = source.choice((1, 101, 201, 301))
        history = list(range(start, start + 24))
        req = s.request("r", [*history, 30 + turn], new=2)
        s.start(req, chunk=(None, 8)[turn % 2])
        for _ in range(9):
            assert s.decode(req)
        s.finish(req)
    counts = s.cache.statistics.counts
    assert counts.promotions >= 4
    assert counts.demotions >= 8
    assert counts.phantoms >= 1


def test_case_49_a_slot_that_is_being_copied_out_is_on_no_path_overwritten_before() -> None:
    s = streamed()
    every_path_that_allocates(s)
    assert s.stream
    s.synchronize()


def test_case_49_a_copy_that_is_enqueued_behind_the_next_batch_is_noticed() -> None:
    waiting: list[Callable[[], None]] = []

    def late(stream: list[Callable[[], None]]) -> None:
        """Each copy changes places with the one before it, as on a stream of its own."""
        waiting.append(stream.pop())
        if len(waiting) > 1:
            stream.append(waiting.pop(0))

    s = streamed(late)
    every_path_that_allocates(s)
    with pytest.raises(AssertionError, match=r"other KV"):
        s.synchronize()


def test_case_50_kv_is_copied_out_behind_the_step_that_computes_it() -> None:
    """The request has ended for the scheduler before its last step has run."""
    s = streamed()
    s.serve(X, new=2)
    s.press(64)
    assert s.show(X) == "CCCCCC"
    assert s.stream
    s.synchronize()


def test_case_50_kv_is_copied_into_a_slot_behind_the_step_that_still_writes_it() -> None:
    s = streamed()
    s.serve(X)
    s.press(64)
    gone = s.request("gone", list(range(301, 353)))
    s.launch(s.admit(gone).can_run_list)
    written = set(s.slots(gone, 0, 52))
    s.finish(gone, checkpoint=False)  # retracted or aborted while the step is on its way
    back = s.request("back", [*X, 30])
    s.launch(s.admit(back).can_run_list)
    assert written & set(s.slots(back, 0, 24)), "a load goes to a slot that was just given back"
    s.finish(back)
    s.synchronize()
    assert s.show(X) == "GGGGGG"


def test_case_61_indices_of_a_copy_are_not_changed_while_it_waits() -> None:
    """Nothing is reused in place: a slot goes on only behind the copy that reads it."""
    s = streamed(swap=8, host=32)
    asked: list[tuple[Any, Any, list[int], list[int]]] = []
    assert s.cache.host is not None
    memory: Any = s.cache.host
    enqueue = memory.copy

    def noting(device: Any, host: Any, target: Residency) -> None:
        asked.append((device, host, device.tolist(), host.tolist()))
        enqueue(device, host, target)

    memory.copy = noting
    for turn in range(12):
        s.serve([*(X, Y, Z)[turn % 3], 30 + turn])
    assert len(asked) >= 10
    for device, host, was, was_host in asked:
        assert (device.tolist(), host.tolist()) == (was, was_host)
    s.synchronize()


class Accelerator:
    """A device with streams, as far as `HostMemory` looks; it writes down what it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        self.told: list[str] = []
        stream = SimpleNamespace(wait_stream=lambda other: self.told.append(f"wait for {other}"))
        module = SimpleNamespace(current_stream=lambda: stream)
        monkeypatch.setattr(torch, "get_device_module", lambda _device: module)
        s = Steps(host=32, swap=8)
        assert s.cache.host is not None
        self.memory: Any = s.cache.host
        self.memory._device = torch.device("meta")  # neither the CPU nor there
        self.memory.pool = SimpleNamespace(
            backup_from_device_all_layer=lambda *_: self.told.append("out"),
            load_to_device_per_layer=lambda *a: self.told.append(f"in, layer {a[3]}"),
        )
        self.slots = torch.arange(4)


def test_case_50_each_copy_waits_for_the_batches_that_were_launched_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What follows it waits for it: SGLang's forward stream waits for the scheduler's."""
    device = Accelerator(monkeypatch)
    device.memory.follow("the forward stream")
    device.memory.copy(device.slots, device.slots, Residency.HOST)
    device.memory.copy(device.slots, device.slots, Residency.DEVICE)
    wait = "wait for the forward stream"
    assert device.told == [wait, "out", wait, "in, layer 0", "in, layer 1"]


def test_case_50_a_copy_before_the_streams_are_known_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Accelerator(monkeypatch)
    with pytest.raises(AssertionError, match="streams are not known"):
        device.memory.copy(device.slots, device.slots, Residency.HOST)
    assert device.told == []
