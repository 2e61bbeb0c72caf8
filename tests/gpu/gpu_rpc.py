"""Introspection, random weights and timing inside the engine, loaded as a plug-in of its own.

Where it can, it takes the RPC of `tests/sglang`; that one's recording reads every tensor on the
CPU and audits every step, which on a GPU takes long and makes the device wait.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from benchmarks.kernel_free.model import HEAD_GAIN
from penelope.policy import Residency
from penelope.sglang_adapter.cache import PenelopeCache
from penelope.sglang_adapter.phantom import Phantom
from tests.sglang import engine_rpc

SEED = 7
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


class _Switches:
    audit = False
    timing = False
    waiting = 0
    """No batch of new requests is formed before so many wait."""


_batches: list[dict[str, Any]] = []


def load() -> None:
    HookRegistry.register(f"{SCHEDULER}.init_schedule_policy", _extend, HookType.AFTER)
    HookRegistry.register(f"{SCHEDULER}.run_batch", _timed, HookType.AROUND)
    HookRegistry.register(f"{SCHEDULER}._get_new_batch_prefill_raw", _held, HookType.AROUND)
    HookRegistry.register(
        "sglang.srt.model_loader.loader.initialize_dummy_weights", random_weights, HookType.REPLACE
    )
    HookRegistry.register(
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new",
        engine_rpc._spoil,
        HookType.AFTER,
    )
    HookRegistry.register(
        "sglang.srt.managers.scheduler_components.invariant_checker"
        ".SchedulerInvariantChecker.self_check_during_busy",
        _audit_step,
        HookType.AFTER,
    )


def _extend(_result: None, scheduler: Any) -> None:
    for function in (
        engine_rpc.penelope_configure, engine_rpc.penelope_fault, engine_rpc.penelope_audit,
        penelope_switch, penelope_dump,
    ):  # fmt: skip
        setattr(scheduler, function.__name__, function.__get__(scheduler))


def random_weights(model: torch.nn.Module, *_: Any, **__: Any) -> None:
    """In place of SGLang's, which are so small that no row notices what it attends to.

    As in `benchmarks.kernel_free.model`: a small part added by each sublayer, attention neither
    uniform nor one-hot.
    """
    named = {n: p for n, p in model.state_dict().items() if torch.is_floating_point(p)}
    depth = 1 + max(int(n.split(".")[2]) for n in named if n.startswith("model.layers."))
    for index, (name, weight) in enumerate(sorted(named.items())):
        source = torch.Generator(weight.device).manual_seed(SEED + index)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            weight.fill_(HEAD_GAIN)
        elif "norm" in name:
            weight.fill_(1.0)
        elif "embed_tokens" in name:
            weight.normal_(0, 1, generator=source)
        elif weight.dim() == 2:
            deviation = 1 / math.sqrt(weight.shape[1])
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                deviation /= math.sqrt(2 * depth)
            weight.normal_(0, deviation, generator=source)
        else:
            raise ValueError(f"no rule for the weight {name}")


# Batches: what they hold, how long they take, when they are formed


def _timed(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kw: Any) -> Any:
    """The forward pass alone, the device waited for before and after."""
    if not _Switches.timing or not batch.forward_mode.is_extend():
        return original(scheduler, batch, *args, **kw)
    pieces = [
        (isinstance(req, Phantom), int(start), int(count))
        for req, start, count in zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True)
    ]
    _wait()
    began = time.perf_counter()
    result = original(scheduler, batch, *args, **kw)
    _wait()
    _batches.append({"pieces": pieces, "seconds": time.perf_counter() - began})
    return result


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _held(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    if len(scheduler.waiting_queue) < _Switches.waiting:
        running = kwargs["running_batch"] if "running_batch" in kwargs else args[-1]
        return None, running
    _Switches.waiting = 0
    return original(scheduler, *args, **kwargs)


def _audit_step(_result: None, checker: Any) -> None:
    if _Switches.audit:
        engine_rpc._audit_step(_result, checker)


def penelope_switch(self: Any, audit: bool = False, timing: bool = False, waiting: int = 0) -> None:
    _Switches.audit, _Switches.timing, _Switches.waiting = audit, timing, waiting
    _batches.clear()


# What the cache holds


def penelope_dump(self: Any, path: str) -> None:
    """Batches since the last switch, what the policy did, and fingerprints of what is resident."""
    found: dict[str, Any] = {"batches": list(_batches)}
    cache = self.tree_cache
    if isinstance(cache, PenelopeCache):
        found["statistics"] = cache.statistics.snapshot()
        found["live_receipts"] = len(cache.state.leases)
        found["resident"] = resident(cache)
        found["host_resident"] = resident(cache, Residency.HOST)
    target = Path(f"{path}.0")
    partial = Path(f"{target}.partial")
    partial.write_bytes(pickle.dumps(found))
    partial.rename(target)


def resident(cache: PenelopeCache, tier: Residency = Residency.DEVICE) -> dict[bytes, int]:
    """History up to a position -> fingerprint of K and V there, over all layers, in one tier."""
    found: dict[bytes, int] = {}
    buffers = engine_rpc.buffers(cache, tier)
    for node, start, slots in cache.slots.items(tier):
        label = cache.state.nodes[node]
        marks = fingerprints(buffers, slots)
        history = hashlib.blake2b(repr(label.namespace).encode(), digest_size=16)
        history.update(label.key[: start * 4])
        for offset, mark in enumerate(marks):
            at = (start + offset) * 4
            history.update(label.key[at : at + 4])
            found[history.digest()] = mark
    return found


def fingerprints(buffers: Sequence[torch.Tensor], slots: torch.Tensor) -> list[int]:
    """One number for each slot, computed where it lies: any changed bit changes it.

    A sum of all 16-bit words, each times its own random odd number, modulo 2**64: a change of one
    word always shows, of several with all but certainty.
    """
    total = torch.zeros(len(slots), dtype=torch.int64, device=slots.device)
    source = torch.Generator().manual_seed(SEED)
    for buffer in buffers:
        words = buffer[slots].flatten(1).contiguous().view(torch.int16)
        factors = torch.randint(-(2**62), 2**62, words.shape[1:], generator=source) * 2 + 1
        factors = factors.to(slots.device)
        for first in range(0, len(slots), 4096):
            part = words[first : first + 4096].to(torch.int64)
            total[first : first + 4096] += (part * factors).sum(1)
    return total.tolist()
