"""What SGLang holds as a tree node: a value that names a matched path.

A node id would go stale when the tree is split or merged between two calls; a
path is its namespace and its tokens, and is found again in one walk.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from penelope.policy import DEFAULT_NAMESPACE, UNIT_BYTES, InvalidKey, Key, Match, Namespace

Range = tuple[int, int]
_UNIT_BITS = 8 * UNIT_BYTES


class Named(Protocol):
    """What of a request says whose KV its tokens have."""

    lora_id: str | None
    extra_key: str | None
    cache_salt: str | None


@dataclass(frozen=True, slots=True)
class Path:
    """The first ``end`` tokens of a history, as matched.

    |<-- device -->|<-- hole -->|<-- device or host -->|
    0           holes[0]     holes[0]                 end
    """

    namespace: Namespace = DEFAULT_NAMESPACE
    key: Key = field(default=Key(b""), repr=False)
    end: int = 0
    holes: tuple[Range, ...] = ()
    """Missing KV that somebody must compute, in position order."""
    awaits: tuple[Range, ...] = ()
    """Missing KV that a request admitted to the same batch computes."""
    host: int = 0
    """Tokens whose KV was on the host when the path was matched."""

    @property
    def missing(self) -> int:
        """Tokens on the path without KV."""
        return sum(end - start for start, end in self.holes + self.awaits)


def path_of(matched: Match) -> Path:
    return Path(
        matched.namespace,
        Key(matched.key[: matched.end * UNIT_BYTES]),
        matched.end,
        matched.holes,
        matched.awaits,
        matched.host,
    )


def covered(ranges: Iterable[Range], end: int) -> int:
    """Positions before ``end`` that lie in any of the ranges."""
    total = reach = 0
    for start, stop in sorted(ranges):
        low, high = max(start, reach), min(stop, end)
        if low < high:
            total += high - low
            reach = high
    return total


def pack_tokens(tokens: array[int], length: int) -> Key:
    """The first ``length`` tokens as a key: vectorised, no Python loop.

    Raises `InvalidKey` for an id outside [0, 2**32): narrowed, it would name other KV.
    """
    ids = np.frombuffer(tokens, dtype=np.int64, count=length) if length else np.empty(0, np.int64)
    if int(np.bitwise_or.reduce(ids)) >> _UNIT_BITS:  # one pass, and no array for the answer
        at = int((ids >> _UNIT_BITS).nonzero()[0][0])
        raise InvalidKey(f"token {at} has the id {ids[at]}: it must be in [0, 2**32)")
    return Key(ids.astype("<u4").tobytes())


def namespace_of(req: Named, weights: int = 0) -> Namespace:
    """Adapter, salt and how often the model's weights have changed, unambiguously.

    A namespace is made from a request, and in no other way.  SGLang glues the caller's extra key
    and the LoRA id into one string, in which ('ab', 'c') and ('a', 'bc') are the same; only the
    request can tell them apart.  The id's length in front does.
    """
    adapter = req.extra_key
    if req.lora_id is not None:
        adapter = f"{len(req.lora_id)}:{adapter}"
    elif adapter is not None:
        adapter = f"0:{adapter}"
    if weights:
        adapter = f"{weights}|{adapter or ''}"
    return Namespace(adapter, req.cache_salt or None)


def weights_of(namespace: Namespace) -> int:
    """How often the weights had changed when this namespace's KV was computed."""
    return int(_parts(namespace)[1] or 0)


def extra_key_of(namespace: Namespace) -> str | None:
    """The caller's extra key and the LoRA id as SGLang has them."""
    return _parts(namespace)[2]


_ADAPTER = re.compile(r"(?:(\d+)\|)?(?:\d+:(.*))?", re.DOTALL)


def _parts(namespace: Namespace) -> re.Match[str]:
    found = _ADAPTER.fullmatch(namespace.adapter or "")
    assert found is not None, f"{namespace} was not made by namespace_of"
    return found
