"""One real engine in a process of its own, shared by the tests that need its settings."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
START_SECONDS = 600
STEP_SECONDS = 120

CHECKS = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
    "SGLANG_DEBUG_MEMORY_POOL": "1",
}


class EngineDied(AssertionError):
    """The engine failed; the end of its log says why."""


def environment(folder: Path, *plugins: str, **more: str) -> dict[str, str]:
    """Environment for an engine on the CPU, with the tests' plug-in beside the product's.

    `plugins` are entry points to load as well, as `module:function`.
    """
    plugin = folder / "penelope_test_rpc-0.dist-info"
    plugin.mkdir(exist_ok=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: penelope-test-rpc\nVersion: 0\n")
    (plugin / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\npenelope_test = engine_rpc:load\n"
        + "".join(f"penelope_test_{n} = {plugin}\n" for n, plugin in enumerate(plugins))
    )
    path = [str(folder), str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in path if p),
        "SGLANG_PLATFORM": "penelope_cpu",
        "PENELOPE_DETERMINISTIC": "1",
        "PENELOPE_TEST_RPC": "1",
        # Room for the tests that use a host tier; the others are configured without one.
        "PENELOPE_HOST_TOKENS": "8192",
        "OMP_NUM_THREADS": "1",
        **CHECKS,
        **more,
    }


class Engine:
    """Client of `host.py`.  Every call raises `EngineDied` with the log once it is gone."""

    def __init__(
        self,
        model: Path,
        *,
        variables: dict[str, str] | None = None,
        host: Path = HERE / "host.py",
        plugins: tuple[str, ...] = (),
        **arguments: Any,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penelope-engine-"))
        self.log = self.folder / "log"
        address = str(self.folder / "socket")
        settings: dict[str, Any] = {
            "model_path": str(model),
            "device": "cpu",
            "dtype": "float32",
            "attention_backend": "penelope_rows",
            "sampling_backend": "pytorch",
            "disable_cuda_graph": True,
            "mem_fraction_static": 0.3,
            "max_total_tokens": 16384,
            "skip_tokenizer_init": True,
            "page_size": 16,
            "max_running_requests": 16,
            "random_seed": 1,
            "sleep_on_idle": True,
            "watchdog_timeout": 100,
            "radix_cache_backend": "penelope",
        }
        settings.update(arguments)
        listener = Listener(address)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(host), address, json.dumps(settings)],
                env=environment(self.folder, *plugins, **(variables or {})),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )
        self.step_seconds: float = STEP_SECONDS
        """So long one answer may take."""
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._tickets = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._link: Connection | None = None
        with listener:
            self._link = self._accept(listener)
        self._receiver = threading.Thread(target=self._receive, daemon=True)
        self._receiver.start()

    def _accept(self, listener: Listener) -> Connection:
        accepted: list[Connection] = []

        def wait() -> None:
            link = listener.accept()
            link.recv()
            accepted.append(link)

        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()
        for _ in range(START_SECONDS * 10):
            waiter.join(0.1)
            if accepted:
                return accepted[0]
            if self.process.poll() is not None:
                break
        self.stop()
        raise EngineDied(f"the engine did not start:\n{self.tail()}")

    def tail(self, lines: int = 40) -> str:
        text = self.log.read_text(errors="replace").splitlines()
        return "\n".join(line[:300] for line in text[-lines:])

    def _receive(self) -> None:
        assert self._link is not None
        while True:
            try:
                ticket, ok, result = self._link.recv()
            except (EOFError, OSError):
                self._loop.call_soon_threadsafe(self._fail_all)
                return
            self._loop.call_soon_threadsafe(self._settle, ticket, ok, result)

    def _settle(self, ticket: int, ok: bool, result: Any) -> None:
        future = self._pending.pop(ticket, None)
        if future is None or future.done():
            return
        if ok:
            future.set_result(result)
        else:
            future.set_exception(RuntimeError(result))

    def _fail_all(self) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_exception(EngineDied(f"the engine died:\n{self.tail()}"))
        self._pending.clear()

    # Inside a driving coroutine

    async def ask(self, operation: str, **arguments: Any) -> Any:
        ticket = next(self._tickets)
        future = self._loop.create_future()
        self._pending[ticket] = future
        assert self._link is not None
        try:
            self._link.send((ticket, operation, arguments))
        except OSError:
            raise EngineDied(f"the engine is gone:\n{self.tail()}") from None
        try:
            async with asyncio.timeout(self.step_seconds):
                return await future
        except TimeoutError:
            raise EngineDied(f"no answer to {operation}:\n{self.tail()}") from None

    async def generate(
        self, tokens: list[int], rid: str, new: int = 8, **arguments: Any
    ) -> dict[str, Any]:
        sampling = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        sampling.update(arguments.pop("sampling", {}))
        answer: dict[str, Any] = await self.ask(
            "generate", input_ids=tokens, rid=rid, sampling_params=sampling, **arguments
        )
        return answer

    async def look(self, rank: int = 0, kv: bool = True) -> dict[str, Any]:
        """What the scheduler has now; it may be in the middle of its work.  `kv`: with all KV."""
        target = self.folder / "dump"
        await self.ask("call", method="penelope_dump", path=str(target), kv=kv)
        found: dict[str, Any] = pickle.loads(Path(f"{target}.{rank}").read_bytes())
        return found

    async def hold(self, steps: int = 0) -> None:
        """Let the scheduler run so many batches and then stand still, until `go`."""
        await self.ask("call", method="penelope_hold", steps=steps)

    async def go(self) -> None:
        await self.ask("call", method="penelope_hold", steps=None)

    async def until(self, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Look until something is so."""
        for _ in range(400):
            if what(found := await self.look()):
                return found
            await asyncio.sleep(0.02)
        raise AssertionError(f"it never came to that:\n{self.tail()}")

    # From a test

    def run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(coroutine)

    def call(self, method: str, **arguments: Any) -> None:
        self.run(self.ask("call", method=method, **arguments))

    def dump(self, rank: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.run(self.look(rank))
        return found

    def check_alive(self) -> None:
        """A scheduler that died does not fail its caller at once: ask, and read the log."""
        self.call("penelope_audit")
        text = self.log.read_text(errors="replace")
        for sign in ("Traceback (most recent call last)", "memory leak detected", "SIGQUIT"):
            assert sign not in text, f"the engine's log says '{sign}':\n{self.tail(80)}"

    def stop(self) -> None:
        if self.process.poll() is None and self._link is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._link.send((-1, "stop", {}))
                self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)  # the session that this engine started
        self.process.wait()
        if self._link is not None:
            self._receiver.join(5)
            self._link.close()
        self._loop.close()
