"""How things are measured and reported here.

Machines differ and are shared, so time is CPU time of the thread, and what is judged are ratios
within one run: the sizes take turns, a few samples at a time, so that a disturbance meets all of
them.  The garbage collector runs as it would in a service.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import thread_time_ns

from penelope.runtime.outputs import OutputError, check_writable, write_whole

ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of CPU time of one operation at one size."""

    operation: str
    size: int
    median_us: float
    p99_us: float
    samples: int


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar that was set beforehand, and how the measurement stands to it."""

    name: str
    goal: str
    figure: str
    met: bool


Sample = Callable[[], object]
"""The operation, prepared: calling it is what takes the time."""


def measure(
    cases: Iterable[tuple[str, int, Callable[[], Sample]]], samples: int = 300
) -> list[Timing]:
    """Time every case (operation, size, how to prepare one sample), round by round."""
    cases = list(cases)
    taken: list[list[int]] = [[] for _ in cases]
    for _ in range(ROUNDS):
        for (_, _, prepare), times in zip(cases, taken, strict=True):
            for _ in range(max(1, samples // ROUNDS)):
                sample = prepare()
                began = thread_time_ns()
                sample()
                times.append(thread_time_ns() - began)
    return [
        Timing(
            operation,
            size,
            statistics.median(times) / 1e3,
            sorted(times)[math.ceil(0.99 * len(times)) - 1] / 1e3,
            len(times),
        )
        for (operation, size, _), times in zip(cases, taken, strict=True)
    ]


def growth(points: Sequence[tuple[float, float]]) -> float:
    """The exponent e of the best fit y ~ x**e: 0 constant, 1 linear."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    return statistics.linear_regression(*zip(*logs, strict=True)).slope


def by_operation(timings: Sequence[Timing]) -> dict[str, list[Timing]]:
    found: dict[str, list[Timing]] = {}
    for timing in timings:
        found.setdefault(timing.operation, []).append(timing)
    return found


def show(title: str, timings: Sequence[Timing]) -> None:
    """A row an operation: median and 99th percentile at each size, and how they grow."""
    sizes = sorted({timing.size for timing in timings})
    print(f"\n{title}\nCPU microseconds, median (p99)")
    print("  ".join([f"{'':24}", *(f"{size:>16,}" for size in sizes), "  growth"]))
    for operation, row in by_operation(timings).items():
        cells = {t.size: f"{t.median_us:9.1f} ({t.p99_us:.0f})" for t in row}
        slope = f"{growth([(t.size, t.median_us) for t in row]):8.2f}" if len(row) > 1 else ""
        print("  ".join([f"{operation:24}", *(f"{cells.get(s, ''):>16}" for s in sizes), slope]))


def show_bars(bars: Sequence[Bar]) -> None:
    print()
    for bar in bars:
        print(f"{'met   ' if bar.met else 'MISSED'}  {bar.name}: {bar.figure} (bar: {bar.goal})")


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()}",
    }


def arguments(description: str | None) -> argparse.Namespace:
    """`quick` and `json`, from the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--quick", action="store_true", help="small sizes and few samples")
    given = parser.parse_args()
    if given.json is not None:
        try:
            check_writable(given.json)
        except OutputError as error:
            parser.error(str(error))
    return given


def report(bars: Sequence[Bar], figures: dict[str, object], path: Path | None) -> None:
    """Print the bars and the machine; write everything to `path` if there is one."""
    found = machine()
    show_bars(bars)
    print("\n" + ", ".join(f"{name} {value}" for name, value in found.items()))
    if path is not None:
        document = {"machine": found, "bars": [asdict(bar) for bar in bars], **figures}
        text = json.dumps(document, indent=2) + "\n"
        write_whole(path, lambda beside: _put(beside, text))


def _put(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
