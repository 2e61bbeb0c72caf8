"""A cached history that lost an exact part of its KV, on a real engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.gpu.judging import DEFAULTS
from tests.sglang import workload
from tests.sglang.harness import Engine

BLOCK = 64


@dataclass(frozen=True, slots=True)
class Scene:
    """
    history  |== shared ==|============ private ============|+ append +|
             0          start                            context
    beside   |== shared ==|=|
    """

    context: int
    start: int
    evict: int
    append: int
    chunk: int
    seed: int = 0

    def history(self) -> list[int]:
        return workload.text((self.seed, "history"), self.context)

    def question(self) -> list[int]:
        return self.history() + workload.text((self.seed, "question"), self.append)


async def set_up(engine: Engine, scene: Scene, *, position: str) -> None:
    """Cache the history, make its beginning a shared prefix, evict `scene.evict` tokens of it.

    What evicts is another history that needs just so much more than is free.
    """
    history = scene.history()
    # Free before the pressure, and enough afterwards to answer the question without more.
    free = (scene.append // BLOCK + 4) * BLOCK
    pool = scene.context + BLOCK + free
    # Half a block less than would do, since admission asks for a page or a token more.
    pressure = free + scene.evict - BLOCK // 2
    await engine.ask(
        "call", method="penelope_configure",
        **{**DEFAULTS, "pool": pool, "chunk": scene.chunk, "position": position, "block": BLOCK},
    )  # fmt: skip
    await engine.generate(history, "history", 1)
    # Later than the history, so that the history is the least recently used.
    beside = history[: scene.start] + workload.text((scene.seed, "beside"), BLOCK)
    await engine.generate(beside, "beside", 1)
    await engine.generate(workload.text((scene.seed, "pressure"), pressure), "pressure", 1)


async def ask(engine: Engine, scene: Scene) -> dict[str, Any]:
    """The next request of the history: one token, so that its latency is its prefill's."""
    return await engine.generate(scene.question(), "question", 1)
