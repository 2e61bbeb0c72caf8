"""Keys for tests, and what a state of the core says, page by page."""

from __future__ import annotations

from typing import NamedTuple

from penelope.policy import Config, Key, NodeId, Residency, State
from penelope.policy.keys import UNIT_BYTES, pack
from tests.property.naive import Space, Units, Where


class PageView(NamedTuple):
    kv: bool
    locks: int
    refiller: int | None


def key_of(units: Units, width: int = UNIT_BYTES) -> Key:
    """A key whose units are `width` bytes wide."""
    if width == UNIT_BYTES:
        return pack(units)
    return Key(b"".join(unit.to_bytes(width, "big") for unit in units))


def units_of(config: Config, key: Key) -> Units:
    width = config.unit_bytes
    order = "little" if width == UNIT_BYTES else "big"
    return tuple(
        int.from_bytes(key[at : at + width], order)  # type: ignore[arg-type]
        for at in range(0, len(key), width)
    )


def path_of(state: State, node: NodeId) -> Where:
    """A node's namespace, and all the tokens from the root to its end."""
    found = state.nodes[node]
    return (found.namespace.adapter, found.namespace.salt), units_of(state.config, found.key)[
        : found.end
    ]


def pages_of(state: State) -> dict[Where, PageView]:
    """Every page in the tree.  Fails if two nodes claim the same one."""
    size = state.config.page_size
    pages: dict[Where, PageView] = {}
    for node_id, node in state.nodes.items():
        if node.is_root:
            continue
        assert node.start % size == 0, f"{node} starts off the page grid"
        assert node.end % size == 0, f"{node} ends off the page grid"
        space, path = path_of(state, node_id)
        view = PageView(node.residency is not Residency.HOLE, node.locks, node.filler)
        for end in range(node.start + size, node.end + 1, size):
            assert (space, path[:end]) not in pages, f"two nodes hold {path[:end]} of {space}"
            pages[space, path[:end]] = view
    return pages


def ends_of(state: State) -> set[Where]:
    """Where nodes end."""
    return {path_of(state, n.id) for n in state.nodes.values() if not n.is_root}


def victims_of(state: State) -> list[Where]:
    """The histories that may lose KV, least recently used first."""
    return [path_of(state, node) for _, node in state.victims.in_order()]


def waiting_of(state: State) -> list[tuple[int, Space, Units]]:
    """The queue: tickets, and what of each prompt is in the tree."""
    queue: list[tuple[int, Space, Units]] = []
    for ticket in state.waiting.order:
        place = state.waiting.places[ticket]
        space, path = (None, ()) if place.node is None else path_of(state, place.node)
        queue.append((ticket, space or (None, None), path[: place.end]))
    return queue


def retired_of(state: State) -> set[Where]:
    """The histories that will not come back."""
    return {path_of(state, node.id) for node in state.nodes.values() if node.retired}
