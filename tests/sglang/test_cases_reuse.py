"""Faults from the field on the engine: a growing history is reused as far as its tokens allow.

Whatever else is switched on: of each turn's prompt all whole pages of the turn before are cached,
but for holes, and those are counted.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.sglang import workload
from tests.sglang.conftest import DEFAULTS, Engines
from tests.sglang.harness import Engine

pytestmark = pytest.mark.sglang

TURNS = 10

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunked": {"chunk": 64},
    "mixed": {"chunk": 64, "mixed": True},
    "lpm": {"schedule": "lpm"},
    "dfs-weight": {"schedule": "dfs-weight", "chunk": 128},
    "large blocks": {"block": 256},
    "two tiers": {"pool": 1536, "host": 4096, "swap": 256},
    "two tiers, chunked": {"pool": 1536, "host": 4096, "swap": 256, "chunk": 64, "mixed": True},
    "holes": {"pool": 2048},
    "holes, chunked": {"pool": 2048, "chunk": 64, "mixed": True},
}
FLAGS: list[Any] = [
    pytest.param({}, list(SETTINGS), id="page16", marks=pytest.mark.smoke),
    pytest.param(
        {"page_size": 1, "disable_overlap_schedule": True}, ["plain", "mixed", "holes"], id="page1"
    ),
    pytest.param({"page_size": 64}, ["plain", "mixed", "two tiers", "holes"], id="page64"),
]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("flags", "names"), FLAGS)
def test_case_76_every_turn_reuses_what_the_turn_before_has_left(
    engines: Engines, flags: dict[str, Any], names: list[str]
) -> None:
    engine = engines.get(**flags)
    for name in names:
        engine.call("penelope_configure", **{**DEFAULTS, **SETTINGS[name]})
        engine.run(_sessions(engine, name, flags.get("page_size", 16)))
        engine.check_alive()
        counted = engine.dump()["statistics"]
        if name.startswith("holes"):
            assert counted["phantom_tokens"] >= 100, name
        if name.startswith("two tiers"):
            assert counted["promoted_tokens"] >= 500, name


async def _sessions(engine: Engine, name: str, page: int) -> None:
    """Two sessions that speak at the same time, turn by turn, and strangers in between."""
    sessions = [workload.text((name, index), 150 + 10 * index) for index in range(2)]
    kept = [0, 0]
    pressed = name.startswith(("holes", "two tiers"))
    for turn in range(TURNS):
        before = (await engine.look())["statistics"]["phantom_tokens"]
        answers = await asyncio.gather(
            *(
                engine.generate(tokens, f"{name}.{index}.{turn}", 6)
                for index, tokens in enumerate(sessions)
            )
        )
        refilled = (await engine.look())["statistics"]["phantom_tokens"] - before
        cached = [answer["meta_info"]["cached_tokens"] for answer in answers]
        # Where nothing was refilled each session is checked by itself, else the two together.
        assert sum(cached) + refilled == sum(kept), (name, turn, cached, kept, refilled)
        assert refilled == 0 or name.startswith("holes"), (name, turn)
        assert all(c <= k for c, k in zip(cached, kept, strict=True))
        for index, answer in enumerate(answers):
            history = sessions[index] + list(answer["output_ids"])
            # The last token said was never computed.
            kept[index] = (len(history) - 1) // page * page
            sessions[index] = history + workload.text((name, index, turn), 31)
        if pressed:
            size = 1200 if name.startswith("two tiers") else 1250
            await engine.generate(workload.text((name, "press", turn), size), f"p{name}{turn}", 1)
