"""Requests a second of the replay, on one core, and what it holds, against the length of the trace.

The recorded trace is used where it lies beside the checkout; otherwise sessions are generated.
Time is CPU time of the process; reading or generating the trace is not part of it.  What the policy
core holds is its nodes and the keys that they view: looked at every few requests in a replay of its
own, which is not timed.
"""

from __future__ import annotations

import resource
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from time import process_time
from typing import NamedTuple

from benchmarks.measuring import Bar, arguments, growth, report
from penelope.cost import preset
from penelope.runtime.replay.caches import CoreCache
from penelope.runtime.replay.closed_loop import replay
from penelope.runtime.replay.compare import Setting, compare, largest_request
from penelope.runtime.replay.server import Server, Timing
from penelope.runtime.traces import GeneratorOptions, Trace, generate, load

RECORDED = Path(__file__).resolve().parents[1].parent / "shared" / "traces" / "weka-500.jsonl.gz"
SESSIONS = 500
GOALS = {"penelope": 5_000, "sglang-lru": 1_500}
"""Requests a second on one core, by policy."""
LOOK = 20
"""Requests from one look at what is held to the next."""


@dataclass(frozen=True, slots=True)
class Replayed:
    policy: str
    sessions: int
    requests: int
    seconds: float
    policy_seconds: float
    """Of these, in the policy core; the rest is the server model and the clients."""
    nodes_max: int
    evicted_tokens: int

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


class Held(NamedTuple):
    """What the policy core held at most."""

    policy: str
    nodes: int
    keys_mib: float
    """Of the distinct keys that the nodes view."""


def workload() -> Trace:
    if RECORDED.exists():
        return load(RECORDED)
    return generate(GeneratorOptions(sessions=SESSIONS))


def setting(device_tokens: int) -> Setting:
    cost = preset("qwen3-8b")
    # An H100 at some 40 % of its peak, as the command's default.
    timing = Timing(cost.flops_per_unit / 400e12)
    return Setting(cost, timing, device_tokens, concurrency=4)


def replayed(trace: Trace, sessions: int, policy: str, device_tokens: int) -> Replayed:
    began = process_time()
    result = compare([trace.group(0, sessions)], setting(device_tokens), [policy])
    seconds = process_time() - began
    s = result.policies[policy]
    return Replayed(
        policy, sessions, s.requests, seconds, s.policy_seconds, s.nodes_max, s.evicted_tokens
    )


def held(trace: Trace, sessions: int, policy: str, device_tokens: int) -> list[Held]:
    """What the state holds, at most, while the same sessions come a first and a second time."""
    group = trace.group(0, sessions)
    twice = replace(group, sessions=group.sessions * 2)
    given = setting(device_tokens)
    cache = CoreCache(given.config(policy, trace.unit_tokens))
    server = Server(cache, given.cost, given.timing, given.scheduler, trace.unit_tokens)
    answers = count()
    passes: list[list[Held]] = [[], []]

    def answered() -> None:
        number = next(answers)
        if number % LOOK == 0:
            nodes = cache.state.nodes
            keys = {id(node.key): len(node.key) for node in nodes.values()}
            seen = Held(policy, len(nodes), sum(keys.values()) / 2**20)
            passes[number >= group.requests].append(seen)

    replay(twice, server, given.concurrency, answered)
    return [Held(policy, *map(max, zip(*(h[1:] for h in one), strict=True))) for one in passes]


def run(*, quick: bool = False) -> tuple[list[Bar], dict[str, object]]:
    """Measure and print; the bars, and all figures."""
    trace = workload()
    whole = len(trace.sessions)
    lengths = [whole // 20] if quick else [whole // 8, whole // 4, whole // 2, whole]
    # The least that refuses no session: as much eviction as there can be.
    largest = max(largest_request(session) for session in trace.sessions)
    device = max(262_144, -(-largest // trace.unit_tokens) * trace.unit_tokens)
    print(f"\nReplay of {Path(trace.name).name}, 4 sessions at a time, {device:,} tokens of KV")
    print(f"{'policy':12} {'sessions':>8} {'requests':>9} {'CPU s':>7} {'in core':>8} {'req/s':>8}")
    runs = []
    for policy in GOALS:
        for sessions in lengths:
            r = replayed(trace, sessions, policy, device)
            runs.append(r)
            print(
                f"{policy:12} {sessions:8,} {r.requests:9,} {r.seconds:7.2f} "
                f"{r.policy_seconds / r.seconds:8.0%} {r.rate:8,.0f}",
                flush=True,
            )
    holds = {policy: held(trace, lengths[0], policy, device) for policy in GOALS}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of the process, the trace included: {memory:,.0f} MiB")
    found = []
    for policy, least in GOALS.items():
        own = [r for r in runs if r.policy == policy]
        goal = f"at least {least:,} requests/s on one core"
        last = own[-1]
        name = f"replay of {last.sessions} sessions with {policy}"
        found.append(Bar(name, goal, f"{last.rate:,.0f} requests/s", last.rate >= least))
        if len(own) > 1:
            slope = growth([(r.requests, r.seconds) for r in own])
            found.append(
                Bar(
                    f"time against the number of requests with {policy}",
                    "linear: exponent at most 1.15",
                    f"exponent {slope:.2f}",
                    slope <= 1.15,
                )
            )
        first, second = holds[policy]
        found.append(
            Bar(
                f"memory of {policy} when {lengths[0]} sessions come again",
                "bounded by the live state: at most 1.1 times what they took at first",
                f"{second.keys_mib:.2f} MiB of keys and {second.nodes:,} nodes at most, after "
                f"{first.keys_mib:.2f} and {first.nodes:,}",
                second.keys_mib <= 1.1 * first.keys_mib and second.nodes <= 1.1 * first.nodes,
            )
        )
    return found, {
        "replay": [asdict(r) for r in runs],
        "held": [h._asdict() for passes in holds.values() for h in passes],
        "peak_mib": memory,
    }


if __name__ == "__main__":
    given = arguments(__doc__)
    report(*run(quick=given.quick), given.json)
