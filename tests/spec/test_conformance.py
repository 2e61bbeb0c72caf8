"""The theorems are about this code: real steps are made of the moves that they speak of."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from penelope.policy import Config, Granularity, Position, Stop, private_span
from penelope.policy.walk import stop_reason
from penelope_spec import (
    INVARIANTS,
    TRANSITIONS,
    Kind,
    Trace,
    check_refused,
    check_state,
    check_step,
)
from penelope_spec.abstraction import Picture, finite, picture
from penelope_spec.assumptions import KEPT
from penelope_spec.eviction_moves import REMOVE
from penelope_spec.facts import FORESIGHT
from penelope_spec.facts import MOVES as TIER_MOVES
from penelope_spec.formulas import locks_cover, order, parting
from penelope_spec.holes import PRUNE
from penelope_spec.logic import RELATIONS, Formula, View
from penelope_spec.relational import evaluate
from penelope_spec.relations import Setting
from penelope_spec.theorems import STEPS
from penelope_spec.transitions import MOVES, MOVES_OF
from penelope_spec.walk import in_private_span
from tests.spec.interpreter import Interpreter, Made, differences
from tests.spec.tiered import Tiered, tiered_configs
from tests.spec.worlds import Done, World, configs

CONFIGS = list(configs())
TIERED = list(tiered_configs())


def accepted(config: Config, seed: int, steps: int = 60) -> list[Done]:
    """Steps of a random run that the core accepted."""
    world = Tiered(config, seed) if config.host_capacity else World(config, seed)
    return [done for done in world.run(steps) if done.refused is None]


def violated(made: Made) -> list[str]:
    """Guards and effects of the move that do not hold of what happened."""
    claims = {
        **made.move.guards,
        **{f"{name} after": made.move.effect(name) for name in RELATIONS},
    }
    world = finite({"before": made.before, "after": made.after})
    return evaluate(claims, world, made.constants)


@pytest.mark.parametrize("index", range(len(CONFIGS) + len(TIERED)))
def test_every_step_is_a_sequence_of_the_moves(index: int) -> None:
    """Guards held when the core moved, and each move did what its relation says, no more."""
    for done in accepted([*CONFIGS, *TIERED][index], seed=index):
        interpreter = Interpreter(done)
        made = interpreter.interpret()
        assert differences(interpreter.now, done.after) == []
        for move in made:
            assert move.move in MOVES_OF[done.transition], (done.transition, move.move.name)
            assert violated(move) == [], (done.transition, move.move.name, move.constants)


def test_every_move_of_every_transition_happens() -> None:
    """Otherwise the test above could be about nothing."""
    seen: Counter[tuple[str, str]] = Counter()
    worlds = [*product(CONFIGS, range(8), [60]), *product(TIERED, range(14), [100])]
    for config, seed, steps in worlds:
        for done in accepted(config, seed, steps):
            for made in Interpreter(done).interpret():
                seen[done.transition, made.move.name] += 1
    expected = {(name, move.name) for name, moves in MOVES_OF.items() for move in moves}
    assert seen.keys() == expected
    assert {name for _, name in seen} == {move.name for move in MOVES} | {"reset"}


def test_every_transition_has_its_moves() -> None:
    assert set(MOVES_OF) == set(TRANSITIONS)


def small(picture_: Picture) -> bool:
    return len(picture_.nodes) < 7 and sum(len(n.cells) for n in picture_.nodes.values()) < 12


@pytest.mark.parametrize("position", Position)
def test_whole_evictions_respect_the_step_invariants(position: Position) -> None:
    """What is proved for one move and for sequences of them, seen on whole transitions."""
    lost = 0
    for seed in range(12):
        config = Config(10, 1, 2, position)
        for done in accepted(config, seed):
            views = {"before": picture(done.before), "after": picture(done.after)}
            if done.transition != "evict" or not all(small(view) for view in views.values()):
                continue
            world = finite(views)
            w = Setting(world, {})
            for name in ("no-in-use-eviction", "no-shared-eviction"):
                assert STEPS[name](w, w.before, w.after), (name, done.facts)
            lost += done.before != done.after
    assert lost > 20


def test_the_walk_back_is_the_walk_that_the_theorems_speak_of() -> None:
    """`private_span` returns exactly the nodes of the formula, and stops for one of the reasons."""
    reasons: Counter[Stop] = Counter()
    for seed in range(20):
        config = Config(16, 1, 2, granularity=Granularity.NODE)
        for done in accepted(config, seed):
            state = done.after
            world = finite({"before": picture(state)})
            for _, leaf in state.victims.in_order():
                span, reason = private_span(config, state.nodes, leaf)
                w = Setting(world, {})
                found = {n for n in state.nodes if in_private_span(w, n, leaf)}
                assert found == set(span)
                top = state.nodes[span[0]].parent
                assert top is not None
                assert stop_reason(config, state.nodes[top], state.nodes[leaf].stamp) is reason
                reasons[reason] += 1
    assert set(reasons) == set(Stop), "every reason to stop must occur"


def test_what_the_proofs_assume_holds_of_real_states() -> None:
    """Lemmas that enter other proofs as hypotheses, and every invariant's formula."""
    assumed: dict[str, Formula] = {"order": order, "parting": parting, "locks cover": locks_cover}
    assumed |= {name: formula for name, (_, formula, _) in KEPT.items() if name != "labels"}
    for seed in range(3):
        for config in (*CONFIGS[::3], *TIERED[::3]):
            for done in accepted(config, seed)[::6]:
                world = finite({"before": picture(done.after)})
                s = View(world, "before")
                for name, formula in assumed.items():
                    assert formula(world, s), name


