"""The benchmarks run, on sizes that take no time, and judge what they measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import core_operations, fleet, measuring, replay_throughput, routing
from benchmarks.measuring import Bar, Timing, growth, measure, report
from penelope.runtime.traces import GeneratorOptions, generate


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_growth_is_the_exponent(exponent: float) -> None:
    points = [(x, 7 * x**exponent) for x in (1e3, 1e4, 1e5)]
    assert growth(points) == pytest.approx(exponent, abs=1e-9)


def test_cases_take_turns_and_preparation_is_not_part_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, log = [0], []
    monkeypatch.setattr(measuring, "thread_time_ns", lambda: clock[0])

    def case(name: str, takes: int) -> measuring.Sample:
        clock[0] += 1_000_000  # preparing
        log.append(name)

        def sample() -> None:
            clock[0] += takes + (takes if log.count(name) == 20 else 0)

        return sample

    fast, slow = measure(
        [("act", 1, lambda: case("a", 1000)), ("act", 2, lambda: case("b", 5000))], samples=20
    )
    assert log == ["a", "a", "b", "b"] * 10
    assert (fast.size, fast.median_us, fast.p99_us, fast.samples) == (1, 1.0, 2.0, 20)
    assert (slow.size, slow.median_us, slow.p99_us) == (2, 5.0, 10.0)


@pytest.mark.parametrize("build", [core_operations.wide, core_operations.forked])
def test_worlds_are_full_and_of_the_stated_size(
    build: Callable[[int], core_operations.World],
) -> None:
    for size in (64, 256):
        world = build(size)
        assert world.state.free == 0
        leaves = world.state.victims.size
        assert leaves == len(world.histories)
        counted = leaves if build is core_operations.wide else len(world.state.nodes)
        assert size - 2 <= counted <= size
        assert world.holed.totals.hole > 0


def timings(*medians: float) -> list[Timing]:
    return [Timing("evict", 10**i, median, median, 1) for i, median in enumerate(medians, 3)]


@pytest.mark.parametrize(("medians", "met"), [((10, 11, 20), True), ((10, 11, 20.5), False)])
def test_the_bar_for_eviction_is_twice_the_smallest(medians: tuple[float, ...], met: bool) -> None:
    (bar,) = core_operations.bars(timings(*medians), [])
    assert bar.met is met
    assert bar.name == "evict at 100,000 leaves against 1,000"


@pytest.mark.parametrize(("median", "met"), [(499.0, True), (501.0, False)])
def test_the_bar_for_a_long_match_is_half_a_millisecond(median: float, met: bool) -> None:
    long = [Timing("1 node, pages of 64", core_operations.LONG, median, 0, 1)]
    assert core_operations.bars(timings(1, 1), long)[1].met is met


def test_everything_is_measured_and_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(core_operations, "SIZES", (64, 256))
    monkeypatch.setattr(replay_throughput, "RECORDED", tmp_path / "absent")
    monkeypatch.setattr(replay_throughput, "SESSIONS", 20)
    bars, figures = core_operations.run(quick=True)
    more, rates = replay_throughput.run(quick=True)
    report(bars + more, {**figures, **rates}, tmp_path / "out.json")
    shown = capsys.readouterr().out
    document = json.loads((tmp_path / "out.json").read_text())
    assert set(document) == {
        *("machine", "bars", "leaves", "nodes", "long", "maps", "replay", "held", "peak_mib"),
    }
    assert {row["operation"] for row in document["leaves"]} >= {"evict", "touched match", "refill"}
    assert all(row["median_us"] > 0 for part in ("leaves", "long") for row in document[part])
    assert {row["policy"] for row in document["replay"]} == set(replay_throughput.GOALS)
    for bar in document["bars"]:
        assert f"{'met   ' if bar['met'] else 'MISSED'}  {bar['name']}: {bar['figure']}" in shown
    assert document["machine"]["cores"] >= 1
    assert f"cpu {document['machine']['cpu']}, cores" in shown


def test_a_fleet_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    bars, figures = fleet.run(quick=True, each=3)
    rows: Any = figures["fleet"]
    assert [row["router"] for row in rows] == list(fleet.ROUTERS)
    assert all(row["sessions"] == 6 and row["seconds"] > 0 for row in rows)
    assert [bar.met for bar in bars] == [True] * len(fleet.ROUTERS)
    assert "2        6" in capsys.readouterr().out


def test_a_missed_bar_is_shouted(capsys: pytest.CaptureFixture[str]) -> None:
    report([Bar("speed", "at least 2", "1", met=False)], {}, None)
    assert "MISSED  speed: 1 (bar: at least 2)" in capsys.readouterr().out


def test_the_replay_that_is_timed_evicts_and_refuses_no_session() -> None:
    trace = generate(GeneratorOptions(sessions=3, max_context=40_000))
    for name in replay_throughput.GOALS:
        short, whole = (replay_throughput.replayed(trace, n, name, 50_048) for n in (1, 3))
        assert short.requests < whole.requests == trace.requests
        assert (whole.policy, whole.sessions) == (name, 3)
        assert whole.evicted_tokens > 0
        assert whole.rate == whole.requests / whole.seconds


def test_what_is_held_is_looked_at_in_both_passes() -> None:
    trace = generate(GeneratorOptions(sessions=2, max_context=40_000))
    first, second = replay_throughput.held(trace, 2, "penelope", 50_048)
    longest = 4 * 40_000 / 64 / 2**20
    for seen in (first, second):
        assert seen.policy == "penelope"
        # At least a request's key, and no more than one for each node.
        assert longest / 4 < seen.keys_mib < longest * seen.nodes


def test_the_index_of_a_fleet_is_measured_whole_and_bounded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = [routing.Size(replicas=3, histories=n, blocks=14) for n in (5, 50)]
    memory, times = routing.run(sizes, most_blocks=100)
    assert [one.blocks for one in memory] == [10 + 5 * 4, 100]
    assert all(one.mib > 0 and one.bytes_per_block > 0 for one in memory)
    assert {one.operation for one in times} == {
        *("index.held", "held and choose", "store and remove a history")
    }
    assert f"{50 * 4 + 10 - 100} dropped" in capsys.readouterr().out
