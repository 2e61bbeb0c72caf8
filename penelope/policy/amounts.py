"""Numbers at the boundary: whole, or refused by name."""

from __future__ import annotations

from operator import index

from penelope.policy.errors import InvalidAmount


def whole_number(given: object) -> int | None:
    """An integer of any integer type as an `int`; None for anything else.

    A truth value is no number, and neither is a float that happens to be whole: both are slips.
    """
    if isinstance(given, bool):
        return None
    try:
        return index(given)  # type: ignore[arg-type]  # that it may be none is the question
    except TypeError:
        return None


def amount(given: object, cannot: str) -> int:
    """A number of units, 0 or more.

    Raises `InvalidAmount`, which says what cannot be done: "evict {} units", with the number.
    """
    units = given if type(given) is int else whole_number(given)
    if units is None:
        raise InvalidAmount(f"cannot {cannot.format(repr(given))}: give a whole number")
    if units < 0:
        raise InvalidAmount(f"cannot {cannot.format(units)}: give 0 or more")
    return units
