"""The state invariants, and the notions that they are made of, as formulas."""

from __future__ import annotations

from collections.abc import Callable

from penelope_spec.logic import CELL, NODE, RECEIPT, Element, Logic, Truth, View

# Notions


def hole(logic: Logic, s: View, n: Element) -> Truth:
    """Part of the tree, with a span, without KV."""
    return logic.both(s.tree(n), logic.no(s.root(n)), logic.no(s.kv(n)))


def locked(logic: Logic, s: View, n: Element) -> Truth:
    return logic.exists((RECEIPT,), lambda r: s.covers(r, n))


def leaf(logic: Logic, s: View, n: Element) -> Truth:
    return logic.both(
        s.tree(n), logic.forall((NODE,), lambda m: logic.implies(s.above(n, m), logic.same(n, m)))
    )


def victim(logic: Logic, s: View, n: Element) -> Truth:
    """An unlocked leaf: a history that eviction may begin with."""
    return logic.both(leaf(logic, s, n), logic.no(s.root(n)), logic.no(locked(logic, s, n)))


def child(logic: Logic, s: View, n: Element, c: Element) -> Truth:
    """Nothing is between the two."""
    return logic.both(
        s.above(n, c),
        logic.differ(n, c),
        logic.forall(
            (NODE,),
            lambda m: logic.implies(logic.both(s.above(m, c), logic.differ(m, c)), s.above(m, n)),
        ),
    )


def forking(logic: Logic, s: View) -> Truth:
    """The definition of `forks`: more than one child."""
    return logic.forall(
        (NODE,),
        lambda n: logic.iff(
            s.forks(n),
            logic.exists(
                (NODE, NODE),
                lambda c, d: logic.both(
                    child(logic, s, n, c), child(logic, s, n, d), logic.differ(c, d)
                ),
            ),
        ),
    )


def chain_below(logic: Logic, s: View, n: Element) -> Truth:
    """Neither the node nor anything below it has more than one child: it is not shared."""
    return logic.forall(
        (NODE, NODE),
        lambda a, b: logic.implies(
            logic.both(s.above(n, a), s.above(n, b)), logic.either(s.above(a, b), s.above(b, a))
        ),
    )


def leads_to_kv(logic: Logic, s: View, n: Element) -> Truth:
    return logic.exists((NODE,), lambda m: logic.both(s.above(n, m), s.kv(m)))


def dangles(logic: Logic, s: View, n: Element) -> Truth:
    """An unlocked hole without KV below it."""
    return logic.both(
        hole(logic, s, n), logic.no(locked(logic, s, n)), logic.no(leads_to_kv(logic, s, n))
    )


def has_kv(logic: Logic, s: View, c: Element) -> Truth:
    """The KV of the cell exists."""
    return logic.exists((NODE,), lambda n: logic.both(s.owns(n, c), s.kv(n)))


def in_tier(logic: Logic, tier: Callable[[Element], Truth], s: View, c: Element) -> Truth:
    """The KV of the cell is in that tier."""
    return logic.exists((NODE,), lambda n: logic.both(s.owns(n, c), tier(n)))


def in_use(logic: Logic, s: View, c: Element) -> Truth:
    """A receipt covers the cell."""
    return logic.exists((NODE, RECEIPT), lambda n, r: logic.both(s.owns(n, c), s.covers(r, n)))


def in_tree(logic: Logic, s: View, c: Element) -> Truth:
    """The cell's tokens are kept."""
    return logic.exists((NODE,), lambda n: s.owns(n, c))


# Invariants


def order(logic: Logic, s: View) -> Truth:
    """`above` is the order of a forest; KV is in nodes with a span."""
    both, implies, forall = logic.both, logic.implies, logic.forall
    return both(
        forall((NODE,), lambda n: logic.iff(s.above(n, n), s.tree(n))),
        forall(
            (NODE, NODE),
            lambda a, n: implies(
                s.above(a, n),
                both(s.tree(a), s.tree(n), implies(s.above(n, a), logic.same(a, n))),
            ),
        ),
        forall(
            (NODE, NODE, NODE),
            lambda a, b, n: both(
                implies(both(s.above(a, b), s.above(b, n)), s.above(a, n)),
                implies(
                    both(s.above(a, n), s.above(b, n)), logic.either(s.above(a, b), s.above(b, a))
                ),
            ),
        ),
        forall((NODE,), lambda n: implies(s.kv(n), both(s.tree(n), logic.no(s.root(n))))),
    )


