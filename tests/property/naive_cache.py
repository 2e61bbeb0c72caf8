"""The policy, the slow way: the model that the core is compared with.

It shares no code and no idea with the core.  There are no nodes and no counters: a cache is a dict
of single pages, each named by its namespace and by all the tokens up to its end, and every question
is answered by looking at every page.  Recency is "when did a use last pass through this page", so
nothing is pushed up or copied when pages come and go.

Only policies that are defined by node boundaries (node granularity, and the head of a leaf) need to
know of boundaries: a page may carry a `cut` at its end.  For all others the model cannot even
express a boundary, which is how it shows that boundaries do not matter to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

Units = tuple[int, ...]
Space = tuple[str | None, str | None]
Where = tuple[Space, Units]
"""A page: its namespace, and the history up to its end."""
TAU: Final = 64


class No(Exception):
    """A refusal, by the name that the core must give it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class Rules:
    capacity: int
    page: int
    block: int
    position: str
    granularity: str
    sticky: bool = False
    order: str = "lru"
    linear: int = 0

    @property
    def nodes_matter(self) -> bool:
        return self.granularity == "node" or self.position == "leaf-head"


@dataclass
class Page:
    kv: bool
    last: int
    """When a use last passed through here."""
    cut: bool = False
    forked: bool = False
    """Whether two pages ever followed this one at once."""


@dataclass
class Held:
    """A live receipt."""

    space: Space
    path: Units
    reserved: int
    refilling: frozenset[Units] = frozenset()


@dataclass(frozen=True)
class Matched:
    """The numbers of a match; the core's have the same names."""

    length: int
    end: int
    device_prefix: int
    device: int
    hole: int
    arriving: int
    compute: int


@dataclass(frozen=True)
class Planned:
    matched: Matched
    holes: tuple[tuple[int, int], ...]
    awaits: tuple[tuple[int, int], ...]
    allocate: int
    evict: int
    available: int


