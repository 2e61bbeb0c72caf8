"""One process with one engine that is asked both ways: over HTTP and through the engine API.

The application is SGLang's own, with all its routes; the connection of `tests/sglang/host.py`
is served beside it, in the same event loop, because a tokenizer manager belongs to one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from multiprocessing.connection import Client
from typing import Any

from tests.sglang import host


async def both(engine: Any, address: str, port: int) -> None:
    import uvicorn
    from sglang.srt.entrypoints import http_server

    http_server.set_global_state(
        http_server._GlobalState(
            tokenizer_manager=engine.tokenizer_manager,
            template_manager=engine.template_manager,
            scheduler_info=engine._scheduler_init_result.scheduler_infos[0],
        )
    )
    app: Any = http_server.app
    app.is_single_tokenizer_mode = True
    app.server_args = engine.server_args
    app.warmup_thread_kwargs = {"server_args": engine.server_args}
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)
    )
    answering = asyncio.ensure_future(server.serve())
    while not server.started:
        if answering.done():
            answering.result()
            raise RuntimeError("the HTTP server did not start")
        await asyncio.sleep(0.05)
    link = Client(address)
    link.send("ready")
    with contextlib.suppress(ConnectionError):
        await host.serve(engine, link)
    server.should_exit = True


def main() -> None:
    import sglang

    address, arguments = sys.argv[1], json.loads(sys.argv[2])
    port = arguments["port"]
    engine = sglang.Engine(**arguments)
    engine.loop.run_until_complete(both(engine, address, port))
    engine.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
