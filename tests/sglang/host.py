"""A process of its own for one engine: a dying scheduler takes its parent with it.

Requests come over a connection as (id, operation, arguments) and are answered in
any order; generations run concurrently.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from multiprocessing.connection import Client, Connection
from typing import Any


async def serve(engine: Any, link: Connection) -> None:
    loop = asyncio.get_running_loop()
    sending = asyncio.Lock()
    tasks: set[asyncio.Task[None]] = set()

    async def answer(ticket: int, operation: str, arguments: dict[str, Any]) -> None:
        try:
            result: Any = await perform(engine, operation, arguments)
            ok = True
        except Exception as error:  # noqa: BLE001  (whatever it was, the test wants to see it)
            result, ok = f"{type(error).__name__}: {error}", False
        async with sending:
            await loop.run_in_executor(None, link.send, (ticket, ok, result))

    while True:
        try:
            ticket, operation, arguments = await loop.run_in_executor(None, link.recv)
        except EOFError:
            return
        if operation == "stop":
            return
        task = asyncio.ensure_future(answer(ticket, operation, arguments))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def perform(engine: Any, operation: str, arguments: dict[str, Any]) -> Any:
    if operation == "generate":
        from sglang.srt.managers.io_struct import GenerateReqInput

        if (own := arguments.pop("embeddings", None)) is not None:
            arguments["positional_embed_overrides"] = _embeddings(*own)
        return await anext(
            engine.tokenizer_manager.generate_request(GenerateReqInput(**arguments), None)
        )
    if operation == "abort":
        engine.tokenizer_manager.abort_request(**arguments)
        return None
    if operation == "flush":
        return (await engine.tokenizer_manager.flush_cache()).success
    if operation == "pause":
        from sglang.srt.managers.io_struct import PauseGenerationReqInput

        return await engine.tokenizer_manager.pause_generation(PauseGenerationReqInput(**arguments))
    if operation == "update_weights":
        from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

        update = UpdateWeightFromDiskReqInput(**arguments)
        return await engine.tokenizer_manager.update_weights_from_disk(update)
    if operation == "close_session":
        from sglang.srt.managers.io_struct import CloseSessionReqInput

        return await engine.tokenizer_manager.close_session(CloseSessionReqInput(**arguments))
    if operation == "continue":
        from sglang.srt.managers.io_struct import ContinueGenerationReqInput

        return await engine.tokenizer_manager.continue_generation(ContinueGenerationReqInput())
    if operation == "internal_state":
        from sglang.srt.managers.io_struct import SetInternalStateReq

        asked = SetInternalStateReq(server_args=arguments)
        return await engine.tokenizer_manager.set_internal_state(asked)
    if operation == "call":
        # A blocking exchange of messages: beside the event loop, not in it.
        method = arguments.pop("method")
        return await asyncio.get_running_loop().run_in_executor(
            None, lambda: engine.collective_rpc(method, **arguments)
        )
    raise ValueError(f"unknown operation {operation}")


def _embeddings(vectors: list[list[float]], positions: list[int]) -> Any:
    """Vectors to put in the place of the tokens' own; a tensor would not come over a connection."""
    import torch
    from sglang.srt.managers.embed_types import PositionalEmbeds

    return PositionalEmbeds(embeds=torch.tensor(vectors), positions=positions)


def main() -> None:
    import sglang

    address, arguments = sys.argv[1], json.loads(sys.argv[2])
    engine = sglang.Engine(**arguments)
    link = Client(address)
    link.send("ready")
    with contextlib.suppress(ConnectionError):
        engine.loop.run_until_complete(serve(engine, link))
    engine.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
