"""Introspection and faults for tests, loaded into the engine as a plug-in of its own.

Methods are added to the live scheduler and called with ``Engine.collective_rpc``;
what they find is written to files, because an RPC returns nothing.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_parallel

from penelope.policy import Granularity, Order, Position, Residency
from penelope.sglang_adapter import deterministic, hooks, models, shadow
from penelope.sglang_adapter.cache import PenelopeCache
from penelope.sglang_adapter.options import Options
from penelope.sglang_adapter.paths import weights_of
from penelope.sglang_adapter.phantom import Phantom
from tests.sglang.auditing import audit

Digest = bytes
RECORDS: dict[tuple[str, int], set[Digest]] = defaultdict(set)
"""(request, position) -> digests of the log-probabilities computed there."""
ORIGINS: dict[str, int] = {"real": 0, "phantom": 0}
_rows: list[tuple[str, range, bool]] = []


class _Switches:
    recording = False
    fault = ""
    copies = 0
    steps_left: int | None = None


def load() -> None:
    HookRegistry.register(
        "penelope.sglang_adapter.host_memory.HostMemory._copy_rows", _spoil_copy, HookType.AROUND
    )
    scheduler = "sglang.srt.managers.scheduler.Scheduler"
    HookRegistry.register(f"{scheduler}.init_schedule_policy", _extend, HookType.AFTER)
    HookRegistry.register(f"{scheduler}.run_batch", _note_rows, HookType.BEFORE)
    HookRegistry.register(
        "sglang.srt.layers.logits_processor.LogitsProcessor.forward", _record, HookType.BEFORE
    )
    HookRegistry.register(
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new",
        _spoil,
        HookType.AFTER,
    )
    HookRegistry.register(
        "sglang.srt.managers.scheduler_components.invariant_checker"
        ".SchedulerInvariantChecker.self_check_during_busy",
        _audit_step,
        HookType.AFTER,
    )


# What is computed


def _note_rows(scheduler: Any, batch: Any, *_: Any, **__: Any) -> None:
    """Which (request, position) each row of the coming forward pass is."""
    if _Switches.steps_left is not None:
        _Switches.steps_left -= 1
        scheduler._engine_paused = _Switches.steps_left <= 0
    _rows.clear()
    if not _Switches.recording:
        return
    if batch.forward_mode.is_decode():
        for req, length in zip(batch.reqs, batch.seq_lens_cpu.tolist(), strict=True):
            _rows.append((req.rid, range(length - 1, length), False))
        return
    for req, start, count in zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True):
        phantom = isinstance(req, Phantom)
        rid = req.served.rid if phantom else req.rid
        _rows.append((rid, range(start, start + count), phantom))


def _record(
    processor: Any, input_ids: Any, hidden_states: torch.Tensor, lm_head: Any, *_: Any, **__: Any
) -> None:
    if not _rows:
        return
    logits = deterministic.tiled_linear(hidden_states, lm_head.weight)
    values = torch.log_softmax(logits.float(), dim=-1).contiguous().numpy()
    at = 0
    for rid, positions, phantom in _rows:
        for position in positions:
            RECORDS[rid, position].add(_digest(values[at].tobytes()))
            at += 1
        ORIGINS["phantom" if phantom else "real"] += len(positions)
    assert at == len(values), f"{len(values)} rows were computed, {at} were expected"


def _digest(data: bytes) -> Digest:
    return hashlib.blake2b(data, digest_size=8).digest()


# Faults that the equivalence tests must catch


def _phantom_rows(batch: Any) -> list[slice]:
    found, at = [], 0
    for req, count in zip(batch.reqs, batch.extend_lens, strict=True):
        if isinstance(req, Phantom):
            found.append(slice(at, at + count))
        at += count
    return found


def _spoil(forward_batch: Any, _cls: type, batch: Any, *_: Any, **__: Any) -> None:
    """Just before the forward pass, when the tree has adopted the phantoms' slots."""
    if not _Switches.fault or not batch.forward_mode.is_extend():
        return
    for rows in _phantom_rows(batch):
        if _Switches.fault == "hole-left-unfilled":
            # What the phantom computes goes to the dummy page.
            forward_batch.out_cache_loc = forward_batch.out_cache_loc.clone()
            forward_batch.out_cache_loc[rows] %= batch.tree_cache.page_size
        elif _Switches.fault == "wrong-positions":
            forward_batch.positions[rows] += 1