@dataclass
class Cache:
    """What is the case, and what would go."""

    rules: Rules
    pages: dict[Where, Page] = field(default_factory=dict)
    receipts: dict[int, Held] = field(default_factory=dict)
    issued: int = 0
    clock: int = 0
    queue: list[tuple[int, Space, Units]] = field(default_factory=list)
    """Requests that wait, in order of service: a number, and what of their prompt is in the tree.

    Of that, only pages that were never lost since: a prompt is not looked up again.
    """
    called: int = 0
    """Numbers given to them so far."""
    retired: set[Where] = field(default_factory=set)
    """Histories that will not come back."""
    stops: list[str] = field(default_factory=list)
    """Why each walk-back stopped: for tests of the generator, no part of the state."""

    # --- what is the case -----------------------------------------------------------------------

    def prefixes(self, units: Units, limit: int | None = None) -> Iterator[Units]:
        """The whole pages of a history, each as the history up to its end."""
        limit = len(units) if limit is None else limit
        for end in range(self.rules.page, limit + 1, self.rules.page):
            yield units[:end]

    def families(self) -> dict[Where, list[Units]]:
        """Which pages follow each page (or the beginning of a namespace)."""
        children: dict[Where, list[Units]] = {}
        for space, path in self.pages:
            children.setdefault((space, path[: -self.rules.page]), []).append(path)
        return children

    def locks(self, space: Space, path: Units) -> int:
        return sum(
            held.space == space and held.path[: len(path)] == path
            for held in self.receipts.values()
        )

    def refiller(self, space: Space, path: Units) -> int | None:
        """Who refills this hole."""
        if self.pages[space, path].kv:
            return None
        for number, held in self.receipts.items():
            if held.space == space and path in held.refilling:
                return number
        return None

    def device(self) -> int:
        return sum(page.kv for page in self.pages.values()) * self.rules.page

    def free(self) -> int:
        return self.rules.capacity - self.device() - self.reserved()

    def reserved(self) -> int:
        return sum(held.reserved for held in self.receipts.values())

    def evictable(self) -> int:
        idle = sum(page.kv and not self.locks(*where) for where, page in self.pages.items())
        return idle * self.rules.page

    def victims(self) -> list[Where]:
        """The histories that may lose KV, least recently used first."""
        children = self.families()
        leaves = [where for where in self.pages if where not in children and not self.locks(*where)]
        return sorted(leaves, key=lambda where: self.pages[where].last)

    # --- whose turn it is -----------------------------------------------------------------------

    def first_victim(self) -> Where:
        """By the words of the order, over all histories."""
        victims = self.victims()
        ended = [where for where in victims if where in self.retired]
        if ended:
            return ended[0]
        places = [self.place(*where) for where in victims]
        if self.rules.order == "lru":
            idle = [where for where, k in zip(victims, places, strict=True) if k is None]
            last = max((k for k in places if k is not None), default=None)
            return idle[0] if idle else victims[places.index(last)]
        scores = [self.score(*where) for where in victims]
        return victims[scores.index(min(scores))]

    def place(self, space: Space, leaf: Units) -> int | None:
        """How many are served before the first request that will use what would go first."""
        span = self.span(space, leaf)
        for k, (_, where, path) in enumerate(self.queue):
            if where == space and path in span:
                return k
        return None

    def span(self, space: Space, leaf: Units) -> list[Units]:
        """The pages that only this history uses and that are no hole, from the head on."""
        before = len(self.stops)
        span = self.walk_back(space, leaf, own_node=False, sticky=self.rules.sticky)
        del self.stops[before:]
        return span

    def score(self, space: Space, leaf: Units) -> Fraction:
        """What losing the next pages would cost, times how soon they will be wanted."""
        at = len(self.span(space, leaf)[0]) - self.rules.page
        classes = [c * 2**i for c in (1, 3) for i in range(16)]
        cost: int = max(c for c in classes if c <= max(1, self.rules.linear + at))
        place = self.place(space, leaf)
        if place is not None:
            return cost * (Fraction(1, TAU) + Fraction(1, 2 * (place + 1)))
        age = self.clock - self.pages[space, leaf].last
        return cost * Fraction(TAU, (age + TAU) ** 2)

    def step(self, space: Space, leaf: Units) -> int | None:
        """How much may go before another history may have become cheaper; None: all."""
        if self.rules.order == "lru":
            return None
        start = len(self.span(space, leaf)[0]) - self.rules.page
        return self.rules.block - start % self.rules.block

    # --- match and plan -------------------------------------------------------------------------

    def matched_pages(self, space: Space, units: Units, at_most: int | None) -> list[Units]:
        limit = max(0, len(units) - 1) if at_most is None else min(at_most, len(units))
        if limit < 0:
            raise No("InvalidAmount")
        found: list[Units] = []
        for path in self.prefixes(units, limit):
            if (space, path) not in self.pages:
                break
            found.append(path)
        while found and not self.pages[space, found[-1]].kv:
            found.pop()  # a hole at the end is worth nothing
        return found

    def match(self, space: Space, units: Units, at_most: int | None = None) -> Matched:
        found = self.matched_pages(space, units, at_most)
        size = self.rules.page
        kv = [self.pages[space, path].kv for path in found]
        arriving = sum(self.refiller(space, path) is not None for path in found) * size
        hole = kv.count(False) * size - arriving
        end = len(found) * size
        return Matched(
            length=len(units),
            end=end,
            device_prefix=(kv.index(False) if False in kv else len(kv)) * size,
            device=sum(kv) * size,
            hole=hole,
            arriving=arriving,
            compute=len(units) - end + hole,
        )

    def plan(
        self, space: Space, units: Units, extra: int = 0, at_most: int | None = None
    ) -> Planned:
        if extra < 0:
            raise No("InvalidAmount")
        matched = self.match(space, units, at_most)
        found = self.matched_pages(space, units, at_most)
        total = len(units) + extra
        while total % self.rules.page:
            total += 1
        if total > self.rules.capacity:
            raise No("RequestTooLarge")
        allocate = matched.hole + total - matched.end
        holes = [path for path in found if not self.pages[space, path].kv]
        mine = [path for path in holes if self.refiller(space, path) is None]
        others = [path for path in holes if self.refiller(space, path) is not None]
        own = sum(self.pages[space, p].kv and not self.locks(space, p) for p in found)
        return Planned(
            matched,
            self.ranges(mine),
            self.ranges(others),
            allocate,
            max(0, allocate - self.free()),
            self.evictable() - own * self.rules.page,
        )

    def ranges(self, paths: list[Units]) -> tuple[tuple[int, int], ...]:
        covered = sorted(len(path) for path in paths)
        ranges: list[tuple[int, int]] = []
        for end in covered:
            start = end - self.rules.page
            if ranges and ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((start, end))
        return tuple(ranges)

    # --- what would go --------------------------------------------------------------------------

    def choose(self, space: Space, leaf: Units, need: int) -> list[Units]:
        """Which pages of this history go, in the order in which they go."""
        block, page = self.rules.block, self.rules.page
        position, granularity = self.rules.position, self.rules.granularity
        if position == "private-head":
            span = self.walk_back(space, leaf, own_node=False)
            if granularity == "node":
                taken: list[Units] = []
                for path in span:
                    taken.append(path)
                    if self.pages[space, path].cut and len(taken) * page >= need:
                        break
                return taken
            target = len(span[0]) - page + need
            while target % block:
                target += 1
            return [path for path in span if len(path) <= target]
        if granularity == "node" and position == "leaf-head":
            return self.walk_back(space, leaf, own_node=True)
        if position == "leaf-head":
            span = self.walk_back(space, leaf, own_node=True)
            target = len(span[0]) - page + need
            while target % block:
                target += 1
            return [path for path in span if len(path) <= target]
        span = self.walk_back(space, leaf, own_node=False)
        # What was used later than the leaf is another history's turn.
        span = [
            path for path in span if self.pages[space, path].last <= self.pages[space, leaf].last
        ]
        if granularity == "node":
            return self.whole_nodes(space, span, need)
        target = len(leaf) - need
        while target % block:
            target -= 1
        return [path for path in reversed(span) if len(path) > target]

    def whole_nodes(self, space: Space, span: list[Units], need: int) -> list[Units]:
        """From the end of a tail, node by node."""
        gone: list[Units] = []
        for path in reversed(span):
            before = path[: -self.rules.page]
            gone.append(path)
            ends = before not in span or self.pages[space, before].cut
            if ends and len(gone) * self.rules.page >= need:
                break
        return gone

    def walk_back(
        self, space: Space, leaf: Units, *, own_node: bool, sticky: bool | None = None
    ) -> list[Units]:
        """From the earliest evictable page to the leaf; `own_node` stays within the leaf's node."""
        children = self.families()
        span = [leaf]
        while True:
            before = span[0][: -self.rules.page]
            page = self.pages.get((space, before))
            if sticky is None:
                sticky = self.rules.sticky and self.rules.position == "private-head"
            if page is None:
                stop = "ROOT"
            elif len(children[space, before]) > 1 or (sticky and page.forked):
                stop = "SHARED"
            elif self.locks(space, before):
                stop = "LOCKED"
            elif not page.kv:
                stop = "HOLE"
            elif page.last > self.pages[space, leaf].last:
                stop = "USED_LATER"
            elif own_node and page.cut:
                stop = "NODE"
            else:
                span.insert(0, before)
                continue
            self.stops.append(stop)
            return span

    def differences(self) -> set[Where]:
        """Where a history ends, forks, or is not alike before and behind: cuts in any tree."""
        found: set[Where] = set()
        families = self.families()
        for (space, path), page in self.pages.items():
            children = families.get((space, path), [])
            if len(children) != 1 or (self.rules.sticky and page.forked):
                found.add((space, path))
                continue
            (child,) = children
            behind = self.pages[space, child]
            if (
                page.kv != behind.kv
                or self.locks(space, path) != self.locks(space, child)
                or self.refiller(space, path) != self.refiller(space, child)
            ):
                found.add((space, path))
        return found
