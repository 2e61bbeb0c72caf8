"""Between a cache and the store under test: every call is compared with books of our own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penelope.policy import Config, Residency
from penelope.runtime.store import StoreError
from penelope.testing.audit import TIERS
from penelope.testing.errors import ConformanceError
from penelope.testing.inspect import InspectableStore

_OTHER = {Residency.DEVICE: Residency.HOST, Residency.HOST: Residency.DEVICE}


class WatchedStore:
    """A `KVStore` that hands every call on and checks what came of it.

    Raises `ConformanceError` as soon as the store and the books differ.
    """

    def __init__(self, inner: InspectableStore, config: Config) -> None:
        self.inner = inner
        self.capacity = {
            Residency.DEVICE: config.device_capacity,
            Residency.HOST: config.host_capacity,
        }
        self.books: dict[Residency, dict[int, int | None]] = {tier: {} for tier in TIERS}
        """Every slot that was handed out, with the mark it must hold; None for none yet."""
        self.calls: Counter[str] = Counter()
        self.failing_in = 0
        """In how many calls the store pretends to be out of order, once; 0 for never."""
        self._check_room("a new store")

    def room(self, tier: Residency) -> int:
        """Free slots, by the books."""
        return self.capacity[tier] - len(self.books[tier])

    # What a cache calls

    def allocate(self, units: int, tier: Residency = Residency.DEVICE) -> list[int]:
        self._maybe_fail()
        what = f"allocate({units}, {tier.value})"
        room = self.room(tier)
        try:
            got = [int(slot) for slot in self.inner.allocate(units, tier)]
        except StoreError as error:
            if units <= room:
                raise ConformanceError(
                    "accounting", f"{what} was refused where {room} are free: {error}"
                ) from error
            self.verify(f"{what}, which was refused,")
            raise
        if len(got) != units:
            raise ConformanceError("accounting", f"{what} gave {len(got)} slots")
        if len(set(got)) != units:
            raise ConformanceError("one-copy", f"{what} gave a slot twice: {got}")
        for slot in got:
            if slot in self.books[tier]:
                raise ConformanceError("one-copy", f"{what} gave slot {slot}, which is in use")
        if units > room:
            raise ConformanceError("accounting", f"{what} gave slots where {room} are free")
        self.books[tier].update(dict.fromkeys(got))
        self.calls[f"allocated {tier.value}"] += units
        self.verify(what)
        return got

    def free(self, slots: Sequence[int], host: Sequence[int] = ()) -> None:
        self._maybe_fail()
        given = {Residency.DEVICE: list(slots), Residency.HOST: list(host)}
        what = f"free({given[Residency.DEVICE]}, host={given[Residency.HOST]})"
        wrong = self._wrong(given)
        try:
            self.inner.free(slots, host)
        except StoreError as error:
            if not wrong:
                raise ConformanceError("accounting", f"{what} was refused: {error}") from error
            self.verify(f"{what}, which was refused,")
            raise
        if wrong:
            raise ConformanceError("one-copy", f"{what} was accepted: {wrong}")
        for tier, freed in given.items():
            for slot in freed:
                del self.books[tier][slot]
            self.calls[f"freed {tier.value}"] += len(freed)
        self.verify(what)

    def copy(self, source: Sequence[int], target: Sequence[int], tier: Residency) -> None:
        self._maybe_fail()
        what = f"copy({[*source]} to {tier.value} {[*target]})"
        theirs, ours = self.books[_OTHER[tier]], self.books[tier]
        fits = len(source) == len(target)
        fits = fits and set(source) <= theirs.keys() and set(target) <= ours.keys()
        try:
            self.inner.copy(source, target, tier)
        except StoreError:
            # What a failed copy has written to its targets is worth nothing.
            self.calls["copies refused"] += 1
            self.verify(f"{what}, which was refused,")
            raise
        if not fits:
            raise ConformanceError(
                "one-copy", f"{what} was accepted: not one allocated slot for each"
            )
        for old, new in zip(source, target, strict=True):
            ours[new] = theirs[old]
        self.calls[f"copied to the {tier.value}"] += len(source)
        self.verify(what, "moves-do-not-evict")

    # What the suite does

    def write(self, slots: Sequence[int], marks: Sequence[int]) -> None:
        """Compute KV into device slots."""
        self.inner.write(slots, marks, Residency.DEVICE)
        self.books[Residency.DEVICE].update(zip(slots, marks, strict=True))

    def held(self) -> dict[Residency, dict[int, int]]:
        """Every allocated slot, with the mark that the store has there now."""
        return {
            tier: dict(zip(books, self.inner.read([*books], tier), strict=True)) if books else {}
            for tier, books in self.books.items()
        }

    def verify(self, after: str, invariant: str = "exact-refill") -> None:
        """Raises `ConformanceError` unless the store has what the books say, and the room."""
        self._check_room(after)
        for tier, held in self.held().items():
            for slot, mark in self.books[tier].items():
                if mark is not None and held[slot] != mark:
                    raise ConformanceError(
                        invariant,
                        f"after {after} {tier.value} slot {slot} holds {held[slot]} where {mark} "
                        f"was written",
                    )

    def _check_room(self, after: str) -> None:
        for tier in TIERS:
            said, room = self.inner.room(tier), self.room(tier)
            if said != room:
                raise ConformanceError(
                    "accounting",
                    f"after {after} the store says that {said} {tier.value} slots are free, and "
                    f"{room} of {self.capacity[tier]} are",
                )

    def _wrong(self, given: dict[Residency, list[int]]) -> str:
        """Why these slots must not be freed; nothing where they may."""
        for tier, slots in given.items():
            if len(set(slots)) != len(slots):
                return f"a {tier.value} slot is named twice"
            strange = sorted(set(slots) - self.books[tier].keys())
            if strange:
                return f"{tier.value} slots {strange} are not allocated"
        return ""

    def _maybe_fail(self) -> None:
        self.failing_in -= 1
        if self.failing_in == 0:
            self.calls["failures"] += 1
            raise StoreError("the store is out of order, as the suite wants it")