def _spoil_copy(
    original: Any, memory: Any, device: torch.Tensor, host: torch.Tensor, target: Residency
) -> None:
    """A copy that is left out, goes wrong or fails."""
    _Switches.copies += 1
    fault = _Switches.fault
    if fault == "promotion-left-out" and target is Residency.DEVICE:
        return
    if fault == "demotion-left-out" and target is Residency.HOST:
        return
    if fault == "copy-reversed":
        host = host.flip(0)
    if fault == "copy-fails" and _Switches.copies % 5 == 0:
        raise RuntimeError("the copy was made to fail")
    original(memory, device, host, target)


# The scheduler's side of the RPC


def _extend(_result: None, scheduler: Any) -> None:
    for function in (
        penelope_configure,
        penelope_record,
        penelope_dump,
        penelope_environment,
        penelope_fault,
        penelope_audit,
        penelope_hold,
    ):
        setattr(scheduler, function.__name__, function.__get__(scheduler))


def penelope_configure(
    self: Any,
    pool: int | None = None,
    chunk: int | None = None,
    schedule: str | None = None,
    position: str | None = None,
    granularity: str | None = None,
    block: int | None = None,
    rows: int | None = None,
    mixed: bool | None = None,
    host: int = 0,
    swap: int = 0,
    order: str = "lru",
    queue: bool = False,
) -> None:
    """Change the idle engine: empties the cache first."""
    assert self.flush_cache(), "the engine is busy"
    if pool is not None:
        _resize(self, pool)
    if chunk is not None:
        self.chunked_prefill_size = chunk if chunk > 0 else None
    if mixed is not None:
        self.is_mixed_chunk = mixed
    if schedule is not None:
        self.policy.policy = _schedule_policy(schedule)
    if rows is not None:
        spare = self.req_to_token_pool
        spare.size = min(rows, len(spare.req_to_token) - 1)  # SGLang alone has fewer
        spare._alloc_size = spare.size + 1
        spare.clear()
    cache = self.tree_cache
    if isinstance(cache, PenelopeCache):
        old = cache.options
        cache.options = Options(
            position=Position(position) if position else old.position,
            granularity=Granularity(granularity) if granularity else old.granularity,
            block_size=block or old.block_size,
            host_tokens=host,
            swap_tokens=swap or None,
            order=Order(order),
            queue_in_view=queue,
        )
        cache.linear_cost = models.linear_cost(self.model_config)
        if not hasattr(self, "penelope_host"):
            self.penelope_host = cache.host
        cache.host = self.penelope_host if host else None
        assert not host or cache.host is not None, "the engine was started without a host tier"
        cache.statistics.reset()
    self.tree_cache.reset()


def _schedule_policy(name: str) -> Any:
    from sglang.srt.managers.schedule_policy import CacheAgnosticPolicy, CacheAwarePolicy

    for kind in (CacheAwarePolicy, CacheAgnosticPolicy):
        for member in kind:
            if member.value == name:
                return member
    raise ValueError(f"no schedule policy {name}")


def _resize(scheduler: Any, tokens: int) -> None:
    assert tokens % scheduler.page_size == 0, "the pool holds whole pages"

    class Size:
        max_total_num_tokens = tokens

    scheduler.token_to_kv_pool_allocator.resize(Size)
    for holder in (
        scheduler,
        scheduler.invariant_checker,
        scheduler.pool_stats_observer,
        scheduler.load_inquirer,
    ):
        if hasattr(holder, "max_total_num_tokens"):
            object.__setattr__(holder, "max_total_num_tokens", tokens)
    # A prompt longer than the pool is refused when it arrives.
    scheduler.max_req_len = min(scheduler.model_config.context_len - 1, tokens - 1)
    scheduler.max_req_input_len = scheduler.max_req_len - 5


def penelope_environment(self: Any, **variables: str) -> None:
    """Settings that SGLang reads from the environment while it runs."""
    os.environ.update(variables)


def penelope_hold(self: Any, steps: int | None = 0) -> None:
    """Let so many batches run and then stand still, until this is called with None.

    Requests that arrive meanwhile wait together; the clients' side knows nothing of a pause.
    """
    _Switches.steps_left = steps
    self._engine_paused = steps == 0


def penelope_fault(self: Any, name: str) -> None:
    _Switches.fault = name


def penelope_record(self: Any, on: bool) -> None:
    _Switches.recording = on
    RECORDS.clear()
    ORIGINS.update(real=0, phantom=0)


