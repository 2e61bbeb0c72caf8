"""Which part of a request is in the cache: read-only, and through holes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from penelope.policy.amounts import amount
from penelope.policy.config import Config
from penelope.policy.errors import InFlight, InvalidKey, StalePlan
from penelope.policy.keys import Key, common_prefix
from penelope.policy.state import DEFAULT_NAMESPACE, Namespace, Node, NodeId, Residency, State


class Span(NamedTuple):
    """A matched part [start, end) of one node."""

    node: NodeId
    start: int
    end: int
    residency: Residency
    arriving: bool
    """On its way to the device: a hole being refilled, or host KV being promoted."""
    leaving: bool = False
    """Device KV being demoted."""

    @property
    def length(self) -> int:
        return self.end - self.start


class Match(NamedTuple):
    """What the cache holds of a key, as numbers that must never be mixed up.

        |<- device_prefix ->|<-- hole -->|<-- device -->|<------ new ------>|
        0                                              end              length

    The match ends where the last KV does: a hole at the end of the path is worth nothing.
    All numbers are units.  `device + host + hole + arriving + leaving == end`.
    """

    made_on: State
    namespace: Namespace
    key: Key
    length: int
    end: int
    spans: tuple[Span, ...]
    """The matched path in position order, one span a node."""
    device_prefix: int
    """Resident on the device without a gap from the beginning: what a stock engine would reuse."""
    device: int
    host: int
    hole: int
    """Matched, without KV, and nobody is refilling it yet."""
    arriving: int
    """Matched, and on its way to the device for another running request."""
    leaving: int
    """Matched, and on its way to the host: neither a hit nor free until the move ends."""

    @property
    def reusable(self) -> int:
        """Units whose KV exists, in any tier."""
        return self.device + self.host

    @property
    def compute(self) -> int:
        """Units to compute for this request: holes that nobody refills yet, and what is new."""
        return self.length - self.end + self.hole

    @property
    def node(self) -> NodeId | None:
        """The node in which the match ends; None when nothing matched."""
        return self.spans[-1].node if self.spans else None

    @property
    def holes(self) -> tuple[tuple[int, int], ...]:
        """Matched spans [start, end) that somebody must recompute, in position order."""
        return _joined(s for s in self.spans if s.residency is Residency.HOLE and not s.arriving)

    @property
    def awaits(self) -> tuple[tuple[int, int], ...]:
        """Matched spans that are on their way to the device for another request."""
        return _joined(s for s in self.spans if s.arriving)

    def require_settled(self) -> None:
        """Raises `InFlight` if a matched span is leaving the device."""
        if self.leaving:
            raise InFlight(
                f"{self.leaving} matched units are leaving the device: wait for the move or fail "
                f"it, and match again"
            )

    def require(self, state: State) -> None:
        """Raises `StalePlan` unless the match was made on this very state."""
        if self.made_on is not state:
            raise StalePlan(
                f"matched at tick {self.made_on.tick} on another state than this one "
                f"(tick {state.tick}): match again"
            )


def require_match(matched: Match, state: State) -> None:
    """Raises `StalePlan` unless this is a match that was made on this very state."""
    if not isinstance(matched, Match):
        raise StalePlan(f"this is {type(matched).__name__} and no match: match the key")
    matched.require(state)


def _joined(spans: Iterable[Span]) -> tuple[tuple[int, int], ...]:
    """Where the spans are, neighbours joined."""
    ranges: list[tuple[int, int]] = []
    for span in spans:
        start = ranges.pop()[0] if ranges and ranges[-1][1] == span.start else span.start
        ranges.append((start, span.end))
    return tuple(ranges)


class Nodes(Protocol):
    """Read access to nodes: of a state or of a draft."""

    def __getitem__(self, key: NodeId, /) -> Node: ...


def match(
    state: State,
    key: Key,
    namespace: Namespace = DEFAULT_NAMESPACE,
    *,
    at_most: int | None = None,
) -> Match:
    """Match a request's tokens; changes nothing, not even recency.

    At most `at_most` units are matched, by default all but one: a request always computes at
    least one token, or it would have no output.  Cost: one step a node on the path and one
    memory comparison of the key.  Raises `InvalidKey` if the key is not whole units or the
    namespace is none, `InvalidAmount` if `at_most` is no whole number or negative.
    """
    length = length_of(state.config, key)
    limit = max(0, length - 1)
    if at_most is not None:
        limit = min(amount(at_most, "match at most {} units"), length)
    require_namespace(namespace)
    spans: list[Span] = []
    kept = 0
    root = state.roots.get(namespace)
    if root is not None:
        for node, end in walk(state.config, state.nodes, state.nodes[root], key, limit):
            moving = node.move is not None
            leaving = moving and node.residency is Residency.DEVICE
            arriving = node.filler is not None or (moving and not leaving)
            spans.append(Span(node.id, node.start, end, node.residency, arriving, leaving))
            if node.residency is not Residency.HOLE:
                kept = len(spans)
    del spans[kept:]
    device = host = hole = on_the_way = leaving_units = device_prefix = 0
    for span in spans:
        if span.arriving:
            on_the_way += span.length
        elif span.leaving:
            leaving_units += span.length
        elif span.residency is Residency.DEVICE:
            device += span.length
        elif span.residency is Residency.HOST:
            host += span.length
        else:
            hole += span.length
        if span.residency is Residency.DEVICE and span.start == device_prefix:
            device_prefix = span.end
    return Match(
        state,
        namespace,
        key,
        length,
        spans[-1].end if spans else 0,
        tuple(spans),
        device_prefix,
        device,
        host,
        hole,
        on_the_way,
        leaving_units,
    )


def length_of(config: Config, key: Key) -> int:
    """Units in a key.  Raises `InvalidKey` if it is not a whole number of them, packed."""
    if not isinstance(key, bytes):
        raise InvalidKey(f"a key is bytes, and this is {_kind(key)}: make keys with pack()")
    length, rest = divmod(len(key), config.unit_bytes)
    if rest:
        raise InvalidKey(
            f"a key of {len(key)} bytes is not whole units of {config.unit_bytes} bytes: "
            f"make keys with pack()"
        )
    return length


def require_namespace(namespace: Namespace) -> None:
    """Raises `InvalidKey` unless each part of the namespace is a text or absent.

    1, 1.0 and True are one key of a map: two adapters would share KV.
    """
    if namespace is DEFAULT_NAMESPACE:
        return
    if not isinstance(namespace, Namespace):
        raise InvalidKey(
            f"a namespace is Namespace(adapter, salt), and this is {_kind(namespace)}: make one"
        )
    for name, part in zip(namespace._fields, namespace, strict=True):
        if part is not None and not isinstance(part, str):
            raise InvalidKey(
                f"the {name} of a namespace is a text or None, and this is {_kind(part)}: name "
                f"it by a text"
            )


def _kind(given: object) -> str:
    return f"{type(given).__name__}"


def walk(
    config: Config, nodes: Nodes, node: Node, key: Key, limit: int
) -> Iterator[tuple[Node, int]]:
    """The nodes below `node` on the path of key[:limit], each with where it stops agreeing.

    The key must agree with the path to `node`.  Whole pages only.  Every node but the last agrees
    to its end.
    """
    width = config.unit_bytes
    page = config.page_size
    step = page * width
    limit -= limit % page
    at = node.end
    while at < limit:
        child = node.children.get(key[at * width : at * width + step])
        if child is None:
            return
        node = nodes[child]
        stop = min(node.end, limit)
        at = common_prefix(key, node.key, at * width, stop * width, step) // width
        yield node, at
        if at < node.end:
            return