def rooted(logic: Logic, s: View) -> Truth:
    """Every path begins at a root."""
    both, implies, forall = logic.both, logic.implies, logic.forall
    return both(
        forall(
            (NODE, NODE), lambda a, r: implies(both(s.root(r), s.above(a, r)), logic.same(a, r))
        ),
        forall((NODE,), lambda n: implies(s.root(n), s.tree(n))),
        forall(
            (NODE,),
            lambda n: implies(
                s.tree(n), logic.exists((NODE,), lambda r: both(s.root(r), s.above(r, n)))
            ),
        ),
    )


def ancestry(logic: Logic, s: View) -> Truth:
    """The nodes are a forest with one root on every path."""
    return logic.both(order(logic, s), rooted(logic, s))


def labels(logic: Logic, s: View) -> Truth:
    """Every path spells one history, whole from its beginning."""
    both, implies = logic.both, logic.implies
    return both(
        logic.forall(
            (NODE, CELL),
            lambda n, c: implies(s.owns(n, c), both(s.tree(n), logic.no(s.root(n)))),
        ),
        logic.forall(
            (NODE, NODE, CELL, CELL),
            lambda n, m, c, d: implies(
                both(s.owns(n, c), s.owns(m, d)),
                both(
                    implies(s.prefix(c, d), s.above(n, m)),
                    implies(s.above(n, m), logic.either(s.prefix(c, d), s.prefix(d, c))),
                ),
            ),
        ),
        logic.forall(
            (CELL, CELL),
            lambda c, d: implies(both(s.prefix(c, d), in_tree(logic, s, d)), in_tree(logic, s, c)),
        ),
    )


def well_formed(logic: Logic, s: View) -> Truth:
    return logic.both(ancestry(logic, s), labels(logic, s))


def one_copy(logic: Logic, s: View) -> Truth:
    """A cell is part of one node at most, and a node is in one tier."""
    return logic.both(
        logic.forall(
            (NODE, NODE, CELL),
            lambda n, m, c: logic.implies(logic.both(s.owns(n, c), s.owns(m, c)), logic.same(n, m)),
        ),
        exclusive(logic, s),
    )


def exclusive(logic: Logic, s: View) -> Truth:
    """No KV is in both tiers."""
    return logic.forall((NODE,), lambda n: logic.no(logic.both(s.device(n), s.host(n))))


def lock_balance(logic: Logic, s: View) -> Truth:
    """A node counts exactly the receipts that end in it or below it, one node a receipt."""
    return logic.both(
        logic.forall((RECEIPT, NODE), lambda r, n: logic.implies(s.lease(r, n), s.tree(n))),
        logic.forall(
            (RECEIPT, NODE, NODE),
            lambda r, n, m: logic.implies(
                logic.both(s.lease(r, n), s.lease(r, m)), logic.same(n, m)
            ),
        ),
        logic.forall(
            (RECEIPT, NODE),
            lambda r, n: logic.iff(
                s.covers(r, n),
                logic.exists((NODE,), lambda m: logic.both(s.lease(r, m), s.above(n, m))),
            ),
        ),
    )


def in_flight(logic: Logic, s: View) -> Truth:
    """Only holes are refilled, for one receipt each, which covers them; and `moves`."""
    return logic.both(
        moves(logic, s),
        logic.forall(
            (RECEIPT, NODE),
            lambda r, n: logic.implies(
                s.filler(r, n), logic.both(hole(logic, s, n), s.covers(r, n))
            ),
        ),
        logic.forall(
            (RECEIPT, RECEIPT, NODE),
            lambda r, q, n: logic.implies(
                logic.both(s.filler(r, n), s.filler(q, n)), logic.same(r, q)
            ),
        ),
    )


def is_move(logic: Logic, s: View, r: Element) -> Truth:
    return logic.exists((NODE,), lambda n: s.carries(r, n))


def moved(logic: Logic, s: View, n: Element) -> Truth:
    """A move is taking the node's KV to the other tier."""
    return logic.exists((RECEIPT,), lambda r: s.carries(r, n))


def leaving(logic: Logic, s: View, n: Element) -> Truth:
    return logic.both(s.device(n), moved(logic, s, n))