def penelope_dump(self: Any, path: str, kv: bool = True) -> None:
    """What was recorded, what is resident, and what the policy did."""
    cache = self.tree_cache
    found: dict[str, Any] = {"records": dict(RECORDS), "origins": dict(ORIGINS)}
    if isinstance(cache, PenelopeCache):
        found["statistics"] = cache.statistics.snapshot()
        found["live_receipts"] = len(cache.state.leases)
        found["nodes"] = len(cache.state.nodes)
        found["evictable"] = cache.evictable_size()
        found["old_weights"] = sum(
            len(slots)
            for node, _, slots in cache.slots.items()
            if weights_of(cache.state.nodes[node].namespace) != cache.weights
        )
        found["tick"] = cache.state.tick
        found["in_view"] = len(cache.state.waiting.order)
        found["refilling"] = None if cache.refilling.req is None else cache.refilling.req.rid
        if kv:
            found["resident"] = _resident(cache, Residency.DEVICE)
            found["host_resident"] = _resident(cache, Residency.HOST)
    if follower := getattr(cache, shadow.SWITCH, None):
        found["shadow"] = follower.shadow and asdict(follower.shadow.tally)
        found["shadow_runs"] = follower.shadow is not None and bool(follower.shadow.state.leases)
    found["steps"] = self.forward_ct
    found["rows"] = self.req_to_token_pool.size
    found["free_rows"] = self.req_to_token_pool.available_size()
    found["queued"] = [req.rid for req in self.waiting_queue]
    last = self.last_batch
    found["between"] = [] if last is None else [req.rid for req in last.reqs]
    chunked = self.chunked_req
    found["chunked"] = None if chunked is None else chunked.rid
    leaving = self._pending_chunked_abort_req
    found["leaving"] = None if leaving is None else leaving.rid
    found["paused"] = self._engine_paused
    found["steps_left"] = _Switches.steps_left
    found["running"] = [req.rid for req in self.running_batch.reqs]
    found["free_tokens"] = self.token_to_kv_pool_allocator.available_size()
    target = Path(f"{path}.{get_parallel().tp_rank}")
    partial = Path(f"{target}.partial")  # one a rank
    partial.write_bytes(pickle.dumps(found))
    partial.rename(target)


def _resident(cache: PenelopeCache, tier: Residency) -> dict[Digest, Digest]:
    """History up to a position -> digest of K and V there, over all layers, in one tier.

    KV of weights that the model has no more is left out, and how often they have changed is no part
    of a history's name: another run may have changed them oftener.
    """
    found: dict[Digest, Digest] = {}
    kept = buffers(cache, tier)
    for node, start, slots in cache.slots.items(tier):
        key = cache.state.nodes[node].key
        whole = cache.state.nodes[node].namespace
        if weights_of(whole) != cache.weights:
            continue
        adapter = (whole.adapter or "").removeprefix(f"{cache.weights}|") or None
        namespace = repr(whole._replace(adapter=adapter)).encode()
        rows = torch.cat([buffer[slots].flatten(1) for buffer in kept], dim=1).numpy()
        history = hashlib.blake2b(namespace, digest_size=16)
        history.update(key[: start * 4])
        for offset in range(len(slots)):
            position = start + offset
            history.update(key[position * 4 : position * 4 + 4])
            found[history.digest()] = _digest(rows[offset].tobytes())
    return found


def buffers(cache: PenelopeCache, tier: Residency) -> list[torch.Tensor]:
    """K and V of each layer in turn."""
    pool = cache.token_to_kv_pool_allocator.get_kvcache()
    layers = range(pool.layer_num)
    if tier is Residency.HOST:
        host: Any = cache.host.pool if cache.host is not None else None
        return (
            [] if host is None else [b[i] for i in layers for b in (host.k_buffer, host.v_buffer)]
        )
    return [b(i) for i in layers for b in (pool.get_key_buffer, pool.get_value_buffer)]


# Invariants, after every scheduler step


def _audit_step(_result: None, checker: Any) -> None:
    if isinstance(checker.tree_cache, PenelopeCache):
        audit(checker.tree_cache, checker._requests_owning_rows())


def penelope_audit(self: Any) -> None:
    if isinstance(self.tree_cache, PenelopeCache):
        audit(self.tree_cache, self.invariant_checker._requests_owning_rows())
        assert not self.tree_cache.state.leases, "an idle engine holds a lock"


assert hooks.HOOKS, "the adapter's hooks are what is tested here"
assert os.environ.get("PENELOPE_TEST_RPC") == "1", "only tests load this plug-in"
