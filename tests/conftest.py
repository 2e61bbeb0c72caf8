"""Hypothesis profiles, shared by every test.

`HYPOTHESIS_PROFILE=deep pytest tests/property` and `--hypothesis-profile=deep` mean the same; the
option wins.  For a state machine `max_examples` counts whole histories, and each profile sets their
length too.
"""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, Phase, settings

# A job in the background of a script ignores Ctrl-C, and so would every process that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Their assertions are most of the tests: show what they compared.
pytest.register_assert_rewrite(*(f"tests.property.{name}" for name in ("twin", "ledger", "tiers")))

# Deadlines off: the machines that run this are shared, and a slow example is not a wrong one.
_COMMON = settings(
    deadline=None,
    print_blob=True,
    # Histories are drawn step by step from what the cache holds, which is slow to generate.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

settings.register_profile("fast", _COMMON, max_examples=40, stateful_step_count=30)
settings.register_profile("default", _COMMON, max_examples=300, stateful_step_count=50)
# At least 100,000 steps: the walks alone take so many (tests/property/test_walks.py).
settings.register_profile("deep", _COMMON, max_examples=3000, stateful_step_count=100)
# To learn only whether something is wrong: the same draws every time, and no shrinking.
settings.register_profile(
    "find",
    _COMMON,
    max_examples=150,
    stateful_step_count=40,
    phases=(Phase.explicit, Phase.generate),
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
)
# For one mutant after another (tools/mutation.py): as little as kills nearly all of them.
settings.register_profile(
    "mutation", settings.get_profile("find"), max_examples=10, stateful_step_count=30
)
if find_spec("hypothesis_crosshair_provider"):  # `make crosshair`
    settings.register_profile(
        "crosshair", _COMMON, backend="crosshair", max_examples=30, database=None
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
