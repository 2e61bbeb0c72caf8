"""Which servers are fuzzed: start-up flags, from which each episode changes what can be changed."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.server import models
from tests.sglang.harness import ROOT, Engine

POOL = 49_152
"""Tokens of the engine that never evicts; an episode under pressure takes a part of them."""
WATCHDOG = 300
"""Seconds after which SGLang's own watchdog ends a scheduler that stands still."""
EPISODES_EACH = 25
"""So many episodes are run on one server before the next one is started."""


@dataclass(frozen=True)
class Kind:
    page: int
    adapters: bool = False
    beams: bool = False
    priority: bool = False
    truncates: bool = False
    flags: dict[str, Any] = field(default_factory=dict)


SERVERS: dict[str, Kind] = {
    "page-16": Kind(16, adapters=True),
    "page-1": Kind(1, beams=True, flags={"disable_overlap_schedule": True}),
    "page-64": Kind(
        64,
        priority=True,
        truncates=True,
        flags={"enable_priority_scheduling": True, "allow_auto_truncate": True},
    ),
}


class Server:
    """One running server: its engine, and where it answers over HTTP."""

    def __init__(self, name: str, folder: Path, *, stock: bool = False) -> None:
        kind = SERVERS[name]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        flags: dict[str, Any] = {
            "port": port,
            "page_size": kind.page,
            "max_total_tokens": POOL,
            "skip_tokenizer_init": False,
            "skip_server_warmup": True,
            "served_model_name": "tiny",
            "enable_metrics": True,
            "enable_cache_report": True,
            "enable_custom_logit_processor": True,
            "return_hidden_states_mode": "full",
            "radix_cache_backend": None if stock else "penelope",
            "watchdog_timeout": WATCHDOG,
            **kind.flags,
        }
        if kind.adapters:
            flags |= {
                "enable_lora": True,
                "max_lora_rank": models.RANK,
                "lora_target_modules": list(models.TARGETS),
                "lora_backend": "torch_native",
                "max_loras_per_batch": 2,
            }
        self.name = name
        self.kind = kind
        self.folder = folder
        self.weights = models.WEIGHTS[0]
        self.url = f"http://127.0.0.1:{port}"
        self.engine = Engine(
            folder / models.WEIGHTS[0],
            host=ROOT / "tests/fuzz/server/host.py",
            plugins=("tests.fuzz.server.engine_side:load",),
            # SGLang compiles `repetition_penalty` when it is first asked for, in the middle of
            # serving: a minute and more on a busy CPU, in which nobody gets an answer.
            variables={"TORCH_COMPILE_DISABLE": "1"},
            **flags,
        )
        self.engine.step_seconds = 2 * WATCHDOG
        self._read = 0

    def new_log(self) -> str:
        """What the server has written since this was called last."""
        with self.engine.log.open("rb") as log:
            log.seek(self._read)
            found = log.read()
        self._read += len(found)
        return found.decode(errors="replace")

    def alive(self) -> bool:
        return self.engine.process.poll() is None

    def stop(self) -> None:
        self.engine.stop()
