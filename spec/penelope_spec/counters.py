"""Theorems about counters: changed as the core changes them, they stay equal to a recount."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penelope_spec.arithmetic import Arithmetic
from penelope_spec.logic import Element, Truth
from penelope_spec.smt import boolean, constant, every, integer, negation, some, when

ANY_TREE: Final = "all trees (the untouched nodes are one unknown sum)"


@dataclass(frozen=True, slots=True)
class Span:
    """One node as numbers, and what it contributes to the counters."""

    start: Element
    end: Element
    device: Truth
    host: Truth
    locks: Element

    def counted(self) -> dict[str, Element]:
        """By counter."""
        length, locked = self.end - self.start, self.locks > 0
        return {
            "device": when(self.device, length, 0),
            "locked": when(every(self.device, locked), length, 0),
            "host": when(self.host, length, 0),
            "locked_host": when(every(self.host, locked), length, 0),
            "hole": when(some(self.device, self.host), 0, length),
        }


_COUNTERS: Final = ("device", "locked", "host", "locked_host", "hole")


def _recounted(before: list[Span]) -> dict[str, Truth]:
    """The counters equal a recount: the nodes that a move changes, and all the rest."""
    return {
        f"the counter {name} was a recount": integer(name)
        == integer(f"other_{name}") + sum(span.counted()[name] for span in before)
        for name in _COUNTERS
    }


def _move(
    name: str,
    before: list[Span],
    after: list[Span],
    change: dict[str, Element],
    guards: dict[str, Truth],
) -> Arithmetic:
    """The counters, changed as the core changes them, equal a recount of the nodes after."""
    conclusion = every(
        *(
            integer(counter) + change.get(counter, 0)
            == integer(f"other_{counter}") + sum(span.counted()[counter] for span in after)
            for counter in _COUNTERS
        )
    )
    return Arithmetic(
        f"{name} keeps the counters a recount",
        "accounting",
        ANY_TREE,
        {**_recounted(before), **guards},
        conclusion,
        every(
            *(every(span.start >= 0, span.start < span.end) for span in (*before, *after)),
            *(integer(f"other_{counter}") > 0 for counter in _COUNTERS),
        ),
    )


def accounting() -> list[Arithmetic]:
    start, at, end, locks = (integer(name) for name in ("start", "at", "end", "locks"))
    device, host = boolean("is_device"), boolean("is_host")
    node = Span(start, end, device, host, locks)
    upper, lower = Span(start, at, device, host, locks), Span(at, end, device, host, locks)
    yes, no = constant(True), constant(False)
    length = end - start
    held = when(locks > 0, length, 0)
    other = Span(at, end, boolean("is_device_too"), boolean("is_host_too"), integer("locks_too"))
    hole = {"it is a hole": negation(some(device, host))}
    idle = {"it is not locked": locks == 0}
    on_device = {"its KV is on the device": every(device, negation(host))}
    on_host = {"its KV is on the host": every(host, negation(device))}
    was_free = every(device, locks == 0), every(host, locks == 0)
    was_last = every(device, locks == 1), every(host, locks == 1)
    return [
        _move("split", [node], [upper, lower], {}, {}),
        _move(
            "drop",
            [node],
            [Span(start, end, no, no, locks)],
            {
                "device": when(device, -length, 0),
                "host": when(host, -length, 0),
                "hole": length,
            },
            {"it has KV": some(device, host), **idle},
        ),
        _move("remove", [node], [], {"hole": -length}, hole),
        _move(
            "merge",
            [Span(start, at, device, host, locks), other],
            [Span(start, end, other.device, other.host, other.locks)],
            {},
            {
                "both are in the same tier": every(device == other.device, host == other.host),
                "both have the same locks": locks == other.locks,
            },
        ),
        _move(
            "fill",
            [node],
            [Span(start, end, yes, no, locks)],
            {
                "device": length,
                "locked": held,
                "host": when(host, -length, 0),
                "locked_host": when(host, -held, 0),
                "hole": when(host, 0, -length),
            },
            {"it has no KV on the device": negation(device)},
        ),
        _move("grow", [], [Span(start, end, yes, no, 0)], {"device": length}, {}),
        _move(
            "arrival on the host",
            [node],
            [Span(start, end, no, yes, locks)],
            {"device": -length, "locked": -held, "host": length, "locked_host": held},
            on_device,
        ),
        _move(
            "arrival on the device",
            [node],
            [Span(start, end, yes, no, locks)],
            {"device": length, "locked": held, "host": -length, "locked_host": -held},
            on_host,
        ),
        _move(
            "one lock more",
            [node],
            [Span(start, end, device, host, locks + 1)],
            {
                "locked": when(was_free[0], length, 0),
                "locked_host": when(was_free[1], length, 0),
            },
            {},
        ),
        _move(
            "one lock less",
            [node],
            [Span(start, end, device, host, locks - 1)],
            {
                "locked": when(was_last[0], -length, 0),
                "locked_host": when(was_last[1], -length, 0),
            },
            {},
        ),
    ]
