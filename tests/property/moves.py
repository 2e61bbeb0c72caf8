"""What to try next: aimed at what the cache holds and at the edges of its guards.

Uniformly random histories hardly ever meet, and uniformly random numbers bounce off the guards.  So
prompts are cut from and grown onto histories that the cache knows, and numbers lie on, just below
or just above the values at which an answer changes.

All chance comes from `pick`, so that Hypothesis can drive the moves (and shrink them) and a seeded
generator can drive long walks of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from penelope.policy import POLICIES, Config, Granularity, Order, Position
from tests.property.naive import Model, Space, Units
from tests.property.twin import Twin

T = TypeVar("T")
Pick = Callable[[int], int]
"""An integer from 0 to the given one, both included; 0 is the simplest."""

SPACES: Final[tuple[Space, ...]] = ((None, None), ("a", "b"), ("ab", None))
CAPACITIES: Final = (24, 16, 36, 12, 60, 9, 24, 5, 16, 1)
LIVE: Final = 3
"""So many requests run at once, mostly: with more, soon everything would be locked."""


def config(pick: Pick) -> Config:
    """A small cache of any kind: mostly one of the named policies, often Penelope's."""
    kind = pick(7)
    if kind < 3:
        position, granularity = POLICIES["penelope"]
    elif kind < 7:
        position, granularity = _one(pick, list(POLICIES.values()))
    else:
        position, granularity = _one(pick, list(Position)), _one(pick, list(Granularity))
    penelope = (position, granularity) == POLICIES["penelope"]
    page = _one(pick, (1, 2, 3, 4))
    return Config(
        # Not always whole pages: what is left over can never be used.
        device_capacity=page * _one(pick, CAPACITIES) + pick(page - 1),
        page_size=page,
        block_size=page * (1 + pick(3)),
        position=position,
        granularity=granularity,
        sticky_shared=pick(3) == 3,
        order=_one(pick, tuple(Order)) if penelope else Order.LRU,
        linear_cost=_one(pick, (0, 8, 1, 30)),
        unit_bytes=_one(pick, (4, 4, 4, 1, 8)),
    )


def _one(pick: Pick, choices: Sequence[T]) -> T:
    return choices[pick(len(choices) - 1)]


