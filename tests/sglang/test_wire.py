"""What routers hear over the wire: SGLang's own publisher, as a subscriber gets it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import msgspec
import pytest

from penelope.policy import Namespace, pack
from penelope.routing import FleetIndex
from tests.sglang import workload
from tests.sglang.conftest import Engines
from tests.sglang.harness import Engine

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

PAGE, POOL = 16, 2048
zmq: Any = import_module("zmq")
"""Its names are made when it is imported."""


def free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


class Batch(NamedTuple):
    number: int
    events: list[dict[str, Any]]


def batch(number: bytes, payload: bytes) -> Batch:
    _, events, *_ = msgspec.msgpack.decode(payload)
    return Batch(int.from_bytes(number, "big"), events)


class Subscriber:
    """Hears everything that is published from now on."""

    def __init__(self, port: int) -> None:
        self.heard: list[Batch] = []
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(f"tcp://127.0.0.1:{port}")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._over.is_set():
            if self._socket.poll(50):
                _, number, payload = self._socket.recv_multipart()
                self.heard.append(batch(number, payload))

    def close(self) -> None:
        self._over.set()
        self._thread.join(5)
        self._socket.close(0)


def replayed(port: int, start: int) -> list[Batch]:
    """What the publisher has kept from a number on."""
    asking = zmq.Context.instance().socket(zmq.DEALER)
    try:
        asking.connect(f"tcp://127.0.0.1:{port}")
        asking.send_multipart([b"", start.to_bytes(8, "big")])
        found: list[Batch] = []
        while asking.poll(5000):
            *_, number, payload = asking.recv_multipart()
            if int.from_bytes(number, "big", signed=True) == -1:
                return found
            found.append(batch(number, payload))
        raise AssertionError("the publisher did not say that this is all")
    finally:
        asking.close(0)


class Router:
    """An index, and whose history each block is, from the tokens in the events."""

    def __init__(self) -> None:
        self.index = FleetIndex(["r"])
        self.histories: dict[int, tuple[int, ...]] = {}
        self.next = 0

    def hear(self, heard: Batch) -> None:
        self.next = heard.number + 1
        for event in heard.events:
            if event["type"] == "AllBlocksCleared":
                self.index.cleared("r")
            elif event["type"] == "BlockRemoved":
                self.index.removed("r", event["block_hashes"])
            else:
                self._stored(event)

    def _stored(self, event: dict[str, Any]) -> None:
        parent = event.get("parent_block_hash")
        above = () if parent is None else self.histories[parent]
        if parent is not None:
            assert self.index.held([parent]), "a parent is held before its child is told"
        assert event["block_size"] == PAGE
        tokens, hashes = tuple(event["token_ids"]), event["block_hashes"]
        assert len(tokens) == PAGE * len(hashes)
        for at, block in enumerate(hashes, 1):
            self.histories[block] = above + tokens[: at * PAGE]
        self.index.stored("r", hashes)

    def held(self) -> set[tuple[int, ...]]:
        return {history for block, history in self.histories.items() if self.index.held([block])}


@contextmanager
def listening(engines: Engines, **more: str) -> Iterator[tuple[Engine, Subscriber, int]]:
    port, replay = free_ports()
    config = {
        "publisher": "zmq",
        "endpoint": f"tcp://*:{port}",
        "replay_endpoint": f"tcp://*:{replay}",
        "topic": "kv",
    }
    engine = engines.get(
        max_total_tokens=POOL,
        kv_events_config=json.dumps(config),
        variables={"PENELOPE_HOST_TOKENS": "0", **more},
    )
    subscriber = Subscriber(port)
    try:
        yield engine, subscriber, replay
        engine.check_alive()
    finally:
        subscriber.close()
        engines.stop()


def digest(history: tuple[int, ...]) -> bytes:
    """As `penelope_dump` names a history."""
    named = hashlib.blake2b(repr(Namespace()).encode(), digest_size=16)
    named.update(pack(history))
    return named.digest()


@pytest.mark.parametrize("mode", ["sticky", "prefix", "exact"])
def test_a_subscriber_that_misses_and_repeats_batches_knows_what_the_tree_holds(
    engines: Engines, mode: str
) -> None:
    with listening(engines, PENELOPE_KV_EVENTS=mode) as (engine, subscriber, replay):
        shape = workload.Shape(conversations=8, turns=4, concurrency=4)
        engine.run(workload.converse(engine, shape))
        found = engine.dump()
        # Nothing is published until the scheduler comes round again.
        last = 0
        while last != len(subscriber.heard):
            last = len(subscriber.heard)
            engine.run(asyncio.sleep(0.7))
        everything = replayed(replay, 0)
        assert [one.number for one in everything] == list(range(len(everything)))
        assert [*subscriber.heard] == everything[-len(subscriber.heard) :]

        whole = Router()
        for one in everything:
            whole.hear(one)
        held = whole.held()
        statistics = found["statistics"]
        assert statistics["evicted_tokens"] > 0
        assert statistics["phantom_tokens"] > 0
        resident = set(found["resident"])
        told = {digest(history) for history in held}
        ends = {h for h in held if digest(h) in resident}
        if mode == "exact":
            assert told == {digest(h) for h in ends}
            assert len(told) * PAGE == len(resident)
        elif mode == "sticky":
            assert len(ends) * PAGE == len(resident), "all that is resident is told"
            assert len(told) * PAGE == len(resident) + statistics["hole_tokens"]
        else:
            assert ends == held, "nothing is told that is not there"
        if mode != "exact":
            assert all(not h[:-PAGE] or h[:-PAGE] in held for h in held), "closed under parents"

        # A subscriber that lost some, asks again from there, and hears some twice.
        poor, lost = Router(), len(everything) // 3
        for one in everything[:lost]:
            poor.hear(one)
        for one in everything[lost + 3 : lost + 5]:
            if one.number != poor.next:
                for again in replayed(replay, poor.next):
                    poor.hear(again)
                break
        else:
            raise AssertionError("no gap was noticed")
        assert poor.held() == held
        assert poor.next == len(everything)
