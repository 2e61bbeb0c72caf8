"""Which replica holds which block, from the KV events of all of them.

One entry for each block that anybody holds: who holds it is one integer with a bit for each
replica.  Blocks are independent: a hole costs nothing but itself, and an event that was lost or
repeated spoils no other block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, compress, count, islice, repeat
from operator import ne

from penelope.routing.scoring import RoutingError, Span


class FleetIndex:
    """An index of the blocks of a fleet, in bounded memory.

    A block is named by an integer that stands for all tokens up to its end, as KV events have it.
    """

    def __init__(self, replicas: Iterable[str] = (), *, most_blocks: int = 5_000_000) -> None:
        """`most_blocks` is how many different blocks are kept at once.

        Blocks beyond that are not recorded until others go (`dropped` counts them): what a replica
        holds is then told too low, never too high.  Raises `RoutingError` for less than one.
        """
        if most_blocks < 1:
            raise RoutingError(f"an index of {most_blocks} blocks holds nothing: give 1 or more")
        self.most_blocks = most_blocks
        self.dropped = 0
        self._names: list[str] = []
        self._bits: dict[str, int] = {}
        self._holders: dict[int, int] = {}
        # Equal sets of holders are one object: most blocks have one holder.
        self._sets: dict[int, int] = {}
        for name in replicas:
            self.add(name)

    def __len__(self) -> int:
        """Different blocks that somebody holds."""
        return len(self._holders)

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(self._names)

    def add(self, replica: str) -> None:
        """A replica that holds nothing yet; one that is known stays as it is."""
        if replica not in self._bits:
            self._bits[replica] = 1 << len(self._names)
            self._names.append(replica)

    def stored(self, replica: str, blocks: Iterable[int]) -> None:
        """The replica holds these blocks from now on.  Raises `RoutingError` if it is unknown."""
        bit = self._bit(replica)
        holders, sets = self._holders, self._sets
        told = list(blocks)
        before = set(map(holders.get, told))
        room = len(holders) + len(told) <= self.most_blocks
        if len(before) == 1 and (room or None not in before):
            # The same for all, as in most events: without a step in Python for every block.
            held = (before.pop() or 0) | bit
            holders.update(dict.fromkeys(told, sets.setdefault(held, held)))
            return
        for block in told:
            held = holders.get(block, 0)
            if not held and len(holders) >= self.most_blocks:
                self.dropped += 1
                continue
            held |= bit
            holders[block] = sets.setdefault(held, held)

    def removed(self, replica: str, blocks: Iterable[int]) -> None:
        """It holds them no longer; blocks that it was not known to hold are ignored."""
        bit = self._bit(replica)
        holders, sets = self._holders, self._sets
        told = list(blocks)
        before = set(map(holders.get, told))
        if before == {bit}:
            # Nobody else has any: as above.
            deque(map(holders.pop, told, repeat(None)), maxlen=0)
            told = []
        for block in told:
            left = holders.get(block, 0) & ~bit
            if left:
                holders[block] = sets.setdefault(left, left)
            else:
                holders.pop(block, None)
        if len(sets) > 1000 + len(holders):
            self._sets = {held: held for held in holders.values()}

    def cleared(self, replica: str) -> None:
        """It holds nothing any more.  Linear in the index: a flush is rare."""
        bit = self._bit(replica)
        self.removed(replica, [block for block, held in self._holders.items() if held & bit])

    def held(self, blocks: Sequence[int]) -> dict[str, list[Span]]:
        """What of a history each replica holds, as spans of blocks; who holds nothing is left out.

        Time: one look-up for each block, and a step wherever a replica's span begins or ends.
        """
        found = [*map(self._holders.get, blocks), None]
        # Without a step in Python for every block: most have the holders of the one before.
        differs = compress(count(1), map(ne, found, islice(found, 1, None)))
        spans: dict[int, list[Span]] = {}
        begun: dict[int, int] = {}
        before = 0
        for at in chain((0,), differs):
            now = found[at] or 0
            changed = before ^ now
            while changed:
                bit = changed & -changed
                changed ^= bit
                if now & bit:
                    begun[bit] = at
                else:
                    spans.setdefault(bit, []).append((begun.pop(bit), at))
            before = now
        return {self._names[bit.bit_length() - 1]: spans[bit] for bit in sorted(spans)}

    def _bit(self, replica: str) -> int:
        if replica not in self._bits:
            raise RoutingError(f"replica {replica!r} is not known: add it first")
        return self._bits[replica]