class Moves:
    """One operation, or one whole request, on both caches."""

    def __init__(self, twin: Twin, pick: Pick) -> None:
        self.twin, self.pick = twin, pick

    # --- histories ------------------------------------------------------------------------------

    def insert(self) -> None:
        """Offer a history, mostly after making room for it."""
        space = self._space()
        units = self._prompt(space)
        start = _one(self.pick, self._starts(space, units)) if self.pick(3) == 3 else 0
        lacking = self._lacks(space, units, start) - self.model.free()
        if 0 < lacking <= self.model.evictable() and self.pick(5):
            self.twin.evict(lacking)
        self.twin.insert(space, units, start)

    def ask(self) -> None:
        """A match or a plan, perhaps for use after the state has moved on."""
        space = self._space()
        units = self._prompt(space)
        at_most = _one(self.pick, (None, None, None, len(units), len(units) // 2, -1))
        if self.pick(1):
            self.twin.plan(space, units, self._room(), at_most)
        else:
            self.twin.look(space, units, at_most)

    def use(self) -> None:
        """Act on an answer: mostly the latest, sometimes a stale one."""
        if not self.twin.asked:
            return
        which = max(0, len(self.twin.asked) - 1 - _one(self.pick, (0, 0, 0, 0, 1, 2)))
        if self.twin.asked[which].plan is not None and self.pick(3):
            self.twin.admit(which)
        elif self.pick(1):
            self.twin.acquire(which)
        else:
            self.twin.touch(which)

    def queue(self) -> None:
        """Requests join, leave or overtake; rarely one that nobody knows, or a stale answer."""
        entries = [number for number, _, _ in self.model.queue]
        kind = self.pick(7)
        if entries and kind == 7:
            entries.pop(self.pick(len(entries) - 1))
        elif entries and kind == 6:
            entries.insert(self.pick(len(entries) - 1), entries.pop())
        elif kind == 5:
            entries.append(self.pick(self.model.called + 1))
        if kind < 5 or not entries:
            space = self._space()
            whole = self._prompt(space, grow=bool(self.pick(1)))
            if self.twin.look(space, whole, _one(self.pick, (None, len(whole)))) is not None:
                entries.insert(self.pick(len(entries)), -len(self.twin.asked))
        if self.pick(15) == 15 and self.twin.asked:
            entries.append(-1)
        self.twin.line_up(entries)

    def retire(self) -> None:
        space = self._space()
        whole = self._prompt(space, grow=False)
        if self.twin.look(space, whole, len(whole)) is not None:
            self.twin.retire(len(self.twin.asked) - 1)

    def hold(self) -> None:
        """Lock or touch a matched prefix right away."""
        self._end_old_requests()
        space = self._space()
        units = self._prompt(space, grow=False)
        if self.twin.look(space, units, _one(self.pick, (None, len(units)))) is None:
            return
        if self.pick(1):
            self.twin.touch(len(self.twin.asked) - 1)
        else:
            self.twin.acquire(len(self.twin.asked) - 1)

    def hold_part(self) -> None:
        """Lock a history up to somewhere inside it and evict behind the lock: further holes."""
        space = self._space()
        known = [path for path in self._endings(space) if len(path) > self.model.rules.page]
        if not known:
            return self.turn()
        holed = [p for p in known if self._holes(space, p)]
        units = _one(self.pick, holed if holed and self.pick(3) else known)
        self._end_old_requests()
        number, middle = self.model.issued, self.pick(len(units))
        self.twin.look(space, units, middle)
        self.twin.acquire(len(self.twin.asked) - 1)
        most = self.model.evictable()
        self.twin.evict(min(most, 1 + self.pick(self.model.rules.block)))
        if self.pick(1):
            self.twin.release(number)
        return None

    # --- requests -------------------------------------------------------------------------------

    def begin(self) -> int | None:
        """Plan and admit; the receipt's number if that worked."""
        self._end_old_requests()
        space = self._space()
        units = self._prompt(space)
        number, extra = self.model.issued, self.pick(2 * self.model.rules.page)
        planned = self.twin.plan(space, units, extra)
        while planned is not None and not planned.admissible and self.pick(7) != 7:
            self.twin.release(min(self.model.receipts))
            planned = self.twin.plan(space, units, extra)
        if planned is None:
            return None
        return number if self.twin.admit(len(self.twin.asked) - 1) else None

    def turn(self) -> None:
        """One request from plan to release, as an engine does it."""
        number = self.begin()
        if number is None:
            return
        units = self.twin.asked[-1].units
        for start, end in self._pending(number):
            self.twin.refill(number, start, end)
        self.twin.checkpoint(number, units)
        if number in self.model.receipts:
            output = self._tokens(min(self.pick(3), self.model.receipts[number].reserved))
            self.twin.checkpoint(number, units + output)
        if self.pick(7) != 7:
            self.twin.release(number)

    def turn_under_pressure(self) -> None:
        """Evict a little, then serve a request: what makes and fills holes."""
        if 2 * self.model.free() < self.model.rules.capacity:
            most = self.model.evictable() // 4
            self.twin.evict(min(most, 1 + self.pick(self.model.rules.block)))
        self.turn()

    def rival(self) -> None:
        """A request on a history that another one is refilling."""
        waiting = [n for n in sorted(self.model.receipts) if self._pending(n)]
        if not waiting:
            return self.turn_under_pressure()
        held = self.model.receipts[_one(self.pick, waiting)]
        units = held.path + self._tokens(1 + self.pick(self.model.rules.page))
        if self.twin.plan(held.space, units) is not None:
            self.twin.admit(len(self.twin.asked) - 1)
        return None

    def refill(self) -> None:
        """The next part of a hole, or all of it; rarely a span that may not be refilled."""
        page, number = self.model.rules.page, self._receipt()
        waiting = [n for n in sorted(self.model.receipts) if self._pending(n)]
        if not waiting and self.pick(3):
            return self.turn_under_pressure()
        if waiting and self.pick(7) != 7:
            number = _one(self.pick, waiting)
            start, end = self._pending(number)[0]
            end = start + page * (1 + self.pick((end - start) // page - 1))
            if self.pick(7) == 7:  # not from its beginning
                start += page * self.pick((end - start) // page - 1)
        else:
            start = page * (self.pick(5) - 1) + _one(self.pick, (0, 0, 1))
            end = start + page * self.pick(4)
        return self.twin.refill(number, start, end)

    def checkpoint(self) -> None:
        """What a running request has computed so far; rarely another history."""
        number = self._receipt()
        held = self.model.receipts.get(number)
        base = held.path if held is not None and self.pick(7) != 7 else (0, 1)
        length = min(0 if held is None else held.reserved, self.pick(2 * self.model.rules.page))
        length += self.pick(7) == 7
        self.twin.checkpoint(number, base + self._tokens(length))

    def reserve(self) -> None:
        self.twin.reserve(self._receipt(), self._room())

    def release(self) -> None:
        self.twin.release(self._receipt())

    # --- the cache ------------------------------------------------------------------------------

    def evict(self) -> None:
        """Around nothing, a block, or all that is evictable; a cache half empty grows instead."""
        if self.pick(5) and 2 * self.model.free() > self.model.rules.capacity:
            return self.turn()
        total, block, kind = self.model.evictable(), self.model.rules.block, self.pick(7)
        if kind == 7:
            need = total + self.pick(2) - 1
        elif kind == 6:
            need = self.pick(total)
        else:
            need = min(total, block * (kind % 3) + self.pick(2) - 1)
        return self.twin.evict(need)

    def reset(self) -> None:
        """Rare, or nothing would ever grow."""
        if self.pick(31) == 31:
            self.twin.reset()

    # --- choices --------------------------------------------------------------------------------

    @property
    def model(self) -> Model:
        return self.twin.model

    def _space(self) -> Space:
        """Mostly one namespace, so that histories meet."""
        return _one(self.pick, (SPACES[0],) * 7 + SPACES[1:])

    def _prompt(self, space: Space, *, grow: bool = True) -> Units:
        """A history that the cache knows, cut somewhere and grown somewhere."""
        page, block = self.model.rules.page, self.model.rules.block
        known = self._endings(space)
        base: Units = ()
        if known and self.pick(9) != 9:
            holed = [path for path in known if self._holes(space, path)]
            base = _one(self.pick, holed if holed and self.pick(1) else known)
            kind = self.pick(7)
            if kind == 7:
                base = base[: self.pick(len(base))]
            elif kind == 6:  # at a block boundary, or a page from it
                at = self.pick(len(base) // block) * block
                base = base[: max(0, at + (self.pick(2) - 1) * page)]
            elif kind == 5:  # where residency, locks or recency change
                base = base[: _one(self.pick, self._edges(space, base))]
        pages = _one(self.pick, (3, 1, 6, 0, 2, 4)) if grow else 0
        if self.pick(7) != 7:  # so that it still fits, mostly
            pages = min(pages, max(1, (self.model.rules.capacity - len(base)) // page // 2))
        rest = self.pick(page - 1) if self.pick(1) else 0
        # A history may be longer than the device, but then only by a little.
        return (base + self._tokens(pages * page + rest))[: self.model.rules.capacity + page]

    def _endings(self, space: Space) -> list[Units]:
        """Known histories, whole; those on which a refill is under way first."""
        page = self.model.rules.page
        inner = {path[:-page] for of, path in self.model.pages if of == space}
        leaves = {path for of, path in self.model.pages if of == space} - inner
        waiting = {
            held.path
            for number, held in self.model.receipts.items()
            if held.space == space and self._pending(number)
        }
        return sorted(waiting) + sorted(leaves - waiting)

    def _holes(self, space: Space, path: Units) -> bool:
        return not all(self.model.pages[space, p].kv for p in self.model.prefixes(path))

    def _edges(self, space: Space, path: Units) -> list[int]:
        """Positions on a history where something changes, its ends included."""
        page, model, found = self.model.rules.page, self.model, [0, len(path)]
        for end in range(page, len(path), page):
            here, after = model.pages[space, path[:end]], model.pages[space, path[: end + page]]
            locks = model.locks(space, path[:end]) != model.locks(space, path[: end + page])
            if locks or here.kv != after.kv or here.last != after.last:
                found.append(end)
        return found

    def _tokens(self, count: int) -> Units:
        """New tokens, of so few kinds that two histories often go on alike by chance."""
        code = self.pick(3**count - 1)
        return tuple(code // 3**i % 3 for i in range(count))

    def _starts(self, space: Space, units: Units) -> list[int]:
        page = self.model.rules.page
        matched = self.model.match(space, units, len(units)).end
        return sorted({0, 1, matched, matched // 2 // page * page, matched + page})

    def _lacks(self, space: Space, units: Units, start: int) -> int:
        pages = self.model.pages
        return self.model.rules.page * sum(
            (space, path) not in pages or not pages[space, path].kv
            for path in self.model.prefixes(units)
            if len(path) > start
        )

    def _room(self) -> int:
        """Units to reserve: around what is free, around what could be, or few."""
        free = self.model.free()
        if self.pick(3) == 3:
            return _one(self.pick, (free, free + self.model.evictable())) + self.pick(2) - 1
        return self.pick(self.model.rules.block)

    def _pending(self, number: int) -> list[tuple[int, int]]:
        """Holes that a receipt has still to refill."""
        held = self.model.receipts[number]
        todo = [p for p in held.refilling if not self.model.pages[held.space, p].kv]
        return list(self.model.ranges(todo))

    def _receipt(self) -> int:
        """Mostly a live receipt; sometimes one that was released, or was never issued."""
        live = sorted(self.model.receipts)
        if live and self.pick(9) != 9:
            return _one(self.pick, live)
        return self.pick(self.model.issued)

    def _end_old_requests(self) -> None:
        for number in sorted(self.model.receipts)[:-LIVE]:
            if self.pick(3) != 3:
                self.twin.release(number)


NAMES: Final = (
    "turn",
    "turn_under_pressure",
    "insert",
    "begin",
    "evict",
    "refill",
    "rival",
    "hold",
    "hold_part",
    "ask",
    "use",
    "checkpoint",
    "release",
    "reserve",
    "queue",
    "retire",
    "reset",
)
