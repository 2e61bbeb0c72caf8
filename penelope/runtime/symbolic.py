"""A store whose KV is checked, without a model.

The KV of a token is a digest of all tokens up to it, which is what makes a real KV right or wrong:
computing it requires every earlier slot to hold the right digest, or to be written in the same
step.  Reading a freed, stale or foreign slot fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from penelope.policy import UNIT_BYTES, Key
from penelope.runtime.store import StoreError

Digest = bytes
_START = b"start of a history"


class WrongKV(AssertionError):
    """Attention would read KV that is not that of the history it is read for."""


def prefill(key: Key, unit_bytes: int = UNIT_BYTES) -> list[Digest]:
    """What a full prefill of a history writes, token by token."""
    digest, written = _START, []
    for at in range(0, len(key), unit_bytes):
        digest = blake2b(digest + key[at : at + unit_bytes], digest_size=8).digest()
        written.append(digest)
    return written


class Job(NamedTuple):
    """A request, real or phantom, in a batch: it computes positions [start, end) of a history."""

    key: Key
    table: Sequence[int]
    """The slot of each position in [0, end)."""
    start: int
    end: int


class SymbolicStore:
    """A `KVStore` of `capacity` slots that knows what each slot holds."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = list(range(capacity - 1, -1, -1))
        self._held: dict[int, Digest | None] = {}

    @property
    def allocated(self) -> int:
        return len(self._held)

    def allocate(self, units: int) -> list[int]:
        if units > len(self._free):
            raise StoreError(f"{units} slots are asked for and {len(self._free)} are free")
        taken = [self._free.pop() for _ in range(units)]
        self._held.update(dict.fromkeys(taken))
        return taken

    def free(self, slots: Sequence[int]) -> None:
        if len(set(slots)) != len(slots):
            raise StoreError(f"a slot is freed twice in one call: {sorted(slots)}")
        for slot in slots:
            if slot not in self._held:
                raise StoreError(f"slot {slot} is freed and is not allocated")
        for slot in slots:
            del self._held[slot]
            self._free.append(slot)

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        if len(source) != len(target):
            raise StoreError(f"{len(source)} slots are copied to {len(target)}")
        for slot in (*source, *target):
            if slot not in self._held:
                raise StoreError(f"slot {slot} is copied and is not allocated")
        for slot, digest in zip(target, [self._held[slot] for slot in source], strict=True):
            self._held[slot] = digest

    def step(self, batch: Iterable[Job]) -> None:
        """Run a batch through the model: every job writes, then every job reads.

        Raises `WrongKV` if a job reads a slot that does not hold its history's KV.
        """
        jobs = [(job, prefill(job.key)) for job in batch]
        for job, digests in jobs:
            for at in range(job.start, job.end):
                slot = job.table[at]
                if slot not in self._held:
                    raise WrongKV(f"position {at} is written to slot {slot}, which is free")
                self._held[slot] = digests[at]
        for job, digests in jobs:
            self.check(job.table[: job.end], digests, "is read")

    def check(self, slots: Sequence[int], digests: Sequence[Digest], what: str) -> None:
        """Raises `WrongKV` unless slot after slot holds digest after digest."""
        for at, (slot, digest) in enumerate(zip(slots, digests, strict=False)):
            if slot not in self._held:
                raise WrongKV(f"position {at} {what} from slot {slot}, which is free")
            if self._held[slot] != digest:
                raise WrongKV(
                    f"position {at} {what} from slot {slot}, which holds "
                    f"{'nothing yet' if self._held[slot] is None else 'KV of another history'}"
                )
