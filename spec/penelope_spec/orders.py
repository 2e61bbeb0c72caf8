"""The theorems about the order by expected cost: numbers only, whatever the trees."""

from __future__ import annotations

from penelope_spec.arithmetic import Arithmetic
from penelope_spec.logic import Element
from penelope_spec.smt import every, integer, real

REALS = "all reals"


def orders() -> list[Arithmetic]:
    """`waits` and `idle` are weights, `dear` and `cheap` classes of cost."""
    tau, age, older, place, later = (real(n) for n in ("tau", "age", "older", "place", "later"))
    idle, waits, first = (real(name) for name in ("idle", "waits", "first"))
    cheap, dear = (real(name) for name in ("cheap", "dear"))
    ages = {"tau is positive": tau > 0, "no use is in the future": age >= 0}

    def weight(of: Element, at: Element) -> Element:
        return of * (at + tau) * (at + tau) == tau

    def queued(of: Element, at: Element) -> Element:
        return 2 * tau * (at + 1) * of == 2 * (at + 1) + tau

    cost, half, quotient, floor = (integer(n) for n in ("cost", "half", "quotient", "floor"))
    return [
        Arithmetic(
            "an idle history never weighs more than one used just now",
            "order-followed",
            REALS,
            {**ages, "its weight is tau / (age + tau)**2": weight(idle, age)},
            idle * tau <= 1,
            every(age > 0, tau > 1),
        ),
        Arithmetic(
            "the older of two idle histories weighs no more",
            "order-followed",
            REALS,
            {
                **ages,
                "the other is older": older >= age,
                "the younger's weight": weight(idle, age),
                "the older's weight": weight(first, older),
            },
            first <= idle,
            every(age > 0, older > age, tau > 1),
        ),
        Arithmetic(
            "a history that waits weighs more than one used just now",
            "order-followed",
            REALS,
            {
                "tau is positive": tau > 0,
                "places count from 0": place >= 0,
                "its weight is 1 / tau + 1 / (2 * (place + 1))": queued(waits, place),
            },
            waits * tau > 1,
            every(place > 0, tau > 1),
        ),
        Arithmetic(
            "of two that wait the one served later weighs no more",
            "order-followed",
            REALS,
            {
                "tau is positive": tau > 0,
                "places count from 0": place >= 0,
                "the other is served later": later >= place,
                "the sooner's weight": queued(waits, place),
                "the later's weight": queued(first, later),
            },
            first <= waits,
            every(place > 0, later > place, tau > 1),
        ),
        Arithmetic(
            "one that waits never scores below an idle one that costs no more",
            "order-followed",
            REALS,
            {
                "tau is positive": tau > 0,
                "an idle one weighs no more than one used just now": idle * tau <= 1,
                "one that waits weighs more": waits * tau > 1,
                "the idle one costs no more": cheap <= dear,
                "costs are positive": cheap > 0,
            },
            cheap * idle <= dear * waits,
            every(dear > cheap, idle > 0, tau > 1),
        ),
        Arithmetic(
            "a class is at most half a class below the cost",
            "order-followed",
            "all integers",
            {
                "half is a quarter of the cost at least, and half of it at most": every(
                    half > 0, 2 * half <= cost, cost < 4 * half
                ),
                "rounded down to a multiple of it": every(
                    floor == quotient * half, floor <= cost, cost < floor + half
                ),
                "two or three of them": every(quotient >= 2, quotient <= 3),
            },
            2 * cost < 3 * floor,
            every(cost > floor, half > 1),
        ),
    ]
