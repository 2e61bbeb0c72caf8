"""Break each rule of the policy core once, and see which test notices.

    python tools/broken_rules.py [NAME …]
    python tools/broken_rules.py --classic

Works on a copy in a temporary directory.  Prints, for every broken rule, the test that failed and
the named invariant or the comparison that it failed on.  With --classic, takes only the rules whose
breach is a classic mistake, and runs only the test that the list names for it.  The list is
broken_rules.toml.  Exit status: 0 when every broken rule was noticed, 1 when one survived, 2 when
the list is out of date or the tests fail without it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
ALL: Final = tuple(
    f"tests/property/test_{name}.py"
    for name in ("shrunk", "walks", "machine", "shatter", "two_tiers")
)
"""The fast tests that know the rules and not the examples."""


class Broken(NamedTuple):
    rule: str
    file: str
    right: str
    wrong: str
    mistake: str
    """The classic mistake that this is; empty if it is none."""
    test: str
    """The test that is there for it."""


def rules() -> list[Broken]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return [
        Broken(
            r["name"], r["file"], r["right"], r["wrong"], r.get("mistake", ""), r.get("test", "")
        )
        for r in tomllib.loads(text)["rule"]
    ]


def python(folder: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run these tests of the core on what is in this folder."""
    options = ["-x", "-q", "-m", "not slow", "--hypothesis-profile=find", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *tests, *options, "--timeout=120"],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def noticed(folder: Path, broken: Broken, tests: Sequence[str]) -> str | None:
    """What noticed the broken rule, and what it said; None when nothing did."""
    path = folder / "penelope" / "policy" / f"{broken.file}.py"
    right = path.read_text(encoding="utf-8")
    path.write_text(right.replace(broken.right, broken.wrong), encoding="utf-8")
    done = python(folder, tests)
    path.write_text(right, encoding="utf-8")
    if done.returncode == 0:
        return None
    failed = re.search(r"^FAILED \S*/(\S+)", done.stdout, re.MULTILINE)
    named = re.search(r"invariant='([\w-]+)'", done.stdout)
    if named:
        what = named[1]
    else:
        lines = re.findall(r"^(?:>|E  ) +(.+)$", done.stdout.split("FAILURES")[-1], re.MULTILINE)
        what = next((line for line in reversed(lines) if "assert" in line), lines[0])[:60]
    return f"{what:60} {failed[1] if failed else 'the tests do not start'}"


def main(wanted: list[str]) -> int:
    classic = wanted == ["--classic"]
    chosen = [b for b in rules() if b.mistake or not classic]
    if not classic:
        chosen = [b for b in chosen if not wanted or any(w in b.rule for w in wanted)]
    survived = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        ignore = shutil.ignore_patterns("__pycache__", "sglang*")
        for name in ("penelope", "spec", "tests"):
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", folder)
        for broken in chosen:
            source = folder / "penelope" / "policy" / f"{broken.file}.py"
            if source.read_text(encoding="utf-8").count(broken.right) != 1:
                print(f"{broken.rule}: not in {broken.file}.py any more, or twice: update the list")
                return 2
        every = sorted({b.test for b in chosen}) if classic else ALL
        if (unbroken := python(folder, every)).returncode:
            print(unbroken.stdout, "the tests fail although nothing is broken", sep="\n")
            return 2
        for broken in chosen:
            by = noticed(folder, broken, [broken.test] if classic else ALL)
            survived += by is None
            told = f"{broken.mistake:76} {broken.file:12}" if classic else f"{broken.rule:42}"
            print(told, (by and (by.split()[-1] if classic else by)) or "SURVIVED", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} broken rules were noticed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
