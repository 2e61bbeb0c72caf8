"""JSON as it is read here: a field that is given twice is an error, not the last of the two."""

from __future__ import annotations

_SHOWN = 60


class TwiceError(ValueError):
    """An object names a field twice; reading one of them would drop the other without a word."""


def each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """For `json.loads(object_pairs_hook=...)`.  Raises `TwiceError`."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise TwiceError(f"gives the field {twice[:_SHOWN]!r} twice")
    return found
