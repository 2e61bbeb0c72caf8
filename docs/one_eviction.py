"""Draws the worked example of `docs/architecture.md` from real states of the core.

    python docs/one_eviction.py

The page holds exactly what this prints; a test compares them.
"""

# ruff: noqa: T201

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penelope.policy import (
    Config,
    Key,
    Receipt,
    Residency,
    State,
    admit,
    checkpoint,
    empty,
    evict,
    pack,
    plan,
    refill,
    release,
)

TOOLS = [*range(8)]
HISTORIES = {
    "anna": [*TOOLS, *range(100, 124)],
    "ben": [*TOOLS, *range(200, 212)],
    "carl": [*TOOLS, *range(300, 308)],
}
WIDTH = 2
"""Characters for each unit."""
_SIGNS = {Residency.DEVICE: "=", Residency.HOST: "o", Residency.HOLE: "~"}


def main() -> None:
    for text in story():
        print(text)


def story() -> Iterator[str]:
    """The captions and pictures, one after another."""
    state = empty(Config(device_capacity=52, block_size=4))
    for units in HISTORIES.values():
        state, receipt = served(state, units)
        state = release(state, receipt).state
    yield picture("Three sessions have been served, Anna first. The device is full.", state)

    step = evict(state, 6)
    state = step.state
    caption = f"evict(6): {step.freed} units go, whole blocks, from the head of what only Anna has."
    yield picture(caption, state)

    state, ben = served(state, [*HISTORIES["ben"], 400])
    more = evict(state, 3)
    state = more.state
    yield picture(
        f"Ben's next request runs (#): he and what he shares are locked. evict(3): {more.freed} "
        f"more, on from Anna's hole.",
        state,
    )

    turn = [*HISTORIES["anna"], 500, 501]
    planned = plan(state, pack(turn))
    (hole,) = planned.holes
    yield (
        f"Anna comes back with 2 units more. plan(): stock would reuse "
        f"{planned.match.device_prefix} units, Penelope {planned.match.reusable}; hole "
        f"[{hole[0]}, {hole[1]}) for a phantom request, new [{planned.new[0]}, {planned.new[1]}) "
        f"for the real one; allocate {planned.allocate}, of which {planned.evict} are to be "
        f"evicted.\n"
    )
    admitted = admit(state, planned)
    state = admitted.state
    yield picture(
        "admit(): her path is locked, the hole is being refilled (?). Carl makes way: of the "
        "histories that nobody holds, his was used least recently.",
        state,
    )

    state = refill(state, admitted.receipt, *hole).state
    state = checkpoint(state, admitted.receipt, pack(turn)).state
    for receipt in (admitted.receipt, ben):
        state = release(state, receipt).state
    yield picture("refill(), checkpoint(), release(): whole again, and used last of all.", state)


def served(state: State, units: Sequence[int]) -> tuple[State, Receipt]:
    """A request from its plan to its output; it still holds its path."""
    planned = plan(state, pack(units))
    done = admit(state, planned)
    state = done.state
    for start, end in planned.holes:
        state = refill(state, done.receipt, start, end).state
    return checkpoint(state, done.receipt, pack(units)).state, done.receipt


def picture(caption: str, state: State) -> str:
    rows = [f"{caption}", ""]
    for name, units in HISTORIES.items():
        signs = band(state, pack(units))
        rows.append(f"    {name:5}|{bars(signs)}|")
    t = state.totals
    rows.append(f"    {'':5} device {t.device} + {t.reserved} reserved, free {state.free}\n")
    return "\n".join(rows)


def bars(signs: Sequence[str]) -> str:
    """The first 8 units are shared: a bar marks where the private part begins."""
    drawn = "".join(sign * WIDTH for sign in signs)
    return drawn[: len(TOOLS) * WIDTH] + "|" + drawn[len(TOOLS) * WIDTH :]


def band(state: State, key: Key) -> list[str]:
    """A sign for each unit of the history that the tree knows."""
    found: list[str] = []
    node = state.nodes[next(iter(state.roots.values()))]
    width = state.config.unit_bytes
    while node.end * width < len(key):
        below = node.children.get(key[node.end * width : (node.end + 1) * width])
        if below is None:
            break
        node = state.nodes[below]
        sign = "#" if node.locks and node.residency is Residency.DEVICE else _SIGNS[node.residency]
        if node.filler is not None:
            sign = "?"
        found += [sign] * node.length
    return found


if __name__ == "__main__":
    main()
