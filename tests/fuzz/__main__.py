"""Run the fuzzer for a while: `make fuzz-cli ARGS="--minutes 30 --seed 1"`.

Each round takes the next seed and gives every property some examples; what fails is printed with
its seed and its smallest example, and makes the status 1.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, Verbosity, seed, settings

settings.register_profile(
    "fuzz",
    max_examples=60,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    verbosity=Verbosity.normal,
)
settings.load_profile("fuzz")  # before the properties are defined


def properties() -> dict[str, Callable[[], Any]]:
    from tests.fuzz import test_fuzz_cli as module

    return {n: f for n, f in vars(module).items() if n.startswith("test_")}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz-cli", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0, help="Of the first round.")
    parser.add_argument("--only", default="", help="Part of a property's name.")
    given = parser.parse_args()
    chosen = {n: f for n, f in properties().items() if given.only in n}
    began, number, rounds, failed = time.monotonic(), given.seed, 0, 0
    while time.monotonic() - began < 60 * given.minutes:
        for name, run in chosen.items():
            try:
                seed(number)(run)()
            except BaseException as error:
                sys.stdout.write(f"seed {number}, {name}:\n")
                traceback.print_exc(file=sys.stdout)
                if not isinstance(error, Exception):
                    raise
                failed += 1
        rounds, number = rounds + 1, number + 1
        spent = timedelta(seconds=round(time.monotonic() - began))
        sys.stdout.write(f"seed {number - 1} done; {rounds} rounds in {spent}, {failed} failures\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
