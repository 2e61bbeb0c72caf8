"""Routers of a fleet: which replica gets a request, from what a router can know.

It knows what it has sent and what has been answered, and, if it listens to KV events, what each
replica was said to hold some time ago.  It never looks into a replica.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from penelope.cost import CostModel
from penelope.policy import Key
from penelope.policy.errors import InvalidConfigError
from penelope.routing import FleetIndex, candidates, choose


@dataclass(slots=True, eq=False)
class Replica:
    """A replica as its router knows it."""

    number: int
    open: int = 0
    """Requests sent to it and not answered in full."""
    queued_tokens: int = 0
    """Prompt tokens that it has still to compute, by the estimates when they were sent."""
    queued_cost: int = 0
    """The same as cost, where the router estimates it."""
    running_tokens: int = 0
    """Tokens of the requests that are open, outputs included."""


class Asked(NamedTuple):
    """A request as its router sees it."""

    session: int
    prompt: Key
    in_tokens: int
    blocks: Sequence[int]
    """The names of the prompt's whole blocks; empty for a router that does not listen."""


class Routed(NamedTuple):
    """Where a request goes, and what the router expects to be computed there."""

    replica: Replica
    tokens: int
    cost: int = 0


def block_names(key: Key) -> list[int]:
    """A name for each block of a history, which stands for all blocks up to it: 63 bits.

    KV events chain cryptographic hashes; nobody attacks a replay, so here a block's name is a sum
    of well-mixed numbers, one for each position and its unit (SplitMix64: Steele, Lea and Flood,
    2014), and all names of a history are made in a few passes.
    """
    units = np.frombuffer(key, dtype="<u4").astype(np.uint64)
    at = np.arange(len(units), dtype=np.uint64) << np.uint64(32)
    with np.errstate(over="ignore"):
        names = _mixed(np.cumsum(_mixed(units + at), dtype=np.uint64))
    return list((names >> np.uint64(1)).tolist())


