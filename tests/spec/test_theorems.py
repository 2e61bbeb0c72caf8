"""The proofs: every theorem is proved, says something, and fails when its reason is taken away."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest

from penelope.cost import CostModel
from penelope.policy import Config, acquire, empty, evict, insert, match, pack
from penelope.policy.eviction import head_target, tail_target
from penelope_spec import INVARIANTS
from penelope_spec.arithmetic import Arithmetic
from penelope_spec.eviction_moves import DROP, MERGE
from penelope_spec.lemmas import span_cost
from penelope_spec.logic import NODE, Finite, Truth
from penelope_spec.relational import LARGEST, Relational
from penelope_spec.relations import Setting
from penelope_spec.smt import Answer, Status, every, integer, real, refute, values
from penelope_spec.theorem import Broken, Verdict, conclude
from penelope_spec.transitions import MOVES
from penelope_spec.verify import FAILED, PROVED, UNKNOWN, exit_status, theorems

ALL = theorems()


@cache
def verdict(index: int) -> Verdict:
    return ALL[index].decide()


@pytest.mark.parametrize("index", range(len(ALL)), ids=[theorem.name for theorem in ALL])
def test_theorem(index: int) -> None:
    """Proved, not vacuous, and refuted in every broken variant, the hypotheses listed."""
    found = verdict(index)
    assert found.status is Status.PROVED, (found.reasons, found.counterexample)
    assert found.hypotheses
    assert found.witness
    assert found.broken
    assert all(one.refuted and one.counterexample for one in found.broken)
    assert found.scope.startswith("all") or found.scope.startswith("bounded: up to ")


def test_names_are_unique() -> None:
    names = [theorem.name for theorem in ALL]
    assert len(set(names)) == len(names)


def test_every_theorem_is_about_a_registered_invariant() -> None:
    assert {theorem.kind for theorem in ALL} <= INVARIANTS.keys() | {"cost", "lemma"}


def test_what_is_said_to_be_proved_is_proved() -> None:
    """The registry claims z3 exactly for invariants that a theorem is about."""
    proved = {theorem.kind for theorem in ALL} & INVARIANTS.keys()
    claimed = {i.name for i in INVARIANTS.values() if "z3" in i.checked}
    assert claimed == proved


def test_every_broken_move_is_refuted_by_a_theorem() -> None:
    declared = {name for move in MOVES for name in move.variants}
    tried = {name for t in ALL if isinstance(t, Relational) for name in t.variants}
    assert declared <= tried


def test_only_facts_of_finite_trees_are_bounded() -> None:
    bounded = {t.name for t in ALL if isinstance(t, Relational) and t.bounded}
    assert bounded == {
        "where paths part a node forks",
        "at or below every node there is a leaf",
        "at or below device KV there is the last of it",
    }
    assert LARGEST[NODE] == 5


# The classic mistakes, each with its counterexample


def named(name: str) -> Verdict:
    (index,) = [i for i, theorem in enumerate(ALL) if theorem.name == name]
    return verdict(index)


def broken(theorem: str, variant: str) -> Broken:
    (found,) = [one for one in named(theorem).broken if one.name == variant]
    return found


def test_eviction_that_forgets_the_locks_is_refuted() -> None:
    found = broken("drop respects no-in-use-eviction", "drop forgets the locks")
    assert found.refuted
    assert "KV [c0] locked by r0" in found.counterexample
    assert "after: 1 root locked by r0 > 0 hole [c0] locked by r0" in found.counterexample


def test_eviction_that_forgets_a_second_child_is_refuted() -> None:
    found = broken("drop respects no-shared-eviction", "drop forgets a second child")
    assert found.refuted
    fork = r"\d root > 0 %s \[c\d\] > \(1 .*, \d .*\)"  # which tier it is, the solver chooses
    assert re.search(f"before: {fork % '(host )?KV'}; after: {fork % 'hole'}", found.counterexample)


@pytest.mark.parametrize(
    ("theorem", "stop"),
    [
        ("the walk back returns no locked node", "locked"),
        ("the walk back returns no hole and no root", "hole"),
        ("the walk back returns no node that leads anywhere but to its leaf", "shared"),
    ],
)
def test_a_walk_that_forgets_a_stop_is_refuted(theorem: str, stop: str) -> None:
    assert broken(theorem, f"a walk that does not stop at {stop}").refuted


# The prover itself


def test_a_false_theorem_is_a_counterexample_not_a_proof() -> None:
    false = Relational(
        "drop takes nothing", "lemma", DROP.constants, {}, lambda w: w.after.device(w["n"]), DROP
    )
    found = false.decide()
    assert found.status is Status.COUNTEREXAMPLE
    assert "0 hole" in found.counterexample
    assert exit_status([named("two victims never share a stamp"), found]) == FAILED


def test_hypotheses_that_contradict_each_other_prove_nothing() -> None:
    vacuous = Relational(
        "from nonsense anything",
        "lemma",
        {"n": NODE},
        {
            "n has KV": lambda w: w.before.device(w["n"]),
            "n has none": lambda w: w.logic.no(w.before.device(w["n"])),
        },
        lambda w: w.before.root(w["n"]),
    )
    found = vacuous.decide()
    assert found.status is Status.UNKNOWN
    assert found.reasons == ("no case was found in which the hypotheses hold",)
    numbers = Arithmetic(
        "1 is 2", "lemma", "all integers", {"x is 1 and 2": every(x == 1, x == 2)}, x == 3
    )
    assert numbers.decide().status is Status.UNKNOWN


x = integer("x")


def test_a_theorem_that_needs_no_hypothesis_is_reported() -> None:
    idle = Arithmetic("x is x", "lemma", "all integers", {"x is positive": x > 0}, x == x + 0)
    found = idle.decide()
    assert found.status is Status.UNKNOWN
    assert found.reasons == ("not refuted: any weaker hypotheses",)


def test_a_variant_that_is_not_refuted_is_reported() -> None:
    """A broken twin that is not broken: the theorem would not notice."""
    (theorem,) = [t for t in ALL if t.name == "merge keeps one-copy"]
    assert isinstance(theorem, Relational)
    same = replace(theorem, variants={"a merge like any other": MERGE})
    found = same.decide()
    assert found.status is Status.UNKNOWN
    assert found.reasons == ("not refuted: a merge like any other",)


def test_unknown_is_a_failure_of_its_own() -> None:
    """The solver runs out of time on a question that it cannot decide."""
    a, b, c = (integer(name) for name in "abc")
    cubes = [a > 1, b > 1, c > 1, a * a * a + b * b * b == c * c * c]
    answer = refute(cubes, timeout_ms=50)
    assert answer.status is Status.UNKNOWN
    assert answer.reason
    proved = named("two victims never share a stamp")
    unknown = replace(proved, status=Status.UNKNOWN)
    assert exit_status([proved]) == PROVED
    assert exit_status([proved, unknown]) == UNKNOWN
    assert exit_status([]) == UNKNOWN


def test_a_counterexample_is_shown_only_if_the_evaluator_agrees() -> None:
    """A claim that the two readings understand differently stops the run."""

    def fickle(w: Setting) -> Truth:
        return not isinstance(w.logic, Finite)

    theorem = Relational(
        "fickle", "lemma", {"n": NODE}, {"it holds": fickle}, lambda w: w.before.tree(w["n"])
    )
    with pytest.raises(AssertionError, match=r"is none: .'it holds'"):
        theorem.decide()


def test_conclude_keeps_a_counterexample_whatever_else() -> None:
    status, reasons = conclude(Status.COUNTEREXAMPLE, "", (), "")
    assert status is Status.COUNTEREXAMPLE
    assert reasons == ()


# What the lemmas about numbers say, and what the core computes


@pytest.mark.parametrize("linear", [Fraction(0), Fraction(7, 3), Fraction(23552)])
def test_the_cost_of_the_theorem_is_the_cost_of_the_core(linear: Fraction) -> None:
    model = CostModel("m", linear, 1, 1, 1)
    for start, end in ((0, 0), (0, 1), (3, 10), (2048, 41370)):
        cost = model.span(start, end)
        term = span_cost(real("c"), real("start"), real("end"))
        asked = [
            real("c") * linear.denominator == linear.numerator,
            real("start") == start,
            real("end") == end,
            term * cost.denominator != cost.numerator,
        ]
        assert refute(asked).status is Status.PROVED


def test_the_cuts_of_the_core_are_those_of_the_lemmas() -> None:
    """The floor that the lemmas take is the one that the core rounds by."""
    config = Config(64, 1, 4)
    for start in range(12):
        for need in range(1, 12):
            floor = -head_target(config, start, need)
            assert floor <= -(start + need) < floor + config.block_size
            if need <= start:
                floor = tail_target(config, start, need)
                assert floor <= start - need < floor + config.block_size


def test_where_z3_breaks_a_variant_the_core_does_right() -> None:
    """The smallest counterexamples to the forgetful evictions, built in the core."""
    config = Config(8, 1, 1)
    locked_leaf = insert(empty(config), pack([1])).state
    held = acquire(locked_leaf, match(locked_leaf, pack([1]), at_most=1)).state
    assert held.evictable == 0
    forked = insert(insert(empty(config), pack([1, 2])).state, pack([1, 3])).state
    done = evict(forked, 1)
    shared = [n for n in done.state.nodes.values() if n.start == 0 and not n.is_root]
    assert all(node.residency.value == "device" for node in shared)


def test_answers_carry_their_model() -> None:
    answer = refute([x == 4])
    assert answer == Answer(Status.COUNTEREXAMPLE, answer.model)
    assert values(answer.model) == {"x": "4"}