def prunings(made: list[Made]) -> list[tuple[Made, Made]]:
    """Runs of `remove` moves: the first and the last of each."""
    runs: list[tuple[Made, Made]] = []
    for index, move in enumerate(made):
        if move.move is REMOVE:
            begins = index == 0 or made[index - 1].move is not REMOVE
            runs.append((move, move) if begins else (runs.pop()[0], move))
    return runs


def test_pruning_removes_what_the_theorem_says() -> None:
    """All `remove` moves in a row are one `prune`, whose definition says when to stop."""
    count = 0
    for seed in range(3):
        for config in (*CONFIGS, *TIERED):
            for done in accepted(config, seed):
                if done.transition not in ("evict", "admit", "reserve", "release"):
                    continue
                for first, last in prunings(Interpreter(done).interpret()):
                    gone = first.before.nodes.keys() - last.after.nodes.keys()
                    dead = frozenset((node,) for node in gone)
                    world = finite({"before": first.before, "after": last.after}, dead=dead)
                    start = first.constants["n"]
                    names = ("tree", "root", "above", "device", "host", "covers")
                    claims = {**PRUNE.guards, **{name: PRUNE.effect(name) for name in names}}
                    assert evaluate(claims, world, {"l": start}) == []
                    count += 1
    assert count > 50


def test_the_predicates_are_silent_on_runs_of_the_core() -> None:
    """The monitor that others use, on the same runs; every transition is exercised."""
    seen: Counter[tuple[str, bool]] = Counter()
    promised = 0
    for seed in range(6):
        for config in CONFIGS:
            trace = Trace()
            for done in World(config, seed).run(60):
                step = (done.before, done.after, done.transition)
                seen[done.transition, done.refused is None] += 1
                if done.refused is None:
                    assert check_step(*step, **done.facts) == []
                    assert trace.step(*step, **done.facts) == []
                    assert check_state(done.after) == []
                    promised += trace.promised and done.after.totals.hole > 0
                elif done.transition in ("evict", "admit", "reserve"):
                    refused = check_refused(
                        done.before, done.transition, done.refused, **done.facts
                    )
                    assert refused == []
    wanted = set(TRANSITIONS) - {"match", "plan", *TIER_MOVES, *FORESIGHT}
    assert {name for name, fine in seen if fine} == wanted
    assert promised > 100, "one-hole must have been promised where there are holes"


def test_the_predicates_are_silent_on_two_tier_runs() -> None:
    """Every transition, with moves in flight around it; the swap buffer is used."""
    seen: Counter[tuple[str, bool]] = Counter()
    staged = promised = around = 0
    for seed in range(8):
        for config in TIERED:
            trace = Trace()
            for done in Tiered(config, seed).run(120):
                step = (done.before, done.after, done.transition)
                seen[done.transition, done.refused is None] += 1
                if done.refused is None:
                    assert check_step(*step, **done.facts) == []
                    assert trace.step(*step, **done.facts) == []
                    assert check_state(done.after) == []
                    staged += done.after.staged > 0
                    promised += trace.promised and done.after.totals.hole > 0
                    around += bool(done.before.moves and done.facts.get("freed"))
                else:
                    found = check_refused(done.before, done.transition, done.refused, **done.facts)
                    assert found == []
    assert {name for name, fine in seen if fine} == set(TRANSITIONS) - {"match", "plan", *FORESIGHT}
    assert min(staged, promised, around) > 20, (staged, promised, around)


def test_step_theorems_are_about_registered_invariants() -> None:
    steps = {i.name for i in INVARIANTS.values() if i.kind is Kind.STEP}
    assert set(STEPS) <= steps
