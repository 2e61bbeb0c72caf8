"""Agent conversations: a shared prefix, growing histories, forks and tool-like appends."""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import dataclass, field
from typing import Any

from penelope.sglang_adapter.random_model import VOCABULARY
from tests.sglang.harness import Engine


@dataclass
class Conversation:
    name: str
    tokens: list[int]
    seed: int
    turns: int = 0
    spoken: list[tuple[str, list[int], dict[str, Any]]] = field(default_factory=list)
    """(request, its full history with the output, the engine's answer)."""


@dataclass(frozen=True)
class Shape:
    conversations: int = 10
    turns: int = 5
    shared: int = 96
    opening: int = 160
    tool: int = 90
    output: int = 8
    concurrency: int = 4
    forks: int = 2
    seed: int = 11


def text(seed: object, length: int) -> list[int]:
    source = random.Random(repr(seed))
    return [source.randrange(VOCABULARY) for _ in range(length)]


async def converse(engine: Engine, shape: Shape, **arguments: Any) -> list[Conversation]:
    """Play all turns; which conversation speaks next is drawn from the seed."""
    source = random.Random(shape.seed)
    common = text((shape.seed, "shared"), shape.shared)
    everyone = [
        Conversation(
            f"c{i}", common + text((shape.seed, i), shape.opening + source.randrange(40)), i
        )
        for i in range(shape.conversations)
    ]
    gate = asyncio.Semaphore(shape.concurrency)
    locks = {c.name: asyncio.Lock() for c in everyone}

    async def turn(conversation: Conversation) -> None:
        async with locks[conversation.name], gate:
            await speak(engine, conversation, shape, **arguments)

    schedule = [c for c in everyone for _ in range(shape.turns)]
    source.shuffle(schedule)
    half = len(schedule) // 2
    await asyncio.gather(*(turn(c) for c in schedule[:half]))
    # Sub-agents: they start from a copy of a running history and diverge.
    for i in range(shape.forks):
        parent = everyone[source.randrange(shape.conversations)]
        fork = Conversation(f"f{i}", parent.tokens[:-30] + text((shape.seed, "f", i), 70), 100 + i)
        locks[fork.name] = asyncio.Lock()
        everyone.append(fork)
        schedule += [fork] * 2
    await asyncio.gather(*(turn(c) for c in schedule[half:]))
    return everyone


async def speak(engine: Engine, conversation: Conversation, shape: Shape, **arguments: Any) -> None:
    rid = f"{conversation.name}.{conversation.turns}"
    if arguments.get("return_logprob"):
        # Of the last prompt tokens too: asking from the beginning would switch reuse off.
        arguments["logprob_start_len"] = len(conversation.tokens) - shape.tool
    answer = await engine.generate(conversation.tokens, rid, shape.output, **arguments)
    history = conversation.tokens + list(answer["output_ids"])
    conversation.spoken.append((rid, history, answer))
    conversation.turns += 1
    tool = text((shape.seed, conversation.seed, conversation.turns), shape.tool)
    conversation.tokens = history + tool


def outputs(conversations: list[Conversation]) -> dict[str, list[int]]:
    return {rid: list(answer["output_ids"]) for c in conversations for rid, _, answer in c.spoken}


def histories(conversations: list[Conversation]) -> dict[str, list[int]]:
    return {rid: history for c in conversations for rid, history, _ in c.spoken}


def by_history(
    records: dict[tuple[str, int], set[bytes]], spoken: dict[str, list[int]]
) -> dict[bytes, set[bytes]]:
    """Digests keyed by the tokens up to the position instead of by request."""
    found: dict[bytes, set[bytes]] = {}
    for rid, history in spoken.items():
        at = hashlib.blake2b(digest_size=16)
        for position, token in enumerate(history):
            at.update(token.to_bytes(4, "little"))
            if (rid, position) in records:
                found.setdefault(at.digest(), set()).update(records[rid, position])
    return found
