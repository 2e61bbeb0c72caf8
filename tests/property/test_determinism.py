"""`determinism`: the same operations give the same states and effects in any process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from hypothesis import settings

from tests.property.digest import run

ROOT: Final = Path(__file__).parents[2]
STEPS: Final = {"mutation": 300, "fast": 300, "find": 300, "default": 1_000, "deep": 20_000}


def test_no_decision_depends_on_the_hash_seed_or_the_process() -> None:
    steps = STEPS[settings.get_current_profile_name()]
    digests = {run(steps)}
    for seed in ("0", "1", "4294967295"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "spec"))),
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.property.digest", str(steps)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1


def test_the_digest_tells_runs_apart() -> None:
    """Or the test above would pass on anything."""
    assert run(100) != run(200)
