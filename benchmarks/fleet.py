"""Time and memory of a replayed fleet: `python -m benchmarks.fleet [--json FILE] [--quick]`.

Generated sessions, 156 at a time for each replica, up to 5,000 on 32; one core.  Time is CPU
time, generating the trace is not part of it, and memory is the process's peak with the trace in it.
"""

from __future__ import annotations

import resource
from dataclasses import asdict, dataclass
from time import process_time

from benchmarks.measuring import Bar, arguments, growth, report
from penelope.cost import preset
from penelope.runtime.replay.compare import Setting, fitting, replay_under
from penelope.runtime.replay.fleet import FleetSetting
from penelope.runtime.replay.server import Scheduler, Timing
from penelope.runtime.traces import GeneratorOptions, generate

DEVICE = 262_144
EACH = 5000 / 32
"""Sessions at a time for each replica."""
SIZES = (2, 8, 32)
MINUTES = 10
ROUTERS = ("session", "cost")


@dataclass(frozen=True, slots=True)
class Replayed:
    router: str
    replicas: int
    sessions: int
    requests: int
    seconds: float
    mib: float
    """Peak of the process so far: sizes grow, so it is this one's."""


def replayed(router: str, replicas: int, each: float = EACH) -> Replayed:
    sessions = int(each * replicas)
    trace = generate(GeneratorOptions(sessions=sessions))
    cost = preset("qwen3-8b")
    setting = Setting(
        cost,
        Timing(cost.flops_per_unit / 400e12),
        DEVICE,
        sessions,
        Scheduler.FCFS,
        fleet=FleetSetting(replicas, router),
    )
    (group,) = fitting([trace], setting)
    began = process_time()
    done = replay_under(group, setting, "penelope", lambda: None)
    seconds = process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Replayed(router, replicas, sessions, done.counters.requests, seconds, peak)


def run(*, quick: bool = False, each: float = EACH) -> tuple[list[Bar], dict[str, object]]:
    """Measure and print; the bars, and all figures."""
    print(f"\nA replayed fleet, {each:.0f} sessions at a time for each replica")
    print(f"{'router':8} {'replicas':>8} {'sessions':>8} {'requests':>9} {'CPU s':>7} {'MiB':>6}")
    runs: list[Replayed] = []
    for replicas in SIZES[:1] if quick else SIZES:
        for router in ROUTERS:
            r = replayed(router, replicas, each)
            runs.append(r)
            print(
                f"{router:8} {replicas:8} {r.sessions:8,} {r.requests:9,} {r.seconds:7.1f} "
                f"{r.mib:6,.0f}",
                flush=True,
            )
    bars = []
    for router in ROUTERS:
        own = [r for r in runs if r.router == router]
        last = own[-1]
        took = f"{last.seconds / 60:.1f} minutes of one core"
        bars.append(
            Bar(
                f"{last.sessions:,} sessions on {last.replicas} replicas by {router}",
                f"at most {MINUTES} minutes",
                took,
                last.seconds <= 60 * MINUTES,
            )
        )
        if len(own) > 1:
            slope = growth([(r.requests, r.seconds) for r in own])
            bars.append(
                Bar(
                    f"time against requests and replicas by {router}",
                    "exponent at most 1.3: a choice looks at every replica",
                    f"exponent {slope:.2f}",
                    slope <= 1.3,
                )
            )
    return bars, {"fleet": [asdict(r) for r in runs]}


if __name__ == "__main__":
    given = arguments(__doc__)
    report(*run(quick=given.quick), given.json)
