"""All benchmarks in one run: `python -m benchmarks [--json FILE] [--quick]`."""

from __future__ import annotations

from benchmarks import core_operations, replay_throughput
from benchmarks.measuring import arguments, report

if __name__ == "__main__":
    given = arguments(__doc__)
    operations, times = core_operations.run(quick=given.quick)
    replays, rates = replay_throughput.run(quick=given.quick)
    report(operations + replays, {**times, **rates}, given.json)
