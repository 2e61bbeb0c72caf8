"""Numbers as the table and the picture show them."""

from __future__ import annotations


def three_digits(value: float) -> str:
    """Three digits, or the whole part where that has more; small values to the hundredth."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def thousands(value: float) -> int:
    """How often `value` can be divided by 1000, at most 6 times, before it is below 1."""
    power = 0
    while value >= 1000 and power < 6:
        value, power = value / 1000, power + 1
    return power


def percent(ratio: float) -> str:
    """A ratio as a change in percent, with its sign; what rounds to nothing has none."""
    shown = f"{100 * (ratio - 1):+.0f}"
    return "0" if shown in {"+0", "-0"} else shown
