"""The theorems about numbers, stated in terms of what the core computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penelope_spec.arithmetic import Arithmetic
from penelope_spec.logic import Element, Truth
from penelope_spec.smt import boolean, constant, every, integer, negation, real, some, when

INTEGERS: Final = "all integers"
ANY_TREE: Final = "all trees (the untouched nodes are one unknown sum)"


def span_cost(c: Element, start: Element, end: Element) -> Element:
    """Cost units of computing [start, end): (end - start) * (c + (start + end - 1) / 2)."""
    return (end - start) * (c + (start + end - 1) / 2)


def cost() -> list[Arithmetic]:
    c, a, b, n, m = (real(name) for name in ("c", "a", "b", "n", "m"))
    earlier = {"the first starts no later": a <= b, "equal length n >= 0": n >= 0}
    return [
        Arithmetic(
            "of two spans of equal length the earlier never costs more",
            "cost",
            "all reals",
            earlier,
            span_cost(c, a, a + n) <= span_cost(c, b, b + n),
            every(a < b, n > 0, c > 0),
        ),
        Arithmetic(
            "of two spans of equal positive length the strictly earlier costs strictly less",
            "cost",
            "all reals",
            {"the first starts earlier": a < b, "equal length n > 0": n > 0},
            span_cost(c, a, a + n) < span_cost(c, b, b + n),
            every(a > 0, c > 0),
        ),
        Arithmetic(
            "no span costs less than nothing",
            "cost",
            "all reals",
            {
                "c >= 0": c >= 0,
                "positions start at 0": a >= 0,
                "its length is 0, or at least one token": some(n == 0, n >= 1),
            },
            span_cost(c, a, a + n) >= 0,
            every(a > 0, n > 1, c > 0),
        ),
        Arithmetic(
            "the cost of a span is that of its two parts",
            "cost",
            "all reals",
            {"the second part starts where the first ends": n == m},
            span_cost(c, a, n) + span_cost(c, m, b) == span_cost(c, a, b),
        ),
    ]


# Block cuts


def minimal() -> list[Arithmetic]:
    """`floor` is (x // block) * block: at most x, and more than x - block."""
    block, need, start, end = (integer(name) for name in ("block", "need", "start", "end"))
    floor, cut, freed, last = (integer(name) for name in ("floor", "cut", "freed", "last"))
    head = {
        "the boundary is -(-(start + need) // block) * block": every(
            floor <= -(start + need), -(start + need) < floor + block
        ),
        "the head goes up to it, or to the end": cut == when(-floor < end, -floor, end),
        "freed is what was cut": freed == cut - start,
    }
    tail = {
        "the boundary is (end - need) // block * block": every(
            floor <= end - need, end - need < floor + block
        ),
        "the tail goes down to it, or less far": cut >= floor,
        "freed is what was cut": freed == end - cut,
    }
    return [
        Arithmetic(
            "the head cut frees something: the need, or all of the span",
            "progress",
            INTEGERS,
            {**head, "something is needed": need > 0, "the span is not empty": start < end},
            every(freed > 0, some(freed >= need, cut == end)),
            every(start > 0, block > need, need > 1),
        ),
        Arithmetic(
            "the head cut frees less than one block more than the need",
            "minimal-eviction",
            INTEGERS,
            head,
            freed < need + block,
            every(start > 0, end > start, need > 1, block > need),
        ),
        Arithmetic(
            "the tail cut frees less than one block more than the need",
            "minimal-eviction",
            INTEGERS,
            tail,
            freed < need + block,
            every(start > 0, end > start, need > 1, block > need),
        ),
        Arithmetic(
            "the tail cut at its boundary frees the need",
            "minimal-eviction",
            INTEGERS,
            {
                **{name: claim for name, claim in tail.items() if "less far" not in name},
                "the tail goes down to it": cut == floor,
            },
            freed >= need,
            every(floor > 0, need > 1, block > need),
        ),
        Arithmetic(
            "the drains of one eviction together free the need and less than one block more",
            "minimal-eviction",
            INTEGERS,
            {
                "the last frees what was still needed": last >= need - freed,
                "and less than one block more": last < need - freed + block,
            },
            every(freed + last >= need, freed + last < need + block),
            every(freed > 0, last > 0, need > freed),
        ),
        Arithmetic(
            "whole nodes together free less than the last node more than the need",
            "minimal-eviction",
            INTEGERS,
            {"without the last node it did not suffice": freed < need},
            freed + last < need + last,
        ),
    ]


def progress() -> list[Arithmetic]:
    need, evictable, freed, free, capacity, used, units = (
        integer(name)
        for name in ("need", "evictable", "freed", "free", "capacity", "used", "units")
    )
    return [
        Arithmetic(
            "after a drain what is still needed is less, and still evictable",
            "progress",
            INTEGERS,
            {
                "the need was evictable": need <= evictable,
                "a drain frees something": freed > 0,
            },
            every(need - freed <= evictable - freed, need - freed < need),
        ),
        Arithmetic(
            "evicting the shortfall makes room for the whole reservation",
            "accounting",
            INTEGERS,
            {
                "free is what is not used": free == capacity - used,
                "at least the shortfall is freed": freed >= units - free,
            },
            used - freed + units <= capacity,
        ),
    ]


# Counters


@dataclass(frozen=True, slots=True)
class Span:
    """One node as numbers, and what it contributes to the counters."""

    start: Element
    end: Element
    device: Truth
    locks: Element

    def counted(self) -> tuple[Element, Element, Element]:
        """Units on the device, of these locked, and without KV."""
        length = self.end - self.start
        return (
            when(self.device, length, 0),
            when(every(self.device, self.locks > 0), length, 0),
            when(self.device, 0, length),
        )


_COUNTERS: Final = ("device", "locked", "hole")


def _recounted(before: list[Span]) -> dict[str, Truth]:
    """The counters equal a recount: the nodes that a move changes, and all the rest."""
    return {
        f"the counter {name} was a recount": integer(name)
        == integer(f"other_{name}") + sum(span.counted()[index] for span in before)
        for index, name in enumerate(_COUNTERS)
    }


def _move(
    name: str,
    before: list[Span],
    after: list[Span],
    change: tuple[Element, Element, Element],
    guards: dict[str, Truth],
) -> Arithmetic:
    """The counters, changed as the core changes them, equal a recount of the nodes after."""
    conclusion = every(
        *(
            integer(counter) + change[index]
            == integer(f"other_{counter}") + sum(span.counted()[index] for span in after)
            for index, counter in enumerate(_COUNTERS)
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
    device = boolean("is_device")
    node = Span(start, end, device, locks)
    upper, lower = Span(start, at, device, locks), Span(at, end, device, locks)
    has_kv, hole, idle = (
        {"it has KV": device},
        {"it is a hole": negation(device)},
        {"it is not locked": locks == 0},
    )
    length = end - start
    held = when(locks > 0, length, 0)
    kept = (0, 0, 0)
    yes, no = constant(True), constant(False)
    other = Span(at, end, boolean("is_device_too"), integer("locks_too"))
    return [
        _move("split", [node], [upper, lower], kept, {}),
        _move(
            "drop",
            [node],
            [Span(start, end, no, locks)],
            (-length, 0, length),
            {**has_kv, **idle},
        ),
        _move("remove", [node], [], (0, 0, -length), hole),
        _move(
            "merge",
            [Span(start, at, device, locks), other],
            [Span(start, end, other.device, other.locks)],
            kept,
            {
                "both have KV or neither": device == other.device,
                "both have the same locks": locks == other.locks,
            },
        ),
        _move(
            "fill",
            [node],
            [Span(start, end, yes, locks)],
            (length, held, -length),
            hole,
        ),
        _move(
            "grow",
            [],
            [Span(start, end, yes, 0)],
            (length, 0, 0),
            {},
        ),
        _move(
            "one lock more",
            [node],
            [Span(start, end, device, locks + 1)],
            (0, when(every(device, locks == 0), length, 0), 0),
            {},
        ),
        _move(
            "one lock less",
            [node],
            [Span(start, end, device, locks - 1)],
            (0, when(every(device, locks == 1), -length, 0), 0),
            {},
        ),
    ]


def locks() -> list[Arithmetic]:
    upper, lower, own, others = (integer(name) for name in ("upper", "lower", "own", "others"))
    return [
        Arithmetic(
            "between a node and its only child with as many locks no receipt ends",
            "lock-balance",
            ANY_TREE,
            {
                "a node counts its own receipts and its children's": upper == own + lower + others,
                "it has no other child": others == 0,
                "both count the same": upper == lower,
            },
            own == 0,
        )
    ]


def numbers() -> list[Arithmetic]:
    """All theorems about numbers, in the order of the prose."""
    return [*cost(), *minimal(), *progress(), *accounting(), *locks()]
