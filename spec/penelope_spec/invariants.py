"""The registry: every named invariant, once.

The names and sentences here and those in the tables of `spec/README.md` are the same: a test
compares them.
"""

from __future__ import annotations

from typing import Final, Unpack

from penelope.policy import Refused, State
from penelope_spec import balance, facts, flight, formulas, one_tier, ranking, steps, structure
from penelope_spec.facts import Facts, Happened, Turned
from penelope_spec.registry import Invariant, Kind, Violation

STATE: Final = (
    Invariant(
        "well-formed",
        Kind.STATE,
        "Parents and children agree, every label continues its parent's in whole pages, and "
        "every node is reached from the root of its namespace.",
        "predicate, z3",
        on_state=structure.well_formed,
        formula=formulas.well_formed,
    ),
    Invariant(
        "one-copy",
        Kind.STATE,
        "Every span is in exactly one of device, host and hole, and until a move of it ends "
        "where it came from; no page of a history belongs to two nodes, and every slot has "
        "exactly one owner.",
        "predicate, z3; slots by check_slots on a shell",
        on_state=flight.one_copy,
        formula=formulas.one_copy,
    ),
    Invariant(
        "accounting",
        Kind.STATE,
        "Incremental counters equal a recount, and what is used never exceeds the capacity of "
        "its tier.",
        "predicate, z3",
        on_state=balance.accounting,
    ),
    Invariant(
        "lock-balance",
        Kind.STATE,
        "Every node is locked exactly as often as live receipts and moves in flight end in it or "
        "below it, so that a node's locks cover its descendants'.",
        "predicate, z3",
        on_state=balance.lock_balance,
        formula=formulas.lock_balance,
    ),
    Invariant(
        "in-flight",
        Kind.STATE,
        "A span that is being refilled is a hole on the path of exactly one live receipt that "
        "has undertaken it; what is marked as moved is the span of one move; and nothing that a "
        "receipt covers is leaving the device.",
        "predicate, z3",
        on_state=flight.in_flight,
        formula=formulas.in_flight,
    ),
    Invariant(
        "no-dangling-hole",
        Kind.STATE,
        "Every hole that is not locked has a resident descendant.",
        "predicate, z3",
        on_state=balance.no_dangling_hole,
        formula=formulas.no_dangling_hole,
    ),
    Invariant(
        "victim-order",
        Kind.STATE,
        "The index of victims holds exactly the unlocked leaves, that of demotable nodes exactly "
        "the unlocked device nodes without device KV below, each under its own stamp, and no two "
        "of either under the same.",
        "predicate, z3",
        on_state=structure.victim_order,
        formula=formulas.stamps,
    ),
    Invariant(
        "queue-kept",
        Kind.STATE,
        "Tickets stand in the order in which their requests will be served, each at a place in "
        "some node of a tree, and are listed by it.",
        "predicate",
        on_state=ranking.queue_kept,
    ),
    Invariant(
        "ranking-kept",
        Kind.STATE,
        "The indexes of retired victims, and of victims by class of cost, hold exactly what a "
        "search would find, each where the search would put it.",
        "predicate",
        on_state=ranking.ranking_kept,
    ),
    Invariant(
        "merged",
        Kind.STATE,
        "Between neighbours on a single-child chain something differs that a decision can see.",
        "predicate",
        on_state=structure.merged,
    ),
    Invariant(
        "bounded-swap",
        Kind.STATE,
        "At every step of every swap plan the staged tokens fit the swap buffer.",
        "predicate, z3",
        on_state=flight.bounded_swap,
    ),
    Invariant(
        "answers-accepted",
        Kind.STATE,
        "Whatever span is answered as the next one to move, for any receipt and any number of "
        "units, may begin to move.",
        "predicate",
        on_state=flight.answers_accepted,
        presumes_others=True,
    ),
)

