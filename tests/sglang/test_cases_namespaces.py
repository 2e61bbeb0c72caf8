"""Faults from the field on the engine: KV that is another's although the tokens are the same."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sglang import workload
from tests.sglang.conftest import DEFAULTS
from tests.sglang.harness import Engine

pytestmark = [pytest.mark.sglang, pytest.mark.smoke]

TOKENS = workload.text("weights", 200)
WHOLE = 192
"""Tokens of the whole pages in front of the last token."""


@pytest.fixture(scope="module")
def others(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with other weights."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("others") / "model"
    shutil.copytree(model, folder)
    for file in folder.glob("*.safetensors"):
        tensors = {name: tensor.roll(1, 0) for name, tensor in load_file(file).items()}
        save_file(tensors, file, metadata={"format": "pt"})
    return folder


@pytest.fixture
def restored(engine: Engine, model: Path) -> Iterator[Engine]:
    """An engine that has its own weights again afterwards."""
    try:
        yield engine
    finally:
        engine.call("penelope_hold", steps=None)
        engine.run(engine.ask("continue"))
        assert engine.run(update(engine, model, flush=True))[0]


async def update(engine: Engine, folder: Path, *, flush: bool) -> tuple[bool, str]:
    answer = await engine.ask("update_weights", model_path=str(folder), flush_cache=flush)
    return bool(answer[0]), str(answer[1])


def cached(answer: dict[str, Any]) -> int:
    return int(answer["meta_info"]["cached_tokens"])


@pytest.mark.parametrize("tiers", [{}, {"host": 1024, "swap": 64}], ids=["one-tier", "two-tiers"])
def test_case_80_kv_of_old_weights_is_not_found_after_an_update_without_a_flush(
    restored: Engine, others: Path, tiers: dict[str, int]
) -> None:
    engine = restored
    engine.call("penelope_configure", **{**DEFAULTS, "pool": 1024, **tiers})
    first = engine.run(engine.generate(TOKENS, "first", 4))
    engine.run(engine.generate(workload.text("press", 900), "press", 1))
    assert engine.run(update(engine, others, flush=False))[0]
    # What nobody uses is gone at once, in both tiers.
    left = engine.dump()
    assert (left["resident"], left["host_resident"], left["free_tokens"]) == ({}, {}, 1024)
    new = engine.run(engine.generate(TOKENS, "new", 4))
    again = engine.run(engine.generate(TOKENS, "again", 4))
    assert (cached(new), cached(again)) == (0, WHOLE)
    assert new["output_ids"] == again["output_ids"] != first["output_ids"]


@pytest.mark.parametrize("paused", [True, False], ids=["paused", "running"])
def test_two_updates_at_once_are_both_answered(
    restored: Engine, model: Path, others: Path, paused: bool
) -> None:
    """SGLang keeps one place for the answer, and nothing but a pause lets a second one take it."""
    engine = restored

    async def play() -> list[tuple[bool, str]]:
        if paused:
            await engine.ask("pause", mode="in_place")
        folders = (others, model, others)
        return list(await asyncio.gather(*(update(engine, f, flush=False) for f in folders)))

    answers = engine.run(play())
    assert all(success for success, _ in answers), answers
    engine.run(engine.ask("continue"))
    assert engine.run(engine.generate(TOKENS, "after", 4))["meta_info"]["cached_tokens"] == 0


@pytest.mark.parametrize("flush", [False, True], ids=["no-flush", "flush-refused"])
def test_case_80_a_request_that_runs_through_an_update_publishes_nothing_under_it(
    restored: Engine, others: Path, flush: bool
) -> None:
    """SGLang changes the weights of a paused engine; it does not flush while requests run."""
    engine = restored
    engine.call("penelope_configure", **{**DEFAULTS, "pool": 2048})
    clean = engine.run(_clean(engine, others))

    async def play() -> tuple[dict[str, Any], ...]:
        runs = asyncio.ensure_future(engine.generate(TOKENS, "runs", 150))
        await engine.until(lambda found: found["running"] == ["runs"])
        await engine.ask("pause", mode="in_place")
        done, message = await update(engine, others, flush=flush)
        assert done == (not flush), message
        held = await engine.look()
        assert held["live_receipts"] == 1
        assert 0 < held["old_weights"] <= WHOLE
        await engine.ask("continue")
        asks = await engine.generate(TOKENS, "asks", 4)
        return await runs, asks

    runs, asks = engine.run(play())
    assert len(runs["output_ids"]) == 150
    assert cached(asks) == 0
    assert asks["output_ids"] == clean
    # Its prompt is cached because somebody else asked for it, and nothing that it said.
    history = [*TOKENS, *runs["output_ids"], 1]
    follows = engine.run(engine.generate(history, "follows", 1))
    assert cached(follows) == WHOLE
    # What it left is what goes first.
    assert engine.dump()["old_weights"] > 0
    engine.run(engine.generate(workload.text("press", 1690), "press", 1))
    assert engine.dump()["old_weights"] == 0
    assert cached(engine.run(engine.generate(history, "later", 1))) > WHOLE


async def _clean(engine: Engine, others: Path) -> list[int]:
    """What the other weights answer on an empty cache; then the cache is empty again."""
    mine = await engine.generate(TOKENS, "mine", 4)
    assert (await update(engine, others, flush=True))[0]
    answer = await engine.generate(TOKENS, "clean", 4)
    assert answer["output_ids"] != mine["output_ids"]
    assert await engine.ask("flush")
    return list(answer["output_ids"])


def test_case_79_a_request_with_embeddings_of_its_own_bypasses_the_cache(engine: Engine) -> None:
    """The same tokens with other vectors in some places: neither finds the other's KV."""
    plain = engine.run(engine.generate(TOKENS, "plain", 8))
    answers = []
    for index in range(2):
        source = random.Random(index)
        vectors = [[source.gauss(0, 1) for _ in range(64)] for _ in range(3)]
        own = (vectors, [20, 21, 150])
        for turn in range(2):
            rid = f"own{index}.{turn}"
            answer = engine.run(engine.generate(TOKENS, rid, 8, embeddings=own))
            assert cached(answer) == 0
            answers.append(tuple(answer["output_ids"]))
    assert len(set(answers)) == 2
    assert answers[0] == answers[1]
    assert tuple(plain["output_ids"]) not in answers
    after = engine.run(engine.generate(TOKENS, "after", 8))
    assert (cached(after), after["output_ids"]) == (WHOLE, plain["output_ids"])
    assert len(engine.dump()["resident"]) == (200 + 8 - 1) // 16 * 16
