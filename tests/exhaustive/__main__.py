"""Explore the small worlds: a row for each, or the first violation and how to get there.

    python -m tests.exhaustive [--fast] [NAME …]

Exit status: 0 when nothing was wrong, 1 at a violation, 2 for a name that is none.
"""

from __future__ import annotations

import sys

from tests.exhaustive.explore import Explored, Found, World, explore
from tests.exhaustive.worlds import FAST, WORLDS


def row(name: str, world: World, done: Explored) -> str:
    """As in docs/assurance.md."""
    depth = f"{done.depth}" if world.depth else f"all, {done.depth}"
    return f"| {name} | {done.states:,} | {done.transitions:,} | {done.refused:,} | {depth} |"


def main(arguments: list[str]) -> int:
    chosen = FAST if "--fast" in arguments else WORLDS
    names = [argument for argument in arguments if not argument.startswith("--")]
    unknown = [name for name in names if name not in WORLDS]
    if unknown:
        print(f"no world '{unknown[0]}': choose from {'; '.join(WORLDS)}", file=sys.stderr)
        return 2
    seconds = 0.0
    for name in names or chosen:
        try:
            done = explore(WORLDS[name])
        except Found as found:
            print(f"{name}: {found.violation}", *found.program, sep="\n    ")
            return 1
        seconds += done.seconds
        print(f"{row(name, WORLDS[name], done)} {done.seconds:.1f} s", flush=True)
    print(f"nothing wrong, in {seconds:.0f} s of CPU time")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
