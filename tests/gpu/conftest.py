"""Options, the stage, and the results of the GPU tests.

Tests that need the GPU carry the marker `gpu`; the others in this folder run anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measuring import machine

RESULTS = pytest.StashKey[dict[str, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("GPU tests")
    group.addoption("--model", help="folder, or name in the local cache (default Qwen/Qwen3-8B)")
    group.addoption(
        "--random-weights", action="store_true", help="Qwen3-8B's shape: nothing is downloaded"
    )
    group.addoption(
        "--agent-trace", help="trace for the TTFT comparison (default: a generated one)"
    )
    group.addoption("--results", type=Path, metavar="FILE", help="write the figures here")
    group.addoption("--rehearse", action="store_true", help="play the tests at toy size on the CPU")


# Equality first; then modules that share an engine, one after the other.
ORDER = ("helpers", "kernel_free", "equivalence", "single_request", "co_batching", "ttft")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    own = [i for i, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    ordered = sorted(
        (items[i] for i in own),
        key=lambda item: ORDER.index(item.path.stem.removeprefix("test_")),
    )
    for i, item in zip(own, ordered, strict=True):
        items[i] = item


def option(config: pytest.Config, name: str) -> Any:
    # The options are unknown when pytest was started on another folder.
    return config.getoption(name, default=None)


@pytest.fixture(scope="session")
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The `Stage`, or a skip that says what is missing."""
    config = request.config
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[sglang]'")
    from benchmarks.kernel_free.model import Shape
    from tests.gpu import stage as stages

    rehearsal = bool(option(config, "--rehearse"))
    found = stages.gpu()
    if found is None and not rehearsal:
        pytest.skip("no NVIDIA GPU here (nvidia-smi finds none); --rehearse plays on the CPU")
    pytest.importorskip("sglang", reason="SGLang is not installed: pip install '.[sglang]'")
    from tests.sglang import harness

    # Weights of 16 GB, kernels compiled at first use, graphs captured; prefills of 128K tokens.
    harness.START_SECONDS = 900
    harness.STEP_SECONDS = 600
    about = {**machine(), **({} if found is None or rehearsal else found)}
    memory = 0.0 if found is None else float(found["gpu_gb"])
    if rehearsal or option(config, "--random-weights"):
        shape = stages.TOY if rehearsal else Shape()
        dtype = "float32" if rehearsal else "bfloat16"
        folder = stages.write_config(tmp_path_factory.mktemp("model") / "qwen3", shape, dtype)
        return stages.Stage(stages.Model(folder, True, shape), about, rehearsal, memory)
    name = option(config, "--model") or stages.DEFAULT_MODEL
    path = stages.cached(name)
    if path is None:
        pytest.skip(
            f"{name} is neither a folder nor in the local Hugging Face cache: give --model, or "
            f"--random-weights to download nothing"
        )
    model = stages.Model(path, False, stages.shape_of(path))
    return stages.Stage(model, about, rehearsal, memory)


class Engines:
    """At most one set of engines runs at a time: another set replaces it."""

    def __init__(self, stage: Any) -> None:
        self.stage = stage
        self.running: dict[str, Any] = {}
        self.wanted: dict[str, dict[str, Any]] = {}

    def arguments(self, name: str) -> dict[str, Any]:
        """What the running engine of this name was started with."""
        return self.wanted[name]

    def get(self, **wanted: dict[str, Any]) -> Any:
        """Engines by name, with these arguments of `Stage.engine`; those that run are kept."""
        keys = {name: repr(sorted(arguments.items())) for name, arguments in wanted.items()}
        alive = all(e.process.poll() is None for _, e in self.running.values())
        if not alive or {n: key for n, (key, _) in self.running.items()} != keys:
            self.stop()
            self.wanted = wanted
            for name, arguments in wanted.items():
                self.running[name] = (keys[name], self.stage.engine(**arguments))
        return {name: engine for name, (_, engine) in self.running.items()}

    def stop(self) -> None:
        for _, engine in self.running.values():
            engine.stop()
        self.running = {}


@pytest.fixture(scope="session")
def engines(stage: Any) -> Iterator[Engines]:
    pool = Engines(stage)
    yield pool
    pool.stop()


@pytest.fixture(scope="session")
def record(request: pytest.FixtureRequest, stage: Any) -> Callable[..., None]:
    """Keep a test's figures for the summary and for `--results`."""
    stash = request.config.stash
    stash[RESULTS] = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": stage.machine,
        "rehearsal": stage.rehearsal,
        "model": "random weights" if stage.model.random else stage.model.path.name,
        "figures": {},
    }

    def keep(name: str, **figures: Any) -> None:
        stash[RESULTS]["figures"].setdefault(name, []).append(figures)

    return keep


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    found = config.stash.get(RESULTS, None)
    if found is None:
        return
    what = "REHEARSAL ON THE CPU: says nothing about a GPU" if found["rehearsal"] else "figures"
    terminalreporter.section(what)
    terminalreporter.line(", ".join(f"{k} {v}" for k, v in found["machine"].items()))
    for name, rows in found["figures"].items():
        for row in rows:
            terminalreporter.line(f"{name}: " + ", ".join(f"{k} {v}" for k, v in row.items()))
    target = option(config, "--results")
    if target is not None:
        target.write_text(json.dumps(found, indent=2) + "\n")
        terminalreporter.line(f"written to {target}")
