"""What a request costs in the policy, beside SGLang's own trees.

    python -m benchmarks.policy_overhead --trace weka-500.jsonl.gz --json FILE

A replay of agent sessions is recorded once; its matches, locks, evictions and insertions are then
carried out on the policy core behind the adapter's cache, on SGLang's `RadixCache` and on its
default, the unified tree in Rust, in one process, the arms taking turns every few requests.  One
arm has a hundred requests waiting in view besides.  Each tree has so many idle leaves, and between
the timed parts histories are added until it has them again.  Every request evicts as many tokens as
it is the first to have.

Times are CPU time of the thread, torch has one thread, and Python's garbage collector runs as
SGLang leaves it by default, with its usual thresholds and nothing frozen: whoever allocates pays.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from time import thread_time_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.measuring import Bar, growth, report
from benchmarks.policy_overhead_stream import Step, Stream, background, record, sessions
from penelope.policy.errors import PenelopeError
from penelope.runtime.outputs import check_writable

if TYPE_CHECKING:
    from benchmarks.policy_overhead_arms import Arm, Running

LEAVES = (1_000, 10_000, 50_000)
PAGES = (64, 1)
REQUESTS = 300
MANY = 50_000
"""Leaves from which on the goals of eviction are judged."""
ROUND = 30
"""Steps of the stream that an arm carries out before the next arm has its turn."""
SHARED, PRIVATE = 16, 4
"""Blocks that the histories in the background share, and of what each has for itself."""
TOTAL = "total"
OPERATIONS = ("match", "lock", "evict", "checkpoint", "insert", "unlock", TOTAL)


class Refusal(PenelopeError):
    """What was asked for cannot be measured here."""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of one operation; `total` is all that one request needs."""

    arm: str
    page_size: int
    leaves: int
    operation: str
    median_us: float
    p99_us: float
    mean_us: float
    samples: int


@dataclass(slots=True)
class Measured:
    """One arm at one size."""

    arm: Arm
    times: dict[str, list[int]]
    totals: dict[int, int]
    running: dict[int, Running]
    hits: list[int]
    """Tokens that each request found from the beginning without a gap."""
    evicted: int = 0
    filled: int = 0

    def timed(self, operation: str, request: int, began: int) -> None:
        took = thread_time_ns() - began
        self.times[operation].append(took)
        self.totals[request] += took


def carry_out(step: Step, to: Measured) -> None:
    """One step of the stream on one arm."""
    from benchmarks.policy_overhead_arms import Running

    arm, request = to.arm, step.request
    if step.kind == "admitted":
        to.totals[request] = 0
        arm.moves_up()
        running = to.running[request] = Running(step.tokens)
        began = thread_time_ns()
        hit, handle = arm.match(step.tokens)
        to.timed("match", request, began)
        to.hits.append(hit)
        began = thread_time_ns()
        arm.lock(running, handle)
        to.timed("lock", request, began)
        _evict(step, to)
    elif step.kind == "computed":
        running = to.running[request]
        began = thread_time_ns()
        arm.checkpoint(running)
        to.timed("checkpoint", request, began)
    else:
        running = to.running.pop(request)
        running.tokens = step.tokens
        _evict(step, to)
        began = thread_time_ns()
        arm.insert(running)
        to.timed("insert", request, began)
        began = thread_time_ns()
        arm.unlock(running)
        to.timed("unlock", request, began)


def _evict(step: Step, to: Measured) -> None:
    if step.grown:
        began = thread_time_ns()
        evicted = to.arm.evict(step.grown)
        to.timed("evict", step.request, began)
        to.evicted += evicted


def measure(stream: Stream, page_size: int, leaves: int) -> list[Measured]:
    """Feed the stream to every arm, each with so many histories in its tree."""
    from benchmarks.policy_overhead_arms import ARMS

    arms = [Measured(make(page_size), defaultdict(list), {}, {}, []) for make in ARMS.values()]
    for number in range(leaves):
        tokens = _background(stream, number)
        for to in arms:
            to.arm.fill(tokens)
            to.filled += 1
    gc.collect()  # nobody pays for what was set up
    steps = stream.steps()
    while taken := list(islice(steps, ROUND)):
        added: list[int] = []
        for to in arms:
            added = [_turn(stream, step, to, leaves, like) for step, like in _beside(taken, added)]
    return arms


def _turn(stream: Stream, step: Step, to: Measured, leaves: int, like: int) -> int:
    """Carry out a step, then restore the number of histories; how many that took."""
    carry_out(step, to)
    idle = to.arm.idle()
    missing = like if idle is None else leaves - idle
    for _ in range(missing):
        to.arm.fill(_background(stream, to.filled))
        to.filled += 1
    return max(0, missing)


def _beside(taken: list[Step], added: list[int]) -> list[tuple[Step, int]]:
    """Each step with what the arm before had to add: for a tree that does not count its leaves."""
    return list(zip(taken, added or [0] * len(taken), strict=True))


