"""The baseline with a hierarchical cache: what it copies, what it drops, what it counts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penelope.policy import UNIT_BYTES, Config, Granularity, Position, pack
from penelope.runtime.replay.arms import ARMS, HICACHE, cache
from penelope.runtime.replay.caches import Admission, Ask
from penelope.runtime.replay.hicache import HiCache, _Node

HICACHES = [name for name in ARMS if name.startswith(HICACHE)]


def made(name: str, device: int, host: int, block: int = 1) -> HiCache:
    config = Config(
        device, 1, block, Position.TAIL, Granularity.NODE, host_capacity=host, swap_buffer=block
    )
    under_test = cache(name, config)
    assert isinstance(under_test, HiCache)
    return under_test


def ask(units: Iterable[int], extra: int = 0) -> Ask:
    key = pack(units)
    return Ask(key, len(key) // UNIT_BYTES, extra)


def serve(under_test: HiCache, units: Iterable[int]) -> tuple[Admission, int]:
    """Serve a request, all of which may be found; and what was copied out behind its back."""
    wanted = ask(units)
    admission = under_test.admit(wanted)
    assert admission is not None
    copied = under_test.computed(admission, wanted.prompt)
    return admission, copied + under_test.finished(admission, wanted.prompt)


def tiers(under_test: HiCache) -> dict[tuple[int, int], str]:
    """Where the KV of each node is, by its span and first unit: `d`, `h` or `dh`."""
    found = {}
    for node in all_nodes(under_test):
        first = int.from_bytes(node.key[node.start * 4 : node.start * 4 + 4], "little")
        found[first, node.length] = "d" * node.device + "h" * node.host
    return found


def all_nodes(under_test: HiCache) -> list[_Node]:
    nodes, found = [under_test._root], []
    while nodes:
        node = nodes.pop()
        found.append(node)
        nodes.extend(node.children.values())
    return found[1:]


A, B = range(4), range(100, 104)


def test_write_through_copies_at_once_and_evicts_without_a_copy() -> None:
    under_test = made("sglang-hicache", device=6, host=8)
    assert serve(under_test, A)[1] == 4
    assert tiers(under_test) == {(0, 4): "dh"}
    admission, copied = serve(under_test, B)
    assert (admission.demoted, admission.dropped, copied) == (0, 0, 4)
    assert tiers(under_test) == {(0, 4): "h", (100, 4): "dh"}
    # It comes back, and the copy stays.
    admission, _ = serve(under_test, A)
    assert (admission.device, admission.host, admission.new) == (0, 4, 4)
    assert tiers(under_test) == {(0, 4): "dh", (100, 4): "h"}


def test_write_back_copies_what_the_device_evicts() -> None:
    under_test = made("sglang-hicache-write-back", device=6, host=8)
    assert serve(under_test, A)[1] == 0
    admission, _ = serve(under_test, B)
    assert (admission.demoted, admission.excess) == (4, 2)  # a whole node for two units
    assert tiers(under_test) == {(0, 4): "h", (100, 4): "d"}
    assert serve(under_test, A)[0].demoted == 4
    # What has a copy already is not copied again.
    assert serve(under_test, B)[0].demoted == 0


def test_blocks_go_from_the_end_and_no_more_than_are_needed() -> None:
    under_test = made("sglang-hicache-write-back-block", device=6, host=8)
    serve(under_test, A)
    admission, _ = serve(under_test, B)
    assert (admission.demoted, admission.excess) == (2, 0)
    assert tiers(under_test) == {(0, 2): "d", (2, 2): "h", (100, 4): "d"}


def test_a_host_as_large_as_the_device_keeps_nothing_but_copies_of_it() -> None:
    """The price of inclusive copies."""
    under_test = made("sglang-hicache", device=8, host=8)
    serve(under_test, A)
    serve(under_test, B)
    admission, copied = serve(under_test, range(200, 204))
    # A leaves the device, and then the host, for which it is the oldest that may go: for a copy
    # that is written through, so that the next admission says so.
    assert (admission.dropped, copied) == (0, 4)
    assert tiers(under_test) == {(100, 4): "dh", (200, 4): "dh"}
    assert serve(under_test, range(200, 204))[0].dropped == 4


def test_without_room_on_the_host_the_device_loses_it() -> None:
    under_test = made("sglang-hicache-write-back", device=6, host=3)
    serve(under_test, A)
    assert serve(under_test, B)[0].dropped == 4
    blocks = made("sglang-hicache-write-back-block", device=6, host=3)
    serve(blocks, A)
    assert serve(blocks, range(100, 106))[0].dropped == 1  # three of four find room
    assert tiers(blocks) == {(0, 3): "h", (100, 6): "d"}


@pytest.mark.parametrize(
    ("name", "counted"), [("sglang-hicache", 4), ("sglang-hicache-device-lpm", 0)]
)
def test_the_scheduler_counts_the_host_or_does_not(name: str, counted: int) -> None:
    under_test = made(name, device=6, host=8)
    serve(under_test, A)
    serve(under_test, B)
    assert under_test.reusable(ask(A)) == counted
    assert under_test.reusable(ask(B)) == 4


def test_a_request_waits_while_what_it_needs_is_in_use() -> None:
    under_test = made("sglang-hicache", device=6, host=8)
    running = under_test.admit(ask(A))
    assert running is not None
    assert under_test.admit(ask(B)) is None
    under_test.computed(running, pack(A))
    assert under_test.admit(ask(B)) is None
    under_test.finished(running, pack(A))
    assert under_test.admit(ask(B)) is not None


def audit(under_test: HiCache) -> None:
    """What must be true after every step, by a recount."""
    config = under_test._config
    nodes = all_nodes(under_test)
    assert under_test.nodes == len(nodes) + 1
    assert under_test.device == sum(n.length for n in nodes if n.device)
    assert under_test.host == sum(n.length for n in nodes if n.host)
    assert under_test.locked == sum(n.length for n in nodes if n.device and n.locks)
    assert under_test.host <= config.host_capacity
    assert under_test.free >= 0
    for node in nodes:
        assert node.parent is not None
        assert node.start == node.parent.end < node.end
        assert node.device or node.host, "a node without KV is no use here"
        assert node.parent.device or not node.device, "the device keeps prefixes"
        if not under_test._variant.write_back:
            assert node.parent.host or not node.host, "and so does the host of a write-through"
        idle = not node.locks
        on_device_below = any(child.device for child in node.children.values())
        assert (node.id in under_test._device_leaves) is (
            idle and node.device and not on_device_below
        )
        assert (node.id in under_test._host_leaves) is (
            idle and not node.device and not node.children
        )


@given(st.sampled_from(HICACHES), st.integers(0, 12), st.integers(1, 3), st.data())
def test_counters_equal_a_recount_whatever_happens(
    name: str, host: int, block: int, data: st.DataObject
) -> None:
    under_test = made(name, 12, host + block, block)
    running: list[tuple[Admission, list[int]]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        if data.draw(st.booleans()) and running:
            admission, units = running.pop(data.draw(st.integers(0, len(running) - 1)))
            under_test.finished(admission, pack(units))
        else:
            units = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=9))
            wanted = ask(units, data.draw(st.integers(0, 3)))
            admitted = under_test.admit(wanted)
            if admitted is not None:
                audit(under_test)
                assert admitted.device + admitted.host == admitted.new
                under_test.computed(admitted, wanted.prompt)
                more = data.draw(st.lists(st.integers(0, 2), max_size=wanted.extra))
                running.append((admitted, [*units, *more]))
        audit(under_test)
    for admission, units in running:
        under_test.finished(admission, pack(units))
    audit(under_test)
    assert (under_test.locked, under_test.reserved) == (0, 0)
