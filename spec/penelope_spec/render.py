"""A small world as one line that a person can draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from penelope_spec.logic import CELL, RECEIPT, Element, Finite, Sort

_HELD: Final = {
    (False, False): "hole",
    (True, False): "KV",
    (False, True): "host KV",
    (True, True): "KV in both tiers",
}
"""By whether the device and the host have the node's KV."""
_RECEIPTS: Final = (
    ("covers", "locked by"),
    ("lease", "end of"),
    ("filler", "refilled by"),
    ("carries", "moved by"),
)


def render(
    finite: Finite,
    values: Mapping[str, Element],
    sorts: Mapping[str, Sort],
    views: Sequence[str],
) -> str:
    """For example `n = 1; before: 0 root > 1 KV locked by r0 > (2 hole, 3 host KV)`."""
    named = ", ".join(f"{name} = {_element(sorts[name], value)}" for name, value in values.items())
    order = [
        f"c{short} < c{long}"
        for short, long in _sorted(finite.facts["", "prefix"])
        if short != long
    ]
    parts = [named, *(f"{view}: {_forest(finite, view)}" for view in views)]
    if order:
        parts.append(f"pages: {', '.join(order)}")
    return "; ".join(part for part in parts if part)


def _element(sort: Sort, value: Element) -> str:
    return {RECEIPT: f"r{value}", CELL: f"c{value}"}.get(sort, str(value))


def _forest(finite: Finite, view: str) -> str:
    """Each node below the deepest of its ancestors; a broken order is still printed."""
    above = finite.facts[view, "above"]
    nodes = _sorted(
        {n for (n,) in finite.facts[view, "tree"]} | {n for pair in above for n in pair}
    )
    depth = {n: sum((a, n) in above and a != n for a in nodes) for n in nodes}
    children: dict[Element, list[Element]] = {n: [] for n in (*nodes, None)}
    for n in nodes:
        higher = [a for a in nodes if (a, n) in above and a != n and depth[a] < depth[n]]
        children[max(higher, key=lambda a: depth[a], default=None)].append(n)

    def text(n: Element) -> str:
        below = [text(m) for m in children[n]]
        rest = f" > {below[0]}" if len(below) == 1 else f" > ({', '.join(below)})" if below else ""
        return f"{_node(finite, view, n)}{rest}"

    return ", ".join(text(n) for n in children[None]) or "nothing"


def _node(finite: Finite, view: str, n: Element) -> str:
    facts = finite.facts
    kind = _HELD[(n,) in facts[view, "device"], (n,) in facts[view, "host"]]
    if (n,) in facts[view, "root"]:
        kind = "root" if kind == "hole" else f"root with {kind}"
    if (n,) not in facts[view, "tree"]:
        kind = f"not in the tree, {kind}"
    words = [f"{n} {kind}"]
    cells = _sorted(c for m, c in facts[view, "owns"] if m == n)
    if cells:
        words.append(f"[{' '.join(f'c{c}' for c in cells)}]")
    for relation, verb in _RECEIPTS:
        receipts = _sorted(r for r, m in facts[view, relation] if m == n)
        if receipts:
            words.append(f"{verb} {' '.join(f'r{r}' for r in receipts)}")
    twins = _sorted(m for k, m in facts[view, "twin"] if k == n and m != n)
    if twins:
        words.append(f"stamped like {' '.join(map(str, twins))}")
    return " ".join(words)


def _sorted(elements: Iterable[Element]) -> list[Element]:
    return sorted(elements)