def _background(stream: Stream, number: int) -> array[int]:
    return background(number, SHARED, PRIVATE, stream.unit_tokens)


def costs(arms: Iterable[Measured], page_size: int, leaves: int) -> list[Cost]:
    found = []
    for to in arms:
        times = {**to.times, TOTAL: list(to.totals.values())}
        for operation in OPERATIONS:
            us = np.array(times[operation]) / 1e3
            median, p99 = (float(round(x, 2)) for x in np.percentile(us, (50, 99)))
            mean = float(round(us.mean(), 2))
            found.append(
                Cost(to.arm.name, page_size, leaves, operation, median, p99, mean, len(us))
            )
    return found


def exponent(row: Sequence[Cost]) -> float | None:
    """How the median grows with the number of histories: 0 not at all, 1 in proportion."""
    if len(row) < 2:
        return None
    return growth([(cost.leaves, max(cost.median_us, 0.01)) for cost in row])


def logarithmic(leaves: Sequence[int]) -> float:
    """The exponent that the best fit finds for the logarithm itself at these sizes."""
    return growth([(n, math.log(n)) for n in leaves])


def rows(found: Iterable[Cost]) -> dict[tuple[int, str, str], list[Cost]]:
    """By page size, operation and arm, in the order of the sizes."""
    grouped: dict[tuple[int, str, str], list[Cost]] = defaultdict(list)
    for cost in found:
        grouped[cost.page_size, cost.operation, cost.arm].append(cost)
    return grouped


def show(found: Sequence[Cost]) -> None:
    grouped = rows(found)
    for page_size in dict.fromkeys(cost.page_size for cost in found):
        sizes = list(dict.fromkeys(cost.leaves for cost in found))
        print(f"\nPages of {page_size}: CPU microseconds, median (p99), against leaves")
        print("  ".join([f"{'':37}", *(f"{size:>17,}" for size in sizes), " growth"]))
        for operation in OPERATIONS:
            for (page, named, arm), row in grouped.items():
                if (page, named) == (page_size, operation):
                    cells = (f"{c.median_us:10.1f} ({c.p99_us:.0f})" for c in row)
                    slope = exponent(row)
                    print(
                        f"{operation:11} {arm:25}  "
                        + "  ".join(f"{cell:>17}" for cell in cells)
                        + ("" if slope is None else f"  {slope:7.2f}")
                    )


def bars(found: Sequence[Cost]) -> list[Bar]:
    """The goals, with the figures."""
    from benchmarks.policy_overhead_arms import PENELOPE, PYTHON, RUST

    grouped = rows(found)
    judged: list[Bar] = []
    for (page, operation, arm), row in grouped.items():
        if (operation, arm) != (TOTAL, PENELOPE):
            continue
        for other, factor in ((PYTHON, 1.0), (RUST, 1.5)):
            for own, theirs in zip(row, grouped[page, TOTAL, other], strict=True):
                ratio = own.median_us / theirs.median_us
                judged.append(
                    Bar(
                        f"a request at {own.leaves:,} leaves, pages of {page}, against {other}",
                        f"at most {factor:g} times",
                        f"{ratio:.2f} times ({own.median_us:.0f} and {theirs.median_us:.0f} us)",
                        ratio <= factor,
                    )
                )
        own = grouped[page, "evict", PENELOPE][-1]
        for other, factor in ((RUST, 1), (PYTHON, 200)) if own.leaves >= MANY else ():
            theirs = grouped[page, "evict", other][-1]
            ratio = theirs.median_us / own.median_us
            judged.append(
                Bar(
                    f"evict at {own.leaves:,} leaves, pages of {page}, against {other}",
                    f"at least {factor} times cheaper" if factor > 1 else "cheaper",
                    f"{ratio:.1f} times ({own.median_us:.0f} and {theirs.median_us:.0f} us)",
                    ratio >= factor if factor > 1 else ratio > 1,
                )
            )
    return judged + _order_bars(grouped) + _growth_bars(grouped)


def _order_bars(grouped: dict[tuple[int, str, str], list[Cost]]) -> list[Bar]:
    """The expected cost with a full queue in view, against least recent use."""
    from benchmarks.policy_overhead_arms import PENELOPE, QUEUED, WAITING, WAITING_TOKENS

    judged: list[Bar] = []
    for page in dict.fromkeys(page for page, _, _ in grouped):
        pairs = zip(grouped[page, TOTAL, QUEUED], grouped[page, TOTAL, PENELOPE], strict=True)
        for own, theirs in pairs:
            ratio = own.median_us / theirs.median_us
            judged.append(
                Bar(
                    f"a request at {own.leaves:,} leaves, pages of {page}, {QUEUED} with "
                    f"{WAITING} requests of {WAITING_TOKENS:,} tokens waiting, against {PENELOPE}",
                    "at most 1.5 times",
                    f"{ratio:.2f} times ({own.median_us:.0f} and {theirs.median_us:.0f} us)",
                    ratio <= 1.5,
                )
            )
    return judged


