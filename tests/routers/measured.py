"""How far routers are off while caches have holes: figures for docs/routers.md.

python -m tests.routers      # measure, and write the table of the page
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penelope.cost import preset
from penelope.policy import pack
from penelope.routing import Candidate, FleetIndex, candidates, choose, quote
from penelope.runtime.announcing import Announce
from tests.routers.dynamo_tree import DynamoTree
from tests.routers.fleet import Fleet, Listener, Sizes
from tests.routers.indexes import AibrixTable, Event, GatewayEvents, Index, LlmdScorer

MODEL: Final = preset("qwen3-8b")
TOKENS: Final = 256
"""Tokens that a unit of the fleet stands for here: sessions of up to 40,000."""
REQUESTS: Final = 600
SEEDS: Final = (1, 2, 3)
TIERS: Final = Sizes(capacity=200, host=154, swap=4)
"""The same KV as with one tier, of which the host has 150 units."""

ROUTERS: Final[dict[str, Callable[[], Index]]] = {
    "Dynamo, radix tree": DynamoTree,
    "SGLang gateway, events": GatewayEvents,
    "llm-d, longest prefix": LlmdScorer,
    "AIBrix, synchronised": AibrixTable,
}
OURS: Final = "`penelope.routing`"


class OurIndex:
    """`penelope.routing`'s index behind the models' interface."""

    def __init__(self, replicas: int) -> None:
        self.refused = 0
        self.index = FleetIndex(map(str, range(replicas)))

    def apply(self, event: Event) -> None:
        change = self.index.stored if event.stored else self.index.removed
        change(str(event.replica), event.blocks)

    def clear(self, replica: int) -> None:
        self.index.cleared(str(replica))

    def scores(self, request: Sequence[int]) -> dict[int, int]:
        """Blocks that are held, wherever they lie."""
        return {
            int(name): sum(end - start for start, end in spans)
            for name, spans in self.index.held(request).items()
        }


@dataclass
class Off:
    """How far one router is off in one mode, over all requests."""

    too_many: int = 0
    too_few: int = 0
    compared: int = 0
    elsewhere: int = 0
    """Requests that another replica would have served for less."""
    cost: int = 0
    least: int = 0
    refused: int = 0
    told: int = 0

    def add(self, other: Off) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


Measured = dict[tuple[str, Announce], Off]


def measure(
    seeds: Sequence[int] = SEEDS, requests: int = REQUESTS, sizes: Sizes | None = None
) -> Measured:
    """Every router in every mode over the same histories, added up over some seeds."""
    total: Measured = {}
    for seed in seeds:
        for key, off in measure_one(seed, requests, sizes or Sizes()).items():
            total.setdefault(key, Off()).add(off)
    return total


def measure_one(seed: int, requests: int, sizes: Sizes) -> Measured:
    listeners = {
        (name, mode): Listener(mode, make())
        for mode in Announce
        for name, make in (*ROUTERS.items(), (OURS, lambda: OurIndex(sizes.replicas)))
    }
    found = {key: Off() for key in listeners}
    fleet = Fleet(seed, sizes, [*listeners.values()])
    for units in fleet.requests(requests):
        request = fleet.blocks.of(_packed(units))
        costs, truth = _true(fleet, units)
        for key, listener in listeners.items():
            scores = listener.router.scores(request)
            off = found[key]
            off.compared += len(truth)
            for replica, held in enumerate(truth):
                more = scores.get(replica, 0) - held
                off.too_many += max(0, more)
                off.too_few += max(0, -more)
            if isinstance(listener.router, OurIndex):
                chosen = _cheapest(listener.router, request, len(units), sizes)
            else:
                chosen = min(range(sizes.replicas), key=lambda at: (-scores.get(at, 0), at))
            off.elsewhere += costs[chosen] > min(costs)
            off.cost += costs[chosen]
            off.least += min(costs)
    for key, listener in listeners.items():
        found[key].refused = listener.router.refused
        found[key].told = fleet.told[listener.mode]
    return found


def _packed(units: list[int]) -> bytes:
    return pack(units)


def _true(fleet: Fleet, units: list[int]) -> tuple[list[int], list[int]]:
    """Of every replica, the cost of the request there and the blocks of it that are there."""
    costs, blocks = [], []
    for replica in range(fleet.sizes.replicas):
        spans = fleet.resident(replica, units)
        blocks.append(sum(end - start for start, end in spans) // fleet.sizes.page)
        there = Candidate("", [(start * TOKENS, end * TOKENS) for start, end in spans])
        costs.append(quote(MODEL, len(units) * TOKENS, there).cost)
    return costs, blocks


def _cheapest(index: OurIndex, request: list[int], length: int, sizes: Sizes) -> int:
    names = index.index.replicas
    held = index.index.held(request)
    among = candidates(held, names, block=TOKENS * sizes.page)
    return int(choose(MODEL, length * TOKENS, among).name)


BEGIN: Final = "<!-- table routers: python -m tests.routers -->"
BEGIN_TIERS: Final = "<!-- table routers in two tiers: python -m tests.routers -->"
END: Final = "<!-- end -->"
HEADER: Final = (
    "router | mode | blocks too many | blocks too few | stores refused | not the cheapest | "
    "cost over the cheapest"
)


def table(found: Measured) -> str:
    columns = HEADER.split(" | ")
    lines = [f"| {HEADER} |", "|" + "---|" * 2 + "---:|" * (len(columns) - 2)]
    for (name, mode), off in sorted(found.items(), key=lambda item: _order(*item[0])):
        requests = off.compared // Sizes().replicas
        cells = [
            name,
            f"`{mode.value}`",
            f"{off.too_many / off.compared:.2f}",
            f"{off.too_few / off.compared:.2f}",
            f"{100 * off.refused / off.told:.1f} %",
            f"{100 * off.elsewhere / requests:.1f} %",
            f"{100 * (off.cost / off.least - 1):.1f} %",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _order(name: str, mode: Announce) -> tuple[int, int]:
    return [*ROUTERS, OURS].index(name), [*Announce].index(mode)


def rendered(text: str, one_tier: Measured, two_tiers: Measured) -> str:
    """The page with its tables replaced."""
    for begin, found in ((BEGIN, one_tier), (BEGIN_TIERS, two_tiers)):
        before, rest = text.split(begin)
        after = rest.split(END, 1)[1]
        text = f"{before}{begin}\n{table(found)}\n{END}{after}"
    return text
