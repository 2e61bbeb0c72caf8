"""The theorems about numbers, stated in terms of what the core computes."""

from __future__ import annotations

from typing import Final

from penelope_spec.arithmetic import Arithmetic
from penelope_spec.counters import ANY_TREE, accounting
from penelope_spec.logic import Element
from penelope_spec.orders import orders
from penelope_spec.smt import every, integer, real, some, when
from penelope_spec.swap import admission, exchange

INTEGERS: Final = "all integers"


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
    return [
        *cost(),
        *minimal(),
        *progress(),
        *accounting(),
        *locks(),
        *admission(),
        *exchange(),
        *orders(),
    ]