def _agreement(trees: Sequence[dict[str, Any]]) -> Bar:
    """Three trees follow one policy, apart from the recency of what a match cuts off a node."""
    from benchmarks.policy_overhead_arms import LRU, PYTHON, RUST

    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for tree in trees:
        if tree["arm"] in {LRU, PYTHON, RUST}:
            found[tree["page_size"], tree["leaves"]].add(tree["hit_tokens"])
    same = sum(len(hits) == 1 for hits in found.values())
    return Bar(
        f"{LRU}, {PYTHON} and {RUST} find the same prefixes",
        "at every size",
        f"at {same} of {len(found)}",
        same == len(found),
    )


def _growth_bars(grouped: dict[tuple[int, str, str], list[Cost]]) -> list[Bar]:
    """Whichever operation of the core grows fastest."""
    from benchmarks.policy_overhead_arms import LRU, PENELOPE, QUEUED

    judged: list[Bar] = []
    for page in dict.fromkeys(page for page, _, _ in grouped):
        for arm in (PENELOPE, LRU, QUEUED):
            own = [(o, grouped[page, o, arm]) for o in OPERATIONS if o != TOTAL]
            slopes = [(slope, o) for o, row in own if (slope := exponent(row)) is not None]
            if slopes:
                slope, operation = max(slopes)
                limit = logarithmic([cost.leaves for cost in own[0][1]])
                judged.append(
                    Bar(
                        f"growth with the number of leaves, {arm}, pages of {page}",
                        f"no faster than its logarithm: exponent at most {limit:.2f}",
                        f"exponent {slope:.2f} ({operation})",
                        slope <= limit,
                    )
                )
    return judged


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, help="a recorded trace; without it one is generated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--quick", action="store_true", help="toy sizes: shows that it runs")
    parser.add_argument("--strict", action="store_true", help="fail where a goal is missed")
    parser.add_argument("--leaves", type=int, nargs="+", metavar="N", help="histories in the tree")
    parser.add_argument("--page-sizes", type=int, nargs="+", metavar="N", help="default 64 and 1")
    parser.add_argument("--requests", type=int, help=f"default {REQUESTS}")
    return parser.parse_args(argv)


def run(given: argparse.Namespace) -> tuple[list[Bar], dict[str, Any]]:
    """Measure and print; the goals, and all figures."""
    try:
        import sglang
        import torch
    except ImportError as error:
        raise Refusal(f"{error.name} is not installed: pip install '.[sglang]'") from None
    torch.set_num_threads(1)
    sizes = sorted(given.leaves or ((50, 200) if given.quick else LEAVES))
    pages = given.page_sizes or PAGES
    requests = given.requests or (30 if given.quick else REQUESTS)
    if min(*sizes, *pages, requests, 1) < 1 or any(64 % page for page in pages):
        raise Refusal("give sizes of at least 1, and page sizes that divide a block of 64 tokens")
    stream = record(sessions(given.trace, given.quick), requests)
    print(f"{stream.requests} requests of {stream.source}, {len(stream.events)} steps", flush=True)
    found: list[Cost] = []
    trees = []
    for page_size in pages:
        for leaves in sizes:
            arms = measure(stream, page_size, leaves)
            found += costs(arms, page_size, leaves)
            trees += [
                {
                    "arm": to.arm.name,
                    "page_size": page_size,
                    "leaves": leaves,
                    "idle_leaves_at_the_end": to.arm.idle(),
                    "hit_tokens": sum(to.hits),
                    "evicted_tokens": to.evicted,
                }
                for to in arms
            ]
            print(f"pages of {page_size}, {leaves:,} leaves: done", flush=True)
    show(found)
    growths = [
        {"page_size": page, "operation": operation, "arm": arm, "exponent": exponent(row)}
        for (page, operation, arm), row in rows(found).items()
    ]
    figures = {
        "command": ["python", "-m", "benchmarks.policy_overhead", *sys.argv[1:]],
        "sglang": sglang.__version__,
        "torch": torch.__version__,
        "stream": {
            "source": stream.source,
            "recorded": given.trace is not None,
            "requests": stream.requests,
            "steps": len(stream.events),
        },
        "garbage_collector": {"enabled": gc.isenabled(), "thresholds": gc.get_threshold()},
        "costs": [asdict(cost) for cost in found],
        "growth": growths,
        "trees": trees,
    }
    return [_agreement(trees), *bars(found)], figures


def main(argv: list[str] | None = None) -> int:
    given = arguments(argv)
    try:
        if given.json is not None:
            check_writable(given.json)
        judged, figures = run(given)
    except PenelopeError as error:
        print(f"policy_overhead: {error}", file=sys.stderr)
        return 2
    report(judged, figures, given.json)
    return 1 if given.strict and not all(bar.met for bar in judged) else 0


if __name__ == "__main__":
    sys.exit(main())
