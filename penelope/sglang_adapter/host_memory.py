"""Memory of the host tier: SGLang's own host pool, and copies in the order of the engine's work.

Copies run on the scheduler's stream, behind every batch that was launched before and in front of
every batch that is launched after.  So a copy reads KV that is complete, nothing reads or writes a
slot that a copy still needs, and a batch finds what was promoted for it.  No completion has to be
waited for, so none can be starved: by the time a slot is handed on, its copy is in front.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from sglang.srt.mem_cache.host_memory import available_host_memory_bytes
from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import (
    _build_mha_mla_host_pool,
    _mha_host_inputs,
)
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.base import (
    HostKVCache,
    host_memory_budget_bytes,
    host_memory_budget_scope,
)

from penelope.policy import InvalidConfigError, Residency
from penelope.runtime.store import StoreError

_DTYPE_BYTES = {"float32": 4, "float": 4, "fp8_e4m3": 1, "fp8_e5m2": 1}
# All that they keep by the slot is what SGLang's host pool copies; others have scales or an index.
_POOLS = (MHATokenToKVPool, MLATokenToKVPool)
_LAYOUT = "layer_first"
_BACKEND = "kernel"


def require_room(settings: Any, tokens: int) -> None:
    """Refuse, before a model is loaded, a host tier for which the machine has no memory.

    Known where the model is a folder with a `config.json` of attention heads; elsewhere the pool
    finds out when it is made.  Raises `InvalidConfigError`.
    """
    each = 0
    with suppress(OSError, ValueError, KeyError, TypeError):
        each = _token_bytes(
            json.loads((Path(settings.model_path) / "config.json").read_text()), settings
        )
    room = available_host_memory_bytes() if settings.device == "cpu" else host_memory_budget_bytes()
    if each * tokens > room:
        raise InvalidConfigError(
            f"PENELOPE_HOST_TOKENS is {tokens}: {each * tokens / 1e9:.1f} GB of host memory, "
            f"where {max(room, 0) / 1e9:.1f} GB can be had: choose {max(room, 0) // each} or fewer"
        )


def _token_bytes(config: dict[str, Any], settings: Any) -> int:
    """Of one token's K and V in all layers, over all ranks."""
    heads: int = config["num_attention_heads"]
    width: int = config.get("head_dim") or config["hidden_size"] // heads
    kinds = (settings.kv_cache_dtype, settings.dtype, config.get("torch_dtype"))
    kind = next((k for k in kinds if k not in (None, "auto")), "")
    kv_heads: int = config.get("num_key_value_heads", heads)
    return 2 * config["num_hidden_layers"] * kv_heads * width * _DTYPE_BYTES.get(kind, 2)


class HostMemory:
    """Slots of KV in host memory, by the token, allocated in whole pages."""

    def __init__(self, device_pool: Any, tokens: int, page_size: int) -> None:
        """Raises `InvalidConfigError` if the machine or the model has no room for it."""
        self._device_pool = device_pool
        self._device = torch.device(device_pool.device)
        self._forward: Any = None
        try:
            self.pool = self._build(tokens, page_size)
        except (ValueError, NotImplementedError, RuntimeError, OSError) as error:
            raise InvalidConfigError(
                f"PENELOPE_HOST_TOKENS is {tokens}, for which there is no room: {error}"
            ) from error

    @property
    def on_cpu(self) -> bool:
        """Whether this is the reference platform, where both tiers are plain memory."""
        return self._device.type == "cpu"

    def _build(self, tokens: int, page_size: int) -> HostKVCache:
        settings: dict[str, Any] = {
            "host_to_device_ratio": 1.0,  # the capacity below decides
            "page_size": page_size,
            "layout": _LAYOUT,
            "allocator_type": "default",
            "pool_label": "penelope",
            "host_token_capacity": tokens,
        }
        with ExitStack() as scopes:
            if type(self._device_pool) not in _POOLS:
                raise NotImplementedError(
                    f"{type(self._device_pool).__name__} keeps more by the slot than K and V"
                )
            if not self.on_cpu:
                return _build_mha_mla_host_pool(pool=self._device_pool, **settings)
            if not isinstance(self._device_pool, MHATokenToKVPool):
                raise NotImplementedError("the CPU platform keeps K and V of attention heads only")
            # The gigabytes that SGLang leaves to a server would be all of a small machine.
            scopes.enter_context(host_memory_budget_scope(available_host_memory_bytes()))
            kind, buffers, shape = _mha_host_inputs(self._device_pool)
            return kind(buffers, host_size=0, pin_memory=False, **shape, **settings)

    def follow(self, forward_stream: Any) -> None:
        """Name the stream that the engine's batches run on."""
        self._forward = forward_stream

    def available(self) -> int:
        """Free slots."""
        return int(self.pool.available_size())

    def allocate(self, tokens: int) -> torch.Tensor:
        """Slots for whole pages.  Raises `StoreError` if there are fewer."""
        slots = self.pool.alloc(tokens)
        if slots is None:
            raise StoreError(f"{tokens} host slots are asked for, {self.available()} are free")
        return slots

    def free(self, slots: torch.Tensor) -> None:
        self.pool.free(slots)

    def clear(self) -> None:
        """Every slot is free."""
        self.pool.clear()

    def copy(self, device: torch.Tensor, host: torch.Tensor, target: Residency) -> None:
        """Copy KV of all layers between device slots and host slots, one for one, to `target`.

        Raises `StoreError` if the copy could not be made.
        """
        try:
            with self._in_order():
                if self.on_cpu:
                    self._copy_rows(device, host, target)
                elif target is Residency.HOST:
                    self.pool.backup_from_device_all_layer(
                        self._device_pool, self._indices(host), device, _BACKEND
                    )
                else:
                    indices = self._indices(host)
                    for layer in range(self._device_pool.layer_num):
                        self.pool.load_to_device_per_layer(
                            self._device_pool, indices, device, layer, _BACKEND
                        )
        except RuntimeError as error:
            raise StoreError(
                f"a copy of {len(host)} tokens to the {target.value} failed: {error}"
            ) from error

    def _copy_rows(self, device: torch.Tensor, host: torch.Tensor, target: Residency) -> None:
        pool: Any = self.pool
        near = (*pool.device_k_buffers, *pool.device_v_buffers)
        for ours, far in zip(near, pool.host_kv_data_refs, strict=True):
            if target is Residency.HOST:
                far[host] = ours[device]
            else:
                ours[device] = far[host]

    def _indices(self, host: torch.Tensor) -> torch.Tensor:
        return host.to(self._device, non_blocking=True)

    @contextmanager
    def _in_order(self) -> Iterator[None]:
        if self.on_cpu:
            yield
            return
        assert self._forward is not None, "the scheduler's streams are not known yet"
        torch.get_device_module(self._device).current_stream().wait_stream(self._forward)
        yield