STEP: Final = (
    Invariant(
        "no-shared-eviction",
        Kind.STEP,
        "Nothing that is dropped has more than one child, nor does any node between it and its "
        "history's leaf.",
        "predicate, z3",
        on_step=steps.no_shared_eviction,
    ),
    Invariant(
        "no-in-use-eviction",
        Kind.STEP,
        "Nothing locked is dropped or demoted, and no request evicts what it has matched.",
        "predicate, z3",
        on_step=steps.no_in_use_eviction,
    ),
    Invariant(
        "minimal-eviction",
        Kind.STEP,
        "What is freed is at least the shortfall and less than one block more (one node more at "
        "node granularity), and nothing where there is no shortfall.",
        "predicate, z3",
        on_step=steps.minimal_eviction,
    ),
    Invariant(
        "order-followed",
        Kind.STEP,
        "Eviction begins with the history that is first in the order in force; one that waits "
        "never goes before an idle one that costs no more and was used no later.",
        "predicate (on evict and reserve), z3",
        on_step=ranking.order_followed,
    ),
    Invariant(
        "history-intact",
        Kind.STEP,
        "Eviction and moves never change any history's tokens, nor give KV to a hole.",
        "predicate, z3",
        on_step=steps.history_intact,
    ),
    Invariant(
        "effects-tell-all",
        Kind.STEP,
        "The effects of a step, carried out on the spans before it, give exactly the spans and "
        "the residency after it.",
        "predicate",
        on_step=steps.effects_tell_all,
    ),
    Invariant(
        "recency-kept",
        Kind.STEP,
        "Only a use changes how recent a node with KV is, and only of the nodes on its path, "
        "which it makes the newest.",
        "predicate",
        on_step=steps.recency_kept,
    ),
    Invariant(
        "reads-change-nothing",
        Kind.STEP,
        "Matching and planning change nothing, not even recency.",
        "predicate",
        on_step=steps.reads_change_nothing,
    ),
    Invariant(
        "progress",
        Kind.STEP,
        "If unlocked KV, with what is free, is at least the need, eviction succeeds: a refusal "
        "for want of space is right, and what was promised can be brought.",
        "predicate (on refusals), z3",
        on_refusal=steps.progress,
    ),
    Invariant(
        "moves-do-not-evict",
        Kind.STEP,
        "A move leaves the set of resident spans unchanged.",
        "predicate, z3",
        on_step=steps.moves_do_not_evict,
    ),
    Invariant(
        "unified-order",
        Kind.STEP,
        "What is finally dropped does not depend on which tier holds it.",
        "predicate (the step is taken again with all KV in one tier), z3",
        on_step=one_tier.unified_order,
    ),
)

TRACE: Final = (
    Invariant(
        "one-hole",
        Kind.TRACE,
        "From a state without holes, evictions and refills in position order leave at most one "
        "hole on any history.",
        "Trace",
    ),
    Invariant(
        "determinism",
        Kind.TRACE,
        "The same operations give the same states and effects, in any process.",
        "two processes with different hash seeds, tests/property",
    ),
    Invariant(
        "exact-refill",
        Kind.TRACE,
        "After a refill, every slot's content equals what a full prefill of its history would "
        "have written.",
        "symbolic KV store, tests/property",
    ),
    Invariant(
        "announced-covers-resident",
        Kind.TRACE,
        "What routers are told of is closed under prefixes after every single event, covers what "
        "is resident, and names nothing without KV at or behind it that no request holds.",
        "a strict index, penelope.testing",
    ),
    Invariant(
        "announced-is-resident",
        Kind.TRACE,
        "What routers are told of in the mode `prefix` is what is resident, in either tier, with "
        "all that precedes it: never more, not even between two events, and no less when a step "
        "is told.",
        "a strict index, penelope.testing",
    ),
)

INVARIANTS: Final[dict[str, Invariant]] = {
    invariant.name: invariant for invariant in (*STATE, *STEP, *TRACE)
}


def check_state(state: State) -> list[Violation]:
    """Violations of every state invariant.  Linear in the nodes and the tokens of their labels."""
    found: list[Violation] = []
    for invariant in STATE:
        if invariant.on_state is not None and not (invariant.presumes_others and found):
            found += [Violation(invariant.name, text) for text in invariant.on_state(state)]
    return found


def check_step(
    before: State, after: State, transition: str, **given: Unpack[Facts]
) -> list[Violation]:
    """Violations of every step invariant by an accepted transition, given by its name.

    Raises `ValueError` for a name that is none, or when a fact that it needs is missing.
    """
    facts.require(transition, given)
    happened = Happened(before, after, transition, given)
    return [
        Violation(invariant.name, text)
        for invariant in STEP
        if invariant.on_step is not None
        for text in invariant.on_step(happened)
    ]


def check_refused(
    before: State, transition: str, error: Refused, **given: Unpack[Facts]
) -> list[Violation]:
    """Violations by a transition that was refused: it should have been accepted.

    Raises `ValueError` as `check_step` does.
    """
    facts.require(transition, given)
    turned = Turned(before, transition, error, given)
    return [
        Violation(invariant.name, text)
        for invariant in STEP
        if invariant.on_refusal is not None
        for text in invariant.on_refusal(turned)
    ]
