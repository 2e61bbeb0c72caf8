"""What running a phantom beside its request costs, against the same work as two requests."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from benchmarks.sglang_cpu.playing import text_of
from benchmarks.sglang_cpu.servers import Server, client_of, generate, together

NEW = 64


@dataclass(frozen=True, slots=True)
class CoBatching:
    hole_tokens: int
    phantom_and_request_s: float
    two_requests_s: float

    @property
    def ratio(self) -> float:
        return self.phantom_and_request_s / self.two_requests_s


async def measure(server: Server, pool: int, history: int, rounds: int) -> CoBatching:
    """Median over rounds that take turns.

    A: a history that lost its head is continued by NEW tokens: phantom and request, one batch.
    B: a whole cached history is continued by NEW tokens, and beside it an unrelated prompt as
    long as the hole, sent in the same call.
    """
    ours: list[float] = []
    apart: list[float] = []
    holes: list[int] = []
    async with client_of(server) as client:
        for number in range(rounds):
            server.flush()
            past = list(text_of(10_000_000 + number, history))
            await generate(client, past, 1)
            # Press until about a third of the history is gone, from its head on.
            for index, rest in enumerate(_pieces(pool - history + history // 3)):
                await generate(client, list(text_of(20_000_000 + 97 * number + index, rest)), 1)
            answer = await generate(client, past + list(text_of(30_000_000 + number, NEW)), 1)
            hole = history - answer.cached_tokens
            ours.append(answer.ttft)
            holes.append(hole)

            server.flush()
            await generate(client, past, 1)
            apart.append(
                await together(
                    client,
                    [
                        list(text_of(40_000_000 + number, hole)),
                        past + list(text_of(50_000_000 + number, NEW)),
                    ],
                )
            )
    return CoBatching(
        round(statistics.median(holes)), statistics.median(ours), statistics.median(apart)
    )


def _pieces(tokens: int) -> list[int]:
    return [min(1000, tokens - start) for start in range(0, tokens, 1000)]
