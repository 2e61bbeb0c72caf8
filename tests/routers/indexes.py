"""The indexes of routers as small models, written from their documented behaviour.

Dynamo's is in `dynamo_tree`: it is compared with the real one.

A block is an integer that stands for all tokens up to its end.  Every model follows the events of a
whole fleet and answers, for each replica, how many blocks of a request it takes to be held there.
What they do not model: time, capacity, weights of tiers, and the hashes themselves.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple, Protocol


class Event(NamedTuple):
    """What a replica says: a run of blocks, each the parent of the next, is there or no longer."""

    replica: int
    stored: bool
    blocks: tuple[int, ...]
    parent: int | None
    """Of the first block; None where a history begins."""


class Index(Protocol):
    @property
    def refused(self) -> int:
        """Stored blocks that it could not place."""
        ...

    def apply(self, event: Event) -> None: ...
    def clear(self, replica: int) -> None: ...
    def scores(self, request: Sequence[int]) -> dict[int, int]:
        """Blocks by replica; a replica that has none may be left out."""
        ...


class GatewayEvents:
    """The event tree of the SGLang model gateway: the replicas of each block, by its position.

    A block whose parent is not known is refused.  Nothing is removed but what is named.  A search
    jumps: where as many replicas have the block `jump` further on as are in the running, all of
    them are taken to have everything between; else the blocks between are gone through.
    """

    def __init__(self, jump: int = 64) -> None:
        self.refused = 0
        self._jump = jump
        self._holders: dict[int, set[int]] = {}

    def apply(self, event: Event) -> None:
        if not event.stored:
            for block in event.blocks:
                self._holders.get(block, set()).discard(event.replica)
        elif event.parent is not None and event.replica not in self._at(event.parent):
            self.refused += len(event.blocks)
        else:
            for block in event.blocks:
                self._holders.setdefault(block, set()).add(event.replica)

    def clear(self, replica: int) -> None:
        for holders in self._holders.values():
            holders.discard(replica)

    def scores(self, request: Sequence[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        running = set(self._at(request[0])) if request else set()
        at, last = 0, len(request) - 1
        while at < last and running:
            ahead = min(at + self._jump, last)
            if len(self._at(request[ahead])) != len(running):
                for position in range(at + 1, ahead + 1):
                    there = self._at(request[position])
                    if len(there) < len(running):
                        found.update(dict.fromkeys(running - there, position))
                        running &= there
            at = ahead
        return found | dict.fromkeys(running, len(request))

    def _at(self, block: int) -> set[int]:
        return self._holders.get(block, set())


class LlmdScorer:
    """llm-d's KV-block index with its longest-prefix scorer.

    Blocks are independent of each other, and a replica's score is the number of blocks that it has
    without a gap from the first one on.
    """

    def __init__(self) -> None:
        self.refused = 0
        self._held: dict[int, set[int]] = {}

    def apply(self, event: Event) -> None:
        held = self._held.setdefault(event.replica, set())
        if event.stored:
            held.update(event.blocks)
        else:
            held.difference_update(event.blocks)

    def clear(self, replica: int) -> None:
        self._held.pop(replica, None)

    def scores(self, request: Sequence[int]) -> dict[int, int]:
        return {
            replica: count
            for replica, held in self._held.items()
            if (count := _leading(request, held))
        }


class AibrixTable:
    """AIBrix' synchronised prefix table, which keeps hashes of its own, fed one block an event.

    A block whose parent is not known gets the hash of a first block, under which no request looks
    for it, and keeps it until it is removed.  A removal deletes the block for every replica.  A
    search ends at the first block that no replica has, and a replica's score is the last block
    that it was found at, whatever it lacks before.  A clearance of one replica is ignored.
    """

    def __init__(self) -> None:
        self.refused = 0
        self._right: dict[int, bool] = {}
        self._holders: dict[int, set[int]] = {}

    def apply(self, event: Event) -> None:
        above = event.parent
        for block in event.blocks:
            if event.stored:
                # Below a block of the wrong hash every hash is wrong.
                found = above is None or self._right.get(above, False)
                right = self._right.setdefault(block, found)
                if right:
                    self._holders.setdefault(block, set()).add(event.replica)
                else:
                    self.refused += 1
            else:
                self._right.pop(block, None)
                self._holders.pop(block, None)
            above = block

    def clear(self, replica: int) -> None:
        pass

    def scores(self, request: Sequence[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        for position, block in enumerate(request, 1):
            if not self._holders.get(block):
                break
            found.update(dict.fromkeys(self._holders[block], position))
        return found


def _leading(request: Sequence[int], held: Container[int]) -> int:
    count = 0
    while count < len(request) and request[count] in held:
        count += 1
    return count