def none_leaving_above(logic: Logic, s: View, n: Element) -> Truth:
    """Nothing on the path to n is leaving the device."""
    return logic.forall(
        (NODE,), lambda m: logic.implies(s.above(m, n), logic.no(leaving(logic, s, m)))
    )


def moves(logic: Logic, s: View) -> Truth:
    """A move takes one span, from one tier, and what it takes off the device nobody reads."""
    both, implies, forall = logic.both, logic.implies, logic.forall
    return both(
        forall(
            (RECEIPT, NODE), lambda r, n: implies(s.carries(r, n), both(s.kv(n), s.covers(r, n)))
        ),
        forall(
            (RECEIPT, RECEIPT, NODE),
            lambda r, q, n: implies(both(s.carries(r, n), s.carries(q, n)), logic.same(r, q)),
        ),
        forall(
            (RECEIPT, NODE, NODE),
            lambda r, n, m: both(
                implies(s.carries(r, n), logic.no(s.filler(r, m))),
                implies(both(s.carries(r, n), s.carries(r, m)), logic.iff(s.host(n), s.host(m))),
            ),
        ),
        forall(
            (RECEIPT, NODE, NODE, NODE),
            lambda r, n, m, e: implies(
                both(s.lease(r, e), s.carries(r, n), s.above(n, m), s.above(m, e)),
                s.carries(r, m),
            ),
        ),
        forall(
            (RECEIPT, NODE),
            lambda q, n: implies(both(leaving(logic, s, n), s.covers(q, n)), is_move(logic, s, q)),
        ),
    )


def demotable(logic: Logic, s: View, n: Element) -> Truth:
    """A victim, if histories that are wholly on the host were gone."""
    return logic.both(
        s.device(n),
        logic.no(locked(logic, s, n)),
        logic.forall(
            (NODE,),
            lambda m: logic.implies(logic.both(s.above(n, m), s.device(m)), logic.same(n, m)),
        ),
    )


def stamps(logic: Logic, s: View) -> Truth:
    """Nodes with the same stamp are on one path: no two victims, being leaves, can share one."""
    return logic.forall(
        (NODE, NODE),
        lambda n, m: logic.implies(s.twin(n, m), logic.either(s.above(n, m), s.above(m, n))),
    )


def no_dangling_hole(logic: Logic, s: View) -> Truth:
    return logic.forall((NODE,), lambda n: logic.no(dangles(logic, s, n)))


def cell_order(logic: Logic, s: View) -> Truth:
    """What histories are: pages in a row, each with one past.  Not a matter of the cache."""
    both, implies, forall = logic.both, logic.implies, logic.forall
    return both(
        forall((CELL,), lambda c: s.prefix(c, c)),
        forall(
            (CELL, CELL),
            lambda c, d: implies(both(s.prefix(c, d), s.prefix(d, c)), logic.same(c, d)),
        ),
        forall(
            (CELL, CELL, CELL),
            lambda c, d, e: both(
                implies(both(s.prefix(c, d), s.prefix(d, e)), s.prefix(c, e)),
                implies(
                    both(s.prefix(c, e), s.prefix(d, e)),
                    logic.either(s.prefix(c, d), s.prefix(d, c)),
                ),
            ),
        ),
    )


# What is true of finite trees, and is no first-order consequence of the order alone


def parting(logic: Logic, s: View) -> Truth:
    """Two nodes below a third are on one path, or the paths to them part at a node that forks."""
    return logic.forall(
        (NODE, NODE, NODE),
        lambda n, a, b: logic.implies(
            logic.both(
                s.above(n, a), s.above(n, b), logic.no(s.above(a, b)), logic.no(s.above(b, a))
            ),
            logic.exists(
                (NODE,),
                lambda m: logic.both(s.above(n, m), s.above(m, a), s.above(m, b), s.forks(m)),
            ),
        ),
    )


def locks_cover(logic: Logic, s: View) -> Truth:
    """A node's locks cover its descendants': a consequence of `lock-balance`."""
    return logic.forall(
        (NODE, NODE, RECEIPT),
        lambda a, n, r: logic.implies(logic.both(s.above(a, n), s.covers(r, n)), s.covers(r, a)),
    )


def leaves_exist(logic: Logic, s: View) -> Truth:
    """At or below every node there is a leaf."""
    return logic.forall(
        (NODE,),
        lambda n: logic.implies(
            s.tree(n),
            logic.exists((NODE,), lambda m: logic.both(s.above(n, m), leaf(logic, s, m))),
        ),
    )
