"""The naive model: the transitions on the naive cache, each as plain as it can be said."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.property.naive_cache import (
    Cache,
    Held,
    Matched,
    No,
    Page,
    Planned,
    Rules,
    Space,
    Units,
    Where,
)

__all__ = ["Held", "Matched", "Model", "No", "Planned", "Rules", "Space", "Units", "Where"]


@dataclass
class Model(Cache):
    """A transition changes it or raises `No`, and may then have scribbled on it: step on a copy."""

    def copy(self) -> Model:
        return replace(
            self,
            pages={where: replace(page) for where, page in self.pages.items()},
            receipts={number: replace(held) for number, held in self.receipts.items()},
            queue=list(self.queue),
            retired=set(self.retired),
            stops=[],
        )

    # --- use, locks, growth ---------------------------------------------------------------------

    def use(self, space: Space, path: Units) -> None:
        """A use of the history up to the end of `path`, now."""
        if path:
            self.clock += 1
            self.cut_at(space, path)
            for prefix in self.prefixes(path):
                self.pages[space, prefix].last = self.clock
            self.retired.discard((space, path))

    def cut_at(self, space: Space, path: Units) -> None:
        if path:
            self.pages[space, path].cut = True

    def touch(self, space: Space, units: Units, at_most: int | None) -> None:
        found = self.matched_pages(space, units, at_most)
        self.use(space, found[-1] if found else ())

    def acquire(self, space: Space, units: Units, at_most: int | None) -> int:
        found = self.matched_pages(space, units, at_most)
        path = found[-1] if found else ()
        self.cut_at(space, path)
        return self.issue(Held(space, path, 0))

    def issue(self, held: Held) -> int:
        number = self.issued
        self.receipts[number] = held
        self.issued += 1
        return number

    def held(self, number: int) -> Held:
        if number not in self.receipts:
            raise No("UnknownReceipt")
        return self.receipts[number]

    def release(self, number: int) -> None:
        self.held(number)
        del self.receipts[number]
        self.prune()

    def admit(self, space: Space, units: Units, extra: int, at_most: int | None) -> list[Where]:
        planned = self.plan(space, units, extra, at_most)
        if planned.evict > planned.available:
            raise No("InsufficientSpace")
        found = self.matched_pages(space, units, at_most)
        path = found[-1] if found else ()
        self.use(space, path)
        undertaken = frozenset(
            p for p in found if not self.pages[space, p].kv and self.refiller(space, p) is None
        )
        held = Held(space, path, 0, undertaken)
        self.issue(held)
        lost = self.take(planned.evict)
        held.reserved = planned.allocate
        return lost

    def reserve(self, number: int, units: int) -> list[Where]:
        if units < 0:
            raise No("InvalidAmount")
        held = self.held(number)
        if units > self.free() + self.evictable():
            own = sum(self.pages[held.space, p].kv for p in self.prefixes(held.path))
            if own * self.rules.page + held.reserved + units > self.rules.capacity:
                raise No("RequestTooLarge")
            raise No("InsufficientSpace")
        lost = self.take(units - self.free())
        held.reserved += units
        return lost

    def insert(self, space: Space, units: Units, start: int = 0) -> tuple[int, int, int]:
        answer = self.grow(space, units, start)
        if self.free() < 0:
            raise No("OverCapacity")
        return answer

    def checkpoint(self, number: int, units: Units) -> tuple[int, int, int]:
        held = self.held(number)
        whole = units[: len(units) - len(units) % self.rules.page]
        if whole[: len(held.path)] != held.path:
            raise No("NotAPrefix")
        adopted, resident, rest = self.grow(held.space, units, len(held.path))
        held.path = whole
        held.reserved -= min(held.reserved, adopted + resident)
        if self.free() < 0:
            raise No("OverCapacity")
        return adopted, resident, rest

    def grow(self, space: Space, units: Units, start: int) -> tuple[int, int, int]:
        """Give KV to every page of the history from `start` on: (adopted, resident, rest)."""
        paths = list(self.prefixes(units))
        missing = [path for path in paths if (space, path) not in self.pages]
        reach = len(missing[0]) - self.rules.page if missing else len(paths) * self.rules.page
        if start % self.rules.page or not 0 <= start <= reach:
            raise No("NotAPrefix")
        adopted = resident = 0
        for path in paths:
            if len(path) <= start:
                continue
            page = self.pages.setdefault((space, path), Page(False, 0))
            self.retired.discard((space, path[: -self.rules.page]))
            if page.kv:
                resident += self.rules.page
            else:
                page.kv = True
                adopted += self.rules.page
                # Where an offer begins inside a hole, it cuts it.
                before = self.pages.get((space, units[:start]))
                if before is not None and not before.kv:
                    before.cut = True
        if missing:
            self.cut_at(space, units[:reach])
            siblings = self.families()[space, units[:reach]]
            if len(siblings) > 1 and reach:
                self.pages[space, units[:reach]].forked = True
        self.use(space, paths[-1] if paths else ())
        return adopted, resident, len(units) % self.rules.page

    def refill(self, number: int, start: int, end: int) -> tuple[int, int]:
        held = self.held(number)
        size = self.rules.page
        if start % size or end % size or not 0 <= start < end <= len(held.path):
            raise No("NotBeingRefilled")
        adopted = 0
        for path in self.prefixes(held.path, end):
            page = self.pages[held.space, path]
            if len(path) > start and not page.kv:
                if path not in held.refilling:
                    raise No("NotBeingRefilled")
                page.kv = True
                adopted += size
        if adopted:
            self.cut_holes_end(held, start, end)
        held.reserved -= min(held.reserved, end - start)
        if self.free() < 0:
            raise No("OverCapacity")
        return adopted, end - start - adopted

    def cut_holes_end(self, held: Held, start: int, end: int) -> None:
        """Where a refill begins or ends inside a hole, it cuts it."""
        before = self.pages.get((held.space, held.path[:start]))
        if before is not None and not before.kv:
            before.cut = True
        if len(held.path) > end:
            after = self.pages[held.space, held.path[: end + self.rules.page]]
            if not after.kv:
                self.pages[held.space, held.path[:end]].cut = True

    def reset(self) -> None:
        if self.receipts:
            raise No("InUse")
        self.pages.clear()
        self.retired.clear()
        self.queue = [(number, space, ()) for number, space, _ in self.queue]

    # --- what is told of the future -------------------------------------------------------------

    def line_up(self, entries: list[int | tuple[Space, Units, int | None] | None]) -> list[int]:
        """Numbers of those who waited before, prompts of the others; None for a stale answer."""
        queue: list[tuple[int, Space, Units]] = []
        known = {number: (space, path) for number, space, path in self.queue}
        for entry in entries:
            if entry is None:
                raise No("StalePlan")
            if isinstance(entry, int):
                if entry not in known:
                    raise No("UnknownTicket")
                number, (space, path) = entry, known.pop(entry)
            else:
                number, (space, units, at_most) = -1, entry
                found = self.matched_pages(space, units, at_most)
                path = found[-1] if found else ()
            if (queue and number < queue[-1][0]) or number < 0:
                number, self.called = self.called, self.called + 1
            queue.append((number, space, path))
        self.queue = queue
        return [number for number, _, _ in queue]

    def retire(self, space: Space, units: Units, at_most: int | None) -> None:
        found = self.matched_pages(space, units, at_most)
        if found and (space, found[-1]) not in self.families():
            self.retired.add((space, found[-1]))

    # --- eviction -------------------------------------------------------------------------------

    def evict(self, need: int) -> list[Where]:
        if need < 0:
            raise No("InvalidAmount")
        if need > self.evictable():
            raise No("InsufficientSpace")
        return self.take(need)

    def take(self, need: int) -> list[Where]:
        """The pages that lose their KV, in order."""
        lost: list[Where] = []
        while need > 0:
            space, leaf = self.first_victim()
            step = self.step(space, leaf)
            for path in self.choose(space, leaf, need if step is None else min(need, step)):
                self.pages[space, path].kv = False
                lost.append((space, path))
                need -= self.rules.page
            if self.rules.position == "leaf-head":
                self.cut_at(*lost[-1])
            self.prune()
        return lost

    def prune(self) -> None:
        """Without KV, without a lock and without anything behind it a page is worth nothing."""
        while True:
            children = self.families()
            dead = [
                where
                for where, page in self.pages.items()
                if not page.kv and where not in children and not self.locks(*where)
            ]
            if not dead:
                return
            for where in dead:
                del self.pages[where]
            self.retired -= set(dead)
            size = self.rules.page
            self.queue = [
                (number, space, path[:-size] if (space, path) in dead else path)
                for number, space, path in self.queue
            ]

    def forget_cuts(self) -> None:
        """A boundary between two holes that are alike means nothing, even to the head of a leaf."""
        if self.rules.granularity == "node":
            return
        for (space, path), children in self.families().items():
            page = self.pages.get((space, path))
            if page is None or len(children) > 1 or (self.rules.sticky and page.forked):
                continue
            (child,) = children
            alike = not page.kv and not self.pages[space, child].kv
            alike = alike and self.locks(space, path) == self.locks(space, child)
            if alike and self.refiller(space, path) == self.refiller(space, child):
                page.cut = False
