"""The servers that take turns: SGLang's own cache, and Penelope."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

READY_SECONDS = 300
STOCK = "stock"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client sees of one request."""

    sent: float
    first: float
    last: float
    prompt_tokens: int
    cached_tokens: int
    output: list[int]

    @property
    def ttft(self) -> float:
        return self.first - self.sent


class Server:
    """One engine behind its HTTP interface, in a process of its own."""

    def __init__(
        self,
        name: str,
        model: Path,
        port: int,
        flags: list[str],
        log: Path,
        variables: Mapping[str, str],
    ) -> None:
        """Stock SGLang by the name `STOCK`, Penelope by any other: its variables say which."""
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        command = ["sglang.launch_server"] if name == STOCK else ["penelope", "serve"]
        environment = {
            **os.environ,
            "SGLANG_PLATFORM": "penelope_cpu",
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
            **variables,
        }
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    *command,
                    "--model-path",
                    str(model),
                    "--port",
                    str(port),
                    "--device",
                    "cpu",
                    "--dtype",
                    "float32",
                    "--sampling-backend",
                    "pytorch",
                    "--attention-backend",
                    "penelope_rows",
                    "--disable-cuda-graph",
                    "--mem-fraction-static",
                    "0.3",
                    "--skip-tokenizer-init",
                    "--sleep-on-idle",
                    "--skip-server-warmup",
                    *flags,
                ],
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)  # the session that this server started
        self.process.wait()

    def wait(self) -> None:
        for _ in range(READY_SECONDS):
            if self.process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(1)
        raise SystemExit(f"the {self.name} server did not start; its log is {self.log}")

    @property
    def cpu_seconds(self) -> float:
        """CPU time that all processes of the server have taken so far.

        What a machine with other work to do does to the clock, it does not do to this.
        """
        ticks = 0
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # It has ended.
            if int(fields[3]) == self.process.pid:  # of the session that this server started
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def flush(self) -> None:
        for _ in range(50):
            if httpx.post(f"{self.url}/flush_cache", timeout=60).status_code == 200:
                return
            time.sleep(0.2)
        raise SystemExit(f"the {self.name} server is never idle; its log is {self.log}")


async def generate(client: httpx.AsyncClient, tokens: list[int], new: int) -> Answer:
    """Send one request and read its stream to the end."""
    body = {
        "input_ids": tokens,
        "sampling_params": {"max_new_tokens": new, "temperature": 0, "ignore_eos": True},
        "stream": True,
    }
    sent = time.perf_counter()
    first = 0.0
    found: dict[str, Any] = {}
    async with client.stream("POST", "/generate", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                first = first or time.perf_counter()
                found = json.loads(line[6:])
    meta = found["meta_info"]
    assert meta["finish_reason"]["type"] == "length", meta
    return Answer(
        sent,
        first,
        time.perf_counter(),
        meta["prompt_tokens"],
        meta["cached_tokens"],
        list(found["output_ids"]),
    )


async def together(client: httpx.AsyncClient, prompts: list[list[int]]) -> float:
    """Seconds until each of several prompts, sent in one call, has its first token."""
    body = {
        "input_ids": prompts,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
    }
    sent = time.perf_counter()
    response = await client.post("/generate", json=body)
    response.raise_for_status()
    return time.perf_counter() - sent


def client_of(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, timeout=600)
