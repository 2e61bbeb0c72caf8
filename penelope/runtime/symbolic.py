"""A store whose KV is checked, without a model.

The KV of a token is a digest of all tokens up to it, which is what makes a real KV right or wrong:
computing it requires every earlier slot to hold the right digest, or to be written in the same
step.  Reading a freed, stale or foreign slot fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from penelope.policy import UNIT_BYTES, Key, Residency
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


class _Pool:
    """The slots of one tier."""

    def __init__(self, capacity: int) -> None:
        self.free = list(range(capacity - 1, -1, -1))
        self.held: dict[int, Digest | None] = {}

    def require(self, slots: Sequence[int], what: str) -> None:
        if len(set(slots)) != len(slots):
            raise StoreError(f"a slot is {what} twice in one call: {sorted(slots)}")
        for slot in slots:
            if slot not in self.held:
                raise StoreError(f"slot {slot} is {what} and is not allocated")


class SymbolicStore:
    """A `KVStore` that knows what each slot holds: a device, and a host if it has a capacity."""

    def __init__(self, capacity: int, host_capacity: int = 0) -> None:
        self._pools = {Residency.DEVICE: _Pool(capacity), Residency.HOST: _Pool(host_capacity)}

    @property
    def allocated(self) -> int:
        """Allocated slots of the device."""
        return len(self._pools[Residency.DEVICE].held)

    def held(self, tier: Residency = Residency.DEVICE) -> dict[int, Digest | None]:
        """Every allocated slot of a tier, with what it holds; None for nothing yet."""
        return dict(self._pools[tier].held)

    def allocate(self, units: int, tier: Residency = Residency.DEVICE) -> list[int]:
        pool = self._pools[tier]
        if units > len(pool.free):
            raise StoreError(
                f"{units} slots of the {tier.value} are asked for and {len(pool.free)} are free"
            )
        taken = [pool.free.pop() for _ in range(units)]
        pool.held.update(dict.fromkeys(taken))
        return taken

    def free(self, slots: Sequence[int], host: Sequence[int] = ()) -> None:
        freed = ((self._pools[Residency.DEVICE], slots), (self._pools[Residency.HOST], host))
        for pool, given in freed:
            pool.require(given, "freed")
        for pool, given in freed:
            for slot in given:
                del pool.held[slot]
                pool.free.append(slot)

    def copy(self, source: Sequence[int], target: Sequence[int], tier: Residency) -> None:
        other = Residency.HOST if tier is Residency.DEVICE else Residency.DEVICE
        if len(source) != len(target):
            raise StoreError(f"{len(source)} slots are copied to {len(target)}")
        self._pools[other].require(source, "copied from")
        self._pools[tier].require(target, "copied to")
        for old, new in zip(source, target, strict=True):
            self._pools[tier].held[new] = self._pools[other].held[old]

    def step(self, batch: Iterable[Job]) -> None:
        """Run a batch through the model: every job writes, then every job reads.

        Raises `WrongKV` if a job reads a slot that does not hold its history's KV.
        """
        held = self._pools[Residency.DEVICE].held
        jobs = [(job, prefill(job.key)) for job in batch]
        for job, digests in jobs:
            for at in range(job.start, job.end):
                slot = job.table[at]
                if slot not in held:
                    raise WrongKV(f"position {at} is written to slot {slot}, which is free")
                held[slot] = digests[at]
        for job, digests in jobs:
            self.check(job.table[: job.end], digests, "is read")

    def check(
        self,
        slots: Sequence[int],
        digests: Sequence[Digest],
        what: str,
        tier: Residency = Residency.DEVICE,
    ) -> None:
        """Raises `WrongKV` unless slot after slot holds digest after digest."""
        held = self._pools[tier].held
        for at, (slot, digest) in enumerate(zip(slots, digests, strict=False)):
            if slot not in held:
                raise WrongKV(f"position {at} {what} from slot {slot}, which is free")
            if held[slot] != digest:
                raise WrongKV(
                    f"position {at} {what} from slot {slot}, which holds "
                    f"{'nothing yet' if held[slot] is None else 'KV of another history'}"
                )
