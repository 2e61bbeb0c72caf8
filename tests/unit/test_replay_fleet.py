"""A replay on several servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from penelope.policy import POLICIES, Key
from penelope.policy.errors import InvalidConfigError
from penelope.runtime.announcing import Announce
from penelope.runtime.replay.caches import CoreCache
from penelope.runtime.replay.closed_loop import Replayed, replay
from penelope.runtime.replay.compare import Setting, compare, first_time_cost, replay_under
from penelope.runtime.replay.fleet import ALONE, Failure, Fleet, FleetSetting
from penelope.runtime.replay.options import Options, failures
from penelope.runtime.replay.routers import (
    Asked,
    PrefixAware,
    Replica,
    Routed,
    Router,
    block_names,
)
from penelope.runtime.replay.server import Server
from penelope.runtime.traces import GeneratorOptions, Trace, generate
from tests.unit.replaying import TIMING, TOY, setting

SESSIONS = 12
HEARD = ("prefix", "cost")


@pytest.fixture(scope="module")
def workload() -> Trace:
    return generate(GeneratorOptions(sessions=SESSIONS, seed=3))


def cell(trace: Trace, fleet: FleetSetting = ALONE, concurrency: int = SESSIONS) -> Setting:
    largest = max(
        t.in_tokens + t.out_tokens for s in trace.sessions for q in s.streams for t in q.turns
    )
    capacity = -(-largest // trace.unit_tokens) * trace.unit_tokens
    plain = setting(1, concurrency=concurrency, timing=TIMING, block_tokens=None)
    return replace(plain, device_tokens=capacity, fleet=fleet)


def run(trace: Trace, fleet: FleetSetting, policy: str = "penelope", n: int = SESSIONS) -> Replayed:
    return replay_under(trace, cell(trace, fleet, n), policy, lambda: None)


@pytest.mark.parametrize("policy", ["sglang-lru", "penelope"])
def test_sessions_that_stay_are_replays_of_their_own(workload: Trace, policy: str) -> None:
    """All at once and each at home: every replica serves as if it were alone with its sessions."""
    homes: dict[int, list[int]] = {}

    class Noting(Router):
        def route(self, asked: Asked, alive: Sequence[Replica]) -> Routed:
            home = asked.session % 3
            mine = homes.setdefault(home, [])
            if asked.session not in mine:
                mine.append(asked.session)
            return Routed(alive[home], asked.in_tokens)

    one = cell(workload)
    config, unit = one.config(policy, workload.unit_tokens), workload.unit_tokens
    servers = [Server(CoreCache(config), TOY, TIMING, one.scheduler, unit) for _ in range(3)]
    together = replay(workload, Fleet(servers, Noting()), SESSIONS)
    alone: list[float] = []
    spans: list[float] = []
    for number, mine in homes.items():
        part = replace(workload, sessions=tuple(workload.sessions[i] for i in sorted(mine)))
        done = replay_under(part, one, policy, lambda: None)
        alone += done.ttft
        spans += done.jct
        for name in ("computed_tokens", "evicted_tokens", "holes", "requests"):
            assert getattr(done.counters, name) == getattr(servers[number].counters, name)
    assert sorted(together.ttft) == sorted(alone)
    assert sorted(together.jct) == sorted(spans)


@pytest.mark.parametrize("mode", Announce)
@pytest.mark.parametrize("router", HEARD)
def test_a_router_knows_what_was_announced_and_nothing_else(
    workload: Trace, router: str, mode: Announce
) -> None:
    """After every event, heard at once: its index is what the trees are said to hold."""
    chosen = FleetSetting(3, router, mode)
    trace = replace(workload, sessions=workload.sessions[:6])
    one = cell(trace, chosen)
    config, unit = one.config("penelope", trace.unit_tokens), trace.unit_tokens
    servers = [Server(CoreCache(config), TOY, TIMING, one.scheduler, unit) for _ in range(3)]
    fleet = chosen.fleet(servers, TOY, unit)
    assert isinstance(fleet.router, PrefixAware)
    index, checked = fleet.router._index, Counter[str]()

    def check() -> None:
        fleet._listen(fleet._now)
        expected: set[tuple[int, int]] = set()
        for number, server in enumerate(servers):
            assert isinstance(server.cache, CoreCache)
            nodes = server.cache.state.nodes
            for node in nodes.values():
                if node.parent is None:
                    continue
                held = node.residency.value != "hole"
                above, whole = node, True
                while above.parent is not None:
                    whole = whole and above.residency.value != "hole"
                    above = nodes[above.parent]
                checked["holes"] += not held
                told = {Announce.STICKY: True, Announce.EXACT: held, Announce.PREFIX: whole}[mode]
                if told:
                    names = block_names(Key(node.key[: node.end * 4]))
                    expected.update((number, name) for name in names[node.start :])
        known = {
            (number, block)
            for block, bits in index._holders.items()
            for number in range(3)
            if bits >> number & 1
        }
        assert known == expected
        checked["times"] += 1

    replay(trace, fleet, 6, check)
    assert checked["times"] > 30
    assert checked["holes"]


def test_what_comes_late_is_known_late(workload: Trace) -> None:
    late = run(workload, FleetSetting(3, "prefix", event_lag_s=1e12))
    assert isinstance(late.fleet.router, PrefixAware)
    assert len(late.fleet.router._index) == 0, "nothing has arrived in time"

    class Idlest(Router):
        def route(self, asked: Asked, alive: Sequence[Replica]) -> Routed:
            return Routed(min(alive, key=lambda r: (r.open, r.number)), asked.in_tokens)

    one, unit = cell(workload), workload.unit_tokens
    config = one.config("penelope", unit)
    servers = [Server(CoreCache(config), TOY, TIMING, one.scheduler, unit) for _ in range(3)]
    assert late.ttft == replay(workload, Fleet(servers, Idlest()), SESSIONS).ttft
    soon = run(workload, FleetSetting(3, "prefix"))
    assert isinstance(soon.fleet.router, PrefixAware)
    assert len(soon.fleet.router._index) > 0
    assert soon.ttft != late.ttft


@pytest.mark.parametrize("router", ["round-robin", "session", *HEARD])
def test_the_same_work_is_done_and_the_same_twice(workload: Trace, router: str) -> None:
    chosen = FleetSetting(3, router)
    found = compare([workload], cell(workload, chosen, 5), ["sglang-lru", "penelope"])
    again = compare([workload], cell(workload, chosen, 5), ["sglang-lru", "penelope"])
    for name, one in found.policies.items():
        same = replace(again.policies[name], policy_seconds=one.policy_seconds)
        assert one == same
        assert one.requests == workload.requests
        assert one.busy_max >= 1
    # Whoever computes it: what is computed for the first time is the workload's.
    fleet, alone = run(workload, chosen, n=5), run(workload, ALONE, n=5)
    assert first_time_cost(fleet.counters) == first_time_cost(alone.counters)


@pytest.mark.parametrize("router", ["round-robin", "session", *HEARD])
def test_a_replica_that_fails_loses_no_request(workload: Trace, router: str) -> None:
    whole = run(workload, FleetSetting(3, router))
    half = whole.ended_s / 2
    done = run(workload, FleetSetting(3, router, failures=(Failure(1, half),)))
    assert len(done.ttft) == workload.requests == len(whole.ttft)
    assert len(done.jct) == SESSIONS
    assert done.fleet.rerouted > 0
    assert done.counters.requests == workload.requests + done.fleet.rerouted
    failed = done.fleet.servers[1].counters.requests
    assert 0 < failed < whole.fleet.servers[1].counters.requests + done.fleet.rerouted
    for replica in done.fleet.replicas:
        if replica.number != 1:
            assert (replica.open, replica.queued_tokens, replica.queued_cost) == (0, 0, 0)
            assert replica.running_tokens == 0
    # Before its time nothing is different.
    early = [a for a, b in zip(done.ttft, whole.ttft, strict=True) if a == b]
    assert len(early) > len(done.ttft) / 10


def test_the_last_one_alive_does_not_fail() -> None:
    fleet = Fleet([])
    fleet.replicas = fleet._alive = [Replica(0)]
    assert fleet.fail(0) == []
    assert fleet.alive(0)


@pytest.mark.parametrize(
    ("fleet", "policies", "host", "said"),
    [
        (FleetSetting(0), (), 0, "--replicas is 0"),
        (FleetSetting(2000), (), 0, "give 1 to 1024"),
        (FleetSetting(2, "best"), (), 0, "--router best is not known"),
        (FleetSetting(2, "cost", event_lag_s=-1.0), (), 0, "--event-lag is -1"),
        (FleetSetting(2, "cost", event_lag_s=float("nan")), (), 0, "--event-lag is nan"),
        (FleetSetting(2, "cost"), ("ttl",), 0, "policy 'ttl' tells no router"),
        (FleetSetting(2, "session"), ("clairvoyant",), 0, "the future of one server"),
        (FleetSetting(2, "cost", Announce.EXACT), ("penelope",), 640, "tier by tier"),
        (FleetSetting(2, failures=(Failure(2, 1.0),)), (), 0, "--fail 2@1 cannot be"),
        (FleetSetting(2, failures=(Failure(0, -1.0),)), (), 0, "--fail 0@-1 cannot be"),
        (FleetSetting(2, failures=(Failure(0, 1), Failure(1, 2))), (), 0, "leave one alive"),
        (FleetSetting(3, failures=(Failure(0, 1), Failure(0, 2))), (), 0, "twice"),
    ],
)
def test_what_cannot_be_is_refused(
    fleet: FleetSetting, policies: tuple[str, ...], host: int, said: str
) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        fleet.check(policies, host)


def test_what_can_be_is_not() -> None:
    FleetSetting(3, "cost").check(tuple(POLICIES), 640)
    FleetSetting(2, "session").check(("ttl",), 0)
    FleetSetting(1).check(("clairvoyant",), 0)
    assert failures("1@600, 2@9.5") == (Failure(1, 600.0), Failure(2, 9.5))
    assert Options(replicas=2, router="cost", event_lag=0.5).setting().fleet == FleetSetting(
        2, "cost", event_lag_s=0.5
    )
    for wrong in ("1", "1@", "@2", "x@1", "1@x"):
        with pytest.raises(InvalidConfigError, match="give replica@seconds"):
            failures(wrong)
    with pytest.raises(InvalidConfigError, match="--kv-events all is not known"):
        Options(kv_events="all").setting()
