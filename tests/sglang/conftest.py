"""Engines for the tests: started once for each set of start-up flags, one at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from penelope.sglang_adapter import random_model
from tests.sglang.harness import Engine


@pytest.fixture(scope="session", autouse=True)
def sglang_is_installed() -> None:
    pytest.importorskip("sglang", reason="SGLang is not installed: pip install '.[sglang]'")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model.build(tmp_path_factory.mktemp("model") / "tiny-qwen3")


@pytest.fixture
def sglang_settings() -> Iterator[None]:
    """For `Steps`, which use more of SGLang than its pools."""
    from tests.sglang.steps import published

    with published():
        yield


class Engines:
    """At most one engine runs at a time: the next one's flags replace it."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.running: Engine | None = None
        self.flags: tuple[Any, ...] = ()

    def get(self, variables: dict[str, str] | None = None, **arguments: Any) -> Engine:
        flags = (sorted((variables or {}).items()), sorted(arguments.items()))
        if self.running is None or self.flags != flags or self.running.process.poll() is not None:
            self.stop()
            self.running = Engine(self.model, variables=variables, **arguments)
            self.flags = flags
        return self.running

    def stop(self) -> None:
        if self.running is not None:
            self.running.stop()
            self.running = None


@pytest.fixture(scope="session")
def engines(model: Path) -> Iterator[Engines]:
    pool = Engines(model)
    yield pool
    pool.stop()


@pytest.fixture
def engine(engines: Engines) -> Iterator[Engine]:
    """The default engine, idle and empty; it must be alive and well afterwards."""
    try:
        found = _emptied(engines.get())
    except (AssertionError, RuntimeError):
        engines.stop()  # a test that failed has left it busy or dead
        found = _emptied(engines.get())
    yield found
    found.check_alive()


def _emptied(engine: Engine) -> Engine:
    engine.call("penelope_hold", steps=None)
    engine.call("penelope_fault", name="")
    engine.call("penelope_configure", **DEFAULTS)
    return engine


DEFAULTS: dict[str, Any] = {
    "pool": 16384,
    "chunk": 2048,
    "schedule": "fcfs",
    "position": "private-head",
    "granularity": "block",
    "block": 64,
    "rows": 32,
    "mixed": False,
}


SMOKE = (
    "test_under_pressure_equals_never_evicting[page16-private-head-block-",
    "test_under_pressure_equals_never_evicting[page16-tail-node-whole-",
    "test_a_wrong_refill_is_caught[page16-",
    "test_cached_tokens_counts_what_was_reused[page16]",
    "test_reported_logprobs_are_the_users_own[page16]",
)
"""The combinations that show in minutes whether the whole grid is worth running."""


GRID = re.compile(
    r"::test_under_pressure_equals_never_evicting"
    r"\[(?!page16-(?!no)|page1-no-overlap)(?!.*private-head-block)"
)
"""Policies other than the default, under start-up flags that change the same for all of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(f"::{name}" in item.nodeid for name in SMOKE):
            item.add_marker(pytest.mark.smoke)
        if GRID.search(item.nodeid):
            item.add_marker(pytest.mark.grid)


class ByEngine(LoadScopeScheduling):
    """The tests of one file that start an engine with the same flags run in one process, in order.

    They share its engine, and some read what the one before has left in it. `--dist loadgroup`
    would say the same with marks; it does not see them under pytest 9.2 (pytest-xdist 3.8).
    """

    def _split_scope(self, nodeid: str) -> str:
        flags = re.search(r"\[(page\d+)", nodeid)
        return nodeid.partition("::")[0] + (flags[1] if flags else "")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByEngine:
    return ByEngine(config, log)