def _mixed(numbers: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


class Router(ABC):
    """Chooses a replica for every request."""

    @abstractmethod
    def route(self, asked: Asked, alive: Sequence[Replica]) -> Routed:
        """The replica for a request, of those that are alive: at least one, in order of number."""


class ListeningRouter(Router):
    """A router that hears KV events."""

    @abstractmethod
    def stored(self, replica: int, blocks: Sequence[int], parent: int | None) -> None:
        """A replica holds these blocks from now on; `parent` comes before the first of them."""

    @abstractmethod
    def removed(self, replica: int, blocks: Sequence[int]) -> None:
        """It holds them no longer."""

    @abstractmethod
    def cleared(self, replica: int) -> None:
        """It holds nothing any more."""


def _idlest(alive: Sequence[Replica]) -> Replica:
    return min(alive, key=lambda replica: (replica.open, replica.number))


class RoundRobin(Router):
    """One after the other."""

    def __init__(self) -> None:
        self._last = -1

    def route(self, asked: Asked, alive: Sequence[Replica]) -> Routed:
        found = next((r for r in alive if r.number > self._last), alive[0])
        self._last = found.number
        return Routed(found, asked.in_tokens)


class SessionAffinity(Router):
    """A session stays where it began: at the replica with the fewest open requests then.

    It knows no session's end, so its table grows with the number of sessions.
    """

    def __init__(self) -> None:
        self._home: dict[int, int] = {}
        self._begun: Counter[int] = Counter()
        """Sessions that began at each replica: between idle ones it evens them out."""

    def route(self, asked: Asked, alive: Sequence[Replica]) -> Routed:
        home = self._home.get(asked.session, -1)
        found = next((r for r in alive if r.number == home), None)
        if found is None:
            found = min(alive, key=lambda r: (r.open, self._begun[r.number], r.number))
            self._home[asked.session] = found.number
            self._begun[found.number] += 1
        return Routed(found, asked.in_tokens)


HALF: Final = 0.5
FAR_ABS, FAR_TIMES = 32, 1.1
"""Loads that are out of balance: the defaults of the SGLang model gateway's `cache_aware`."""


class PrefixAware(ListeningRouter):
    """The longest announced prefix, if it is half the prompt and the loads are in balance.

    The rule of the SGLang model gateway's `cache_aware` policy, with an index fed by events in the
    place of its own guess: the best match where it covers more than half of the prompt, else the
    idlest; the idlest as well where the busiest has over 32 and over 1.1 times as many requests.
    """

    def __init__(self, replicas: int) -> None:
        self._index = FleetIndex(map(_name, range(replicas)))

    def stored(self, replica: int, blocks: Sequence[int], parent: int | None) -> None:
        del parent
        self._index.stored(_name(replica), blocks)

    def removed(self, replica: int, blocks: Sequence[int]) -> None:
        self._index.removed(_name(replica), blocks)

    def cleared(self, replica: int) -> None:
        self._index.cleared(_name(replica))

    def route(self, asked: Asked, alive: Sequence[Replica]) -> Routed:
        held = self._index.held(asked.blocks)
        whole = len(asked.blocks) or 1

        def leading(replica: Replica) -> int:
            spans = held.get(_name(replica.number), ())
            return spans[0][1] if spans and spans[0][0] == 0 else 0

        idlest = _idlest(alive)
        most = max(replica.open for replica in alive)
        best = max(alive, key=lambda r: (leading(r), -r.open, -r.number))
        far = most - idlest.open > FAR_ABS and most > FAR_TIMES * idlest.open
        found = idlest if far or leading(best) <= HALF * whole else best
        share = leading(found) / whole
        return Routed(found, asked.in_tokens - int(share * asked.in_tokens))


RUNNING: Final = 0.1
"""What a token of an open request adds to a replica's queue, as a share of its linear cost.

Without it whoever holds the shared prefix, or a little more than the others, gets everybody, and
what it evicts for them is dearer than what it spared.  Flat from 0.05 to 0.6 on generated sessions.
"""


class LeastCost(PrefixAware):
    """The least cost of what is missing, of what waits, and a little for what runs."""

    def __init__(self, replicas: int, cost: CostModel, unit_tokens: int) -> None:
        super().__init__(replicas)
        self._cost = cost
        self._unit = unit_tokens
        self._running = RUNNING * float(cost.linear * cost.scale)

    def route(self, asked: Asked, alive: Sequence[Replica]) -> Routed:
        known = {_name(replica.number): replica for replica in alive}
        queued = {
            name: replica.queued_cost + int(self._running * replica.running_tokens)
            for name, replica in known.items()
        }
        among = candidates(self._index.held(asked.blocks), known, block=self._unit, queued=queued)
        found = choose(self._cost, asked.in_tokens, among)
        tokens = sum(end - start for start, end in found.missing)
        return Routed(known[found.name], tokens, found.cost - queued[found.name])


class Tree(Protocol):
    """What is used of `dynamo.llm.RadixTree`."""

    def apply_event(self, worker: int, event: bytes) -> None: ...

    def find_matches(self, hashes: list[int]) -> Any: ...


class Dynamo(ListeningRouter):
    """Dynamo's own index, and the rule of its default selector.

    The least of prompt blocks to compute and blocks in use: what is queued there and what the
    index does not find of this prompt, plus what the open requests hold (`DefaultWorkerSelector`,
    weight of overlap 1, temperature 0).  Of equals the one with the lowest number.
    """

    def __init__(self, unit_tokens: int, tree: Tree | None = None) -> None:
        """Raises `InvalidConfigError` where the wheel is missing and no index is given."""
        if tree is None:
            if find_spec("dynamo") is None or find_spec("dynamo._core") is None:
                raise InvalidConfigError(
                    "--router dynamo needs Dynamo's index: run pip install --no-deps "
                    "ai-dynamo-runtime==1.6.1 ai-dynamo==1.6.1 pydantic, or choose another router"
                )
            tree = import_module("dynamo.llm").RadixTree()
        self._tree = tree
        self._unit = unit_tokens
        self._sent = 0

    def stored(self, replica: int, blocks: Sequence[int], parent: int | None) -> None:
        # A block's name stands for its whole history, and so does for its tokens.
        named = [{"block_hash": block, "tokens_hash": block} for block in blocks]
        self._send(replica, {"stored": {"parent_hash": parent, "blocks": named}})

    def removed(self, replica: int, blocks: Sequence[int]) -> None:
        self._send(replica, {"removed": {"block_hashes": list(blocks)}})

    def cleared(self, replica: int) -> None:
        self._send(replica, "cleared")

    def _send(self, replica: int, data: object) -> None:
        self._sent += 1
        event = {"event_id": self._sent, "dp_rank": 0, "data": data}
        try:
            self._tree.apply_event(replica, json.dumps(event).encode())
        except RuntimeError as error:
            # It has lost sight of what comes before: its own affair, and what is to be measured.
            if "Failed to find" not in str(error):
                raise

    def route(self, asked: Asked, alive: Sequence[Replica]) -> Routed:
        scores = self._tree.find_matches(list(asked.blocks)).scores
        found: dict[int, int] = {worker: blocks for (worker, _), blocks in scores.items()}

        def missing(replica: Replica) -> int:
            return asked.in_tokens - found.get(replica.number, 0) * self._unit

        def load(replica: Replica) -> tuple[int, int]:
            prefill = replica.queued_tokens + missing(replica)
            return prefill + replica.running_tokens, replica.number

        best = min(alive, key=load)
        return Routed(best, missing(best))


def _name(replica: int) -> str:
    return f"{replica:06}"


Make = Callable[[int, CostModel, int], Router]
"""A router for so many replicas, a model, and units of so many tokens."""

ROUTERS: Mapping[str, Make] = {
    "round-robin": lambda *_: RoundRobin(),
    "session": lambda *_: SessionAffinity(),
    "prefix": lambda replicas, *_: PrefixAware(replicas),
    "dynamo": lambda _replicas, _cost, unit: Dynamo(unit),
    "cost": LeastCost,
}
"""By the name that the command line knows."""


LISTENING = ("prefix", "dynamo", "cost")
"""Those that hear KV events."""


def router(name: str, replicas: int, cost: CostModel, unit_tokens: int) -> Router:
    """A router of that name.  Raises `InvalidConfigError`."""
    if name not in ROUTERS:
        raise InvalidConfigError(
            f"--router '{name}' is not known: choose from {', '.join(ROUTERS)}"
        )
    return ROUTERS[name](replicas, cost, unit_tokens)
