"""First-order formulas that are written once and read three ways.

A formula is a function of a `Logic` and of views on states.  Read by z3 over uninterpreted sorts
it speaks about all trees; expanded over a few elements it finds the smallest counterexample;
evaluated on numbers it says whether a real state, or a real step of the core, satisfies it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from itertools import product
from typing import Any, Final, TypeAlias

Truth: TypeAlias = Any
"""A bool, or a formula of the solver."""
Element: TypeAlias = Any
"""A concrete element, or a term of the solver."""


class Sort(Enum):
    NODE = "node"
    RECEIPT = "receipt"
    CELL = "cell"
    """One page of a history: the tokens of the page and all before it."""


NODE, RECEIPT, CELL = Sort.NODE, Sort.RECEIPT, Sort.CELL

RELATIONS: Final[dict[str, tuple[Sort, ...]]] = {
    "tree": (NODE,),
    "above": (NODE, NODE),
    "root": (NODE,),
    "device": (NODE,),
    "host": (NODE,),
    "lease": (RECEIPT, NODE),
    "covers": (RECEIPT, NODE),
    "filler": (RECEIPT, NODE),
    "carries": (RECEIPT, NODE),
    "owns": (NODE, CELL),
    "twin": (NODE, NODE),
}
"""What a state is, as relations.

A move in flight is a holder of locks, and so one of the receipts here.
"""

DERIVED: Final[dict[str, tuple[Sort, ...]]] = {
    "forks": (NODE,),
    "dead": (NODE,),
    "later": (NODE, NODE),
}
"""Notions with a name of their own in some proofs, where their definition is a hypothesis."""

PREFIX: Final = "prefix"
"""The order of the cells: what histories are, whatever the cache holds of them."""


class Logic(ABC):
    """The connectives and quantifiers, and how a relation is read."""

    @abstractmethod
    def atom(self, view: str, relation: str, *terms: Element) -> Truth: ...

    @abstractmethod
    def same(self, one: Element, other: Element) -> Truth: ...

    @abstractmethod
    def forall(self, sorts: Sequence[Sort], body: Callable[..., Truth]) -> Truth: ...

    @abstractmethod
    def exists(self, sorts: Sequence[Sort], body: Callable[..., Truth]) -> Truth: ...

    @abstractmethod
    def both(self, *parts: Truth) -> Truth: ...

    @abstractmethod
    def either(self, *parts: Truth) -> Truth: ...

    @abstractmethod
    def no(self, part: Truth) -> Truth: ...

    def implies(self, condition: Truth, consequence: Truth) -> Truth:
        return self.either(self.no(condition), consequence)

    def iff(self, one: Truth, other: Truth) -> Truth:
        return self.both(self.implies(one, other), self.implies(other, one))

    def differ(self, one: Element, other: Element) -> Truth:
        return self.no(self.same(one, other))


class View:
    """One state, as relations."""

    def __init__(self, logic: Logic, name: str) -> None:
        self.logic = logic
        self.name = name

    def tree(self, node: Element) -> Truth:
        """The node is part of the state."""
        return self.logic.atom(self.name, "tree", node)

    def above(self, upper: Element, lower: Element) -> Truth:
        """`upper` is `lower` or one of its ancestors."""
        return self.logic.atom(self.name, "above", upper, lower)

    def root(self, node: Element) -> Truth:
        return self.logic.atom(self.name, "root", node)

    def device(self, node: Element) -> Truth:
        """The node's KV is on the device."""
        return self.logic.atom(self.name, "device", node)

    def host(self, node: Element) -> Truth:
        """The node's KV is on the host."""
        return self.logic.atom(self.name, "host", node)

    def kv(self, node: Element) -> Truth:
        """The node's KV is resident, in whichever tier."""
        return self.logic.either(self.device(node), self.host(node))

    def lease(self, receipt: Element, node: Element) -> Truth:
        """The receipt is live, and what it locks ends in the node."""
        return self.logic.atom(self.name, "lease", receipt, node)

    def covers(self, receipt: Element, node: Element) -> Truth:
        """The receipt is one of those that the node's lock count counts."""
        return self.logic.atom(self.name, "covers", receipt, node)

    def filler(self, receipt: Element, node: Element) -> Truth:
        return self.logic.atom(self.name, "filler", receipt, node)

    def carries(self, move: Element, node: Element) -> Truth:
        """The move is taking the node's KV to the other tier."""
        return self.logic.atom(self.name, "carries", move, node)

    def owns(self, node: Element, cell: Element) -> Truth:
        """The cell is part of the node's span."""
        return self.logic.atom(self.name, "owns", node, cell)

    def twin(self, one: Element, other: Element) -> Truth:
        """Both have a span and the same stamp."""
        return self.logic.atom(self.name, "twin", one, other)

    def forks(self, node: Element) -> Truth:
        """The node has more than one child."""
        return self.logic.atom(self.name, "forks", node)

    def later(self, one: Element, other: Element) -> Truth:
        """The first has a later stamp than the second."""
        return self.logic.atom(self.name, "later", one, other)

    def dead(self, node: Element) -> Truth:
        """Pruning will remove the node."""
        return self.logic.atom(self.name, "dead", node)

    def prefix(self, short: Element, long: Element) -> Truth:
        """`short` is `long` or a page before it on the same history."""
        return self.logic.atom("", PREFIX, short, long)


Formula: TypeAlias = Callable[[Logic, View], Truth]
"""About one state."""


class Finite(Logic):
    """Concrete relations over concrete elements: formulas are booleans."""

    def __init__(
        self,
        universe: Mapping[Sort, Sequence[Hashable]],
        facts: Mapping[tuple[str, str], frozenset[tuple[Hashable, ...]]],
    ) -> None:
        self.universe = universe
        self.facts = facts
        """The true tuples, by view and relation."""

    def atom(self, view: str, relation: str, *terms: Element) -> Truth:
        return terms in self.facts[view, relation]

    def same(self, one: Element, other: Element) -> Truth:
        return one == other

    def forall(self, sorts: Sequence[Sort], body: Callable[..., Truth]) -> Truth:
        return all(body(*values) for values in product(*(self.universe[s] for s in sorts)))

    def exists(self, sorts: Sequence[Sort], body: Callable[..., Truth]) -> Truth:
        return any(body(*values) for values in product(*(self.universe[s] for s in sorts)))

    def both(self, *parts: Truth) -> Truth:
        return all(parts)

    def either(self, *parts: Truth) -> Truth:
        return any(parts)

    def no(self, part: Truth) -> Truth:
        return not part
