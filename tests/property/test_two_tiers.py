"""The core with two tiers: plans end, moves lose nothing, one order decides what goes.

What is said of one state, or of one step, is checked by `tiers.Driver` at every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penelope.policy import (
    POLICIES,
    Config,
    Granularity,
    InFlight,
    InsufficientSpace,
    Match,
    Moved,
    MoveId,
    NothingToMove,
    Receipt,
    Refused,
    Residency,
    State,
    Ticket,
    Transfer,
    UnknownMove,
    admit,
    begin_move,
    checkpoint,
    empty,
    end_move,
    evict,
    fail_move,
    insert,
    line_up,
    match,
    named_policy,
    next_demotion,
    next_transfer,
    ordering,
    pack,
    plan,
    refill,
    release,
    reserve,
    retire,
    settle_promise,
    touch,
)
from tests.property.tiers import Driver, audit, drawn_config, dropped, resident

RANDOM = st.builds(Random, st.integers(0, 2**32)) | st.randoms(use_true_random=False)
"""Seeds reach further into a cache's life; Hypothesis' own randomness shrinks."""
DEVICE, HOST, HOLE = Residency.DEVICE, Residency.HOST, Residency.HOLE

# --- one cache, step by step ----------------------------------------------------------------------


@given(RANDOM, st.sampled_from([0.0, 0.1, 0.5]), st.integers(10, 40))
def test_plans_end_and_moves_lose_nothing(random: Random, failing: float, steps: int) -> None:
    driver = Driver(random, drawn_config(random), failing=failing)
    for _ in range(steps):
        driver.step()


def test_what_is_checked_happens() -> None:
    """Witnesses, over a fixed budget: a driver that only bounces off refusals shows nothing."""
    seen: Counter[str] = Counter()
    for seed in range(100):
        random = Random(seed)
        driver = Driver(random, drawn_config(random), failing=0.1)
        for _ in range(60):
            driver.step()
        seen += driver.seen
    for witness, least in (
        ("admitted", 900),
        ("admitted with moves", 250),
        ("to the host", 300),
        ("to the device", 80),
        ("swapped", 20),
        ("failed", 40),
        ("given up", 12),
        ("growth that waits for moves", 20),
        ("InsufficientSpace", 100),
        ("dropped", 80),
    ):
        assert seen[witness] >= least, seen


# --- moves in flight while others work ------------------------------------------------------------


def in_flight(state: State) -> dict[MoveId, set[tuple[int, bytes]]]:
    """The units of every move."""
    units: dict[MoveId, set[tuple[int, bytes]]] = {move: set() for move in state.moves}
    for node in state.nodes.values():
        if node.move is not None:
            units[node.move] |= {
                (position, bytes(node.key[: (position + 1) * 4]))
                for position in range(node.start, node.end)
            }
    return units


def anything(random: Random, state: State, units: list[int]) -> State:
    """A transition that a request of somebody else could ask for."""
    act = random.choice(["evict", "insert", "touch", "admit", "demote"])
    if act == "evict":
        return evict(state, random.randrange(1, 9)).state
    if act == "insert":
        return insert(state, pack(units)).state
    if act == "touch":
        return touch(state, match(state, pack(units))).state
    if act == "admit":
        return admit(state, plan(state, pack(units))).state
    transfer = next_demotion(state, random.randrange(1, 5))
    return state if transfer is None else begin_move(state, transfer).state


@given(RANDOM, st.integers(5, 40))
def test_what_is_in_flight_is_not_lost_nor_moved_again(random: Random, steps: int) -> None:
    config = replace(drawn_config(random), page_size=1)
    driver = Driver(random, config)
    for _ in range(15):
        driver.step()
    state = driver.state
    for _ in range(steps):
        before = in_flight(state)
        if before and random.random() < 0.3:
            move = random.choice(sorted(before))
            kept = resident(state)
            target = state.moves[move].target
            failed = random.random() < 0.4
            state = (fail_move if failed else end_move)(state, move).state
            for page in before.pop(move):
                kept[page] = kept[page] if failed else target
            assert resident(state) == kept
        else:
            try:
                state = anything(random, state, driver.units())
            except Refused:
                continue
        audit(state)
        held = resident(state)
        for move, units in before.items():
            assert in_flight(state)[move] == units
            assert units <= held.keys()
        for node in state.nodes.values():
            if node.move is not None:
                other = HOST if node.residency is DEVICE else DEVICE
                with pytest.raises(NothingToMove):
                    begin_move(state, Transfer(node.id, node.start, node.end, other))
    for move in list(state.moves):
        state = end_move(state, move).state
        audit(state)
    assert not any(node.move for node in state.nodes.values())


def test_a_span_that_is_split_while_it_moves_arrives_whole() -> None:
    """Fault 34 of the field: only the lower half of a split node was marked as stored."""
    config = Config(16, 2, 2, host_capacity=18, swap_buffer=2)
    state = insert(empty(config), pack([1, 2, 3, 4, 5, 6, 7, 8])).state
    transfer = next_demotion(state, 8)
    assert transfer is not None
    begun = begin_move(state, transfer)
    # Another history leaves this one in the middle of what is being copied, by way of a lock: an
    # insert that offered what is moving would be refused.
    with pytest.raises(InFlight):
        insert(begun.state, pack([1, 2, 3, 4, 9, 9]))
    state = insert(begun.state, pack([1, 2, 3, 4, 9, 9]), start=4).state
    assert len([n for n in state.nodes.values() if n.move == begun.move]) == 2
    audit(state)
    ended = end_move(state, begun.move)
    arrived = [(e.start, e.end) for e in ended.effects if isinstance(e, Moved)]
    assert arrived == [(0, 4), (4, 8)]
    spans = match(ended.state, pack([1, 2, 3, 4, 5, 6, 7, 8]), at_most=8).spans
    assert [(s.start, s.end, s.residency) for s in spans] == [(0, 4, HOST), (4, 8, HOST)]
    audit(ended.state)
    back = fail_move(state, begun.move).state
    assert set(resident(back).values()) == {DEVICE}
    audit(back)


@pytest.mark.parametrize("first", [end_move, fail_move])
@pytest.mark.parametrize("late", [end_move, fail_move])
def test_a_late_completion_is_refused(first: object, late: object) -> None:
    state = insert(empty(Config(8, block_size=1, host_capacity=5, swap_buffer=1)), pack([1])).state
    transfer = next_demotion(state, 1)
    assert transfer is not None
    begun = begin_move(state, transfer)
    done = first(begun.state, begun.move).state  # type: ignore[operator]
    with pytest.raises(UnknownMove, match=f"move {begun.move} is not in flight"):
        late(done, begun.move)  # type: ignore[operator]


# --- several caches side by side ------------------------------------------------------------------

UNIFIED = ["penelope", "tail-block"]
"""The policies to which node boundaries mean nothing; moves make boundaries."""


class Side:
    """One of several caches that see the same requests."""

    def __init__(self, config: Config) -> None:
        self.state = empty(config)
        self.receipts: list[Receipt] = []
        self.gone: list[tuple[int, int]] = []
        self.last: list[object] = []
        self.moved = 0
        self.spared = 0

    def take(self, stepped: tuple[object, ...]) -> None:
        """Go on with what a transition gave: its state and effects come first."""
        state, effects = stepped[:2]
        assert isinstance(state, State)
        assert isinstance(effects, tuple)
        self.gone += dropped(self.state, effects)
        self.last += effects
        self.state = state

    def admit(self, units: list[int]) -> None:
        planned = plan(self.state, pack(units))
        admitted = admit(self.state, planned)
        self.take(admitted)
        self.receipts.append(admitted.receipt)
        self.move(admitted.receipt)
        for hole in planned.holes:
            self.take(refill(self.state, admitted.receipt, *hole))
        self.take(checkpoint(self.state, admitted.receipt, pack(units)))

    def grow(self, index: int, units: int) -> None:
        self.take(reserve(self.state, self.receipts[index], units))
        self.move(self.receipts[index])

    def move(self, receipt: Receipt) -> None:
        while (transfer := next_transfer(self.state, receipt)) is not None:
            begun = begin_move(self.state, transfer)
            self.state = end_move(begun.state, begun.move).state
            self.moved += 1
        self.take(settle_promise(self.state, receipt))

    def line_up(self, waiting: list[list[int]], overtakes: bool) -> None:
        """These wait in the end; those who waited before stand for themselves."""
        known: list[Ticket | Match] = [*self.state.waiting.order[-3:]]
        if overtakes:
            known.reverse()
        self.take(line_up(self.state, known + [match(self.state, pack(w)) for w in waiting]))
        self.spared += bool(self.state.waiting.at)

    def can(self, act: str, units: list[int], which: int, amount: int) -> bool:
        if act == "admit":
            return plan(self.state, pack(units)).admissible
        if act == "evict":
            return amount <= self.state.evictable
        if act == "grow":
            return which < len(self.receipts) and amount <= self.state.available
        return act in ("touch", "queue", "retire") or which < len(self.receipts)

    def do(self, act: str, units: list[int], which: int, amount: int) -> None:
        if act == "admit":
            self.admit(units)
        elif act == "release":
            self.take(release(self.state, self.receipts.pop(which)))
        elif act == "grow":
            self.grow(which, amount)
        elif act == "evict":
            self.take(evict(self.state, amount))
        elif act == "queue":
            self.line_up([units], overtakes=amount % 2 == 0)
        elif act == "retire":
            self.take(retire(self.state, match(self.state, pack(units), at_most=len(units))))
        else:
            self.take(touch(self.state, match(self.state, pack(units))))


ACTS = ("admit",) * 5 + ("release",) * 3 + ("evict", "touch", "grow")


def side_by_side(random: Random, sides: list[Side], steps: int, acts: Sequence[str] = ACTS) -> None:
    """The same requests to all; what one of them could not take now is asked of none."""
    page = sides[0].state.config.page_size
    smallest = min(side.state.config.device_capacity for side in sides)
    histories: list[list[int]] = [[]]
    for _ in range(steps):
        base = random.choice(histories)
        units = (base + [random.randrange(2) for _ in range(random.randrange(1, 7))])[:smallest]
        which = random.randrange(len(sides[0].receipts) or 1)
        amount = page * random.randrange(1, 5)
        act = random.choice(acts)
        for side in sides:
            side.last = []
        if not all(side.can(act, units, which, amount) for side in sides):
            continue
        for side in sides:
            side.do(act, units, which, amount)
        if act == "admit":
            histories = [*histories[-8:], units]
        first, *others = sides
        for side in others:
            assert side.gone == first.gone, "what goes, and when, does not depend on the tier"
            assert resident(side.state).keys() == resident(first.state).keys()


def splits(total: int, page: int, block: int) -> list[tuple[int, int, int]]:
    """Device, host and swap buffer of the same logical total: one tier; hosts that are all
    buffer, smaller than the device, as large, larger."""
    two = [
        (device - device % page, total - device + device % page + swap, swap)
        for device in (total * 3 // 4, total // 2, total // 3)
        for swap in (block, 2 * block)
    ]
    return [(total, 0, 0), (total, block, block), *two]


def tiered(random: Random, name: str, total: int, page: int, block: int) -> list[Side]:
    position, granularity = named_policy(name)
    order = ordering(name)[0]
    linear = random.choice([0, 0, 6])
    sticky = random.random() < 0.3
    return [
        Side(
            Config(
                device,
                page,
                block,
                position,
                granularity,
                sticky,
                host_capacity=host,
                swap_buffer=swap,
                order=order,
                linear_cost=linear,
            )
        )
        for device, host, swap in splits(total, page, block)
    ]


@given(RANDOM, st.sampled_from(UNIFIED), st.integers(10, 40))
def test_what_is_dropped_is_the_same_for_every_split_between_the_tiers(
    random: Random, name: str, steps: int
) -> None:
    page = random.choice([1, 2])
    block = page * random.choice([1, 2, 3])
    side_by_side(
        random, tiered(random, name, page * random.choice([18, 24, 36]), page, block), steps
    )


FORESEEN = (*ACTS, "queue", "queue", "queue", "retire")


@given(RANDOM, st.sampled_from(["expected-cost", "penelope-queue"]), st.integers(10, 40))
def test_whoever_waits_what_is_dropped_does_not_depend_on_the_tier(
    random: Random, name: str, steps: int
) -> None:
    """The order of drops is one for both tiers, whatever it weighs: `unified-order`."""
    block = random.choice([1, 2, 3])
    sides = tiered(random, name, random.choice([18, 24, 36]), 1, block)
    side_by_side(random, sides, steps, FORESEEN)


def test_the_sides_wait_and_drop() -> None:
    """Witnesses for the test above."""
    for name in ("expected-cost", "penelope-queue"):
        gone = moved = spared = 0
        for seed in range(12):
            random = Random(seed)
            sides = tiered(random, name, 24, 1, 2)
            side_by_side(random, sides, 60, FORESEEN)
            gone += len(sides[0].gone)
            moved += sum(side.moved for side in sides)
            spared += sides[0].spared
        assert gone >= 50
        assert moved >= 100
        assert spared >= 50


def test_the_sides_drop_and_move() -> None:
    """Witnesses for the test above."""
    for name in UNIFIED:
        gone = moved = 0
        for seed in range(12):
            random = Random(seed)
            sides = tiered(random, name, 24, 1, 2)
            side_by_side(random, sides, 60)
            gone += len(sides[0].gone)
            moved += sum(side.moved for side in sides)
            assert not sides[0].moved + sides[1].moved
        assert gone >= 100
        assert moved >= 300


@given(RANDOM, st.sampled_from(list(POLICIES)), st.integers(10, 40))
def test_no_host_or_one_that_is_all_buffer_is_one_tier(
    random: Random, name: str, steps: int
) -> None:
    """Not only what goes: every effect, node for node, and every order."""
    position, granularity = named_policy(name)
    one = Config(24, 1, random.choice([1, 2, 3]), position, granularity, random.random() < 0.3)
    swap = one.block_size * random.choice([1, 2])
    two = replace(one, host_capacity=swap, swap_buffer=swap)
    sides = [Side(one), Side(two)]
    for _ in range(steps):
        side_by_side(random, sides, 1)
        assert sides[0].last == sides[1].last
        alone, together = (side.state for side in sides)
        assert alone.totals == together.totals
        assert list(alone.victims.in_order()) == list(together.victims.in_order())
        assert together.totals.host == 0
        assert not sides[1].moved


# --- T1 at its edge -------------------------------------------------------------------------------


def test_one_unit_beyond_the_device_is_refused_and_changes_nothing() -> None:
    config = Config(8, block_size=1, host_capacity=40, swap_buffer=1)
    assert config.granularity is Granularity.BLOCK
    state = empty(config)
    running = admit(state, plan(state, pack(range(3))))
    state = checkpoint(running.state, running.receipt, pack(range(3))).state
    state = insert(state, pack(range(100, 105))).state
    fits = plan(state, pack(range(200, 205)))
    assert fits.admissible
    assert admit(state, fits).pending
    beyond = plan(state, pack(range(200, 206)))
    assert not beyond.admissible
    with pytest.raises(InsufficientSpace, match="must free 6 units where 5 are evictable"):
        admit(state, beyond)


def test_a_hole_and_a_host_span_come_back_in_one_admission() -> None:
    """[shared device | hole | host | device tail]: the walk stops at holes, not at the host."""
    state = empty(Config(12, block_size=1, host_capacity=7, swap_buffer=1))
    history = list(range(10))
    state = insert(state, pack(history)).state
    transfer = next_demotion(state, 6)
    assert transfer == (transfer[0], 0, 6, HOST, None) if transfer else False
    assert transfer is not None
    begun = begin_move(state, transfer)
    state = evict(end_move(begun.state, begun.move).state, 3).state
    where = [(s.end, s.residency) for s in match(state, pack(history), at_most=10).spans]
    assert where == [(3, HOLE), (6, HOST), (10, DEVICE)]
    planned = plan(state, pack([*history, 10]))
    assert (planned.holes, planned.match.host, planned.allocate) == (((0, 3),), 3, 7)
    admitted = admit(state, planned)
    side = Side(state.config)
    side.state = admitted.state
    side.move(admitted.receipt)
    refilled = refill(side.state, admitted.receipt, 0, 3).state
    audit(refilled)
    assert {r for (p, _), r in resident(refilled).items() if p < 10} == {DEVICE}
