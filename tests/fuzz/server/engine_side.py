"""Loaded into the fuzzed engine: adapters compute the same bits whatever is in the batch.

SGLang multiplies by an adapter's matrices in one product for each request of a batch, whose shape,
and so whose last bits, depend on how a prompt was cut.  As with the model's own matrices
(`penelope.sglang_adapter.deterministic`) every product here has a fixed number of rows.  SGLang
also pins what its adapters need on the host, which fails without a GPU: here nothing is pinned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from penelope.sglang_adapter.deterministic import tiled_linear


def load() -> None:
    if not torch.cuda.is_available():
        _never_pin()
    backend = "sglang.srt.lora.backend.torch_backend"
    HookRegistry.register(f"{backend}.sgemm_lora_a_fwd", shrink, HookType.REPLACE)
    HookRegistry.register(f"{backend}.sgemm_lora_b_fwd", expand, HookType.REPLACE)


def _never_pin() -> None:
    for name in ("tensor", "zeros", "ones", "empty", "arange"):
        setattr(torch, name, _unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *_: self


def _unpinned(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def function(*arguments: Any, **named: Any) -> torch.Tensor:
        named.pop("pin_memory", None)
        return original(*arguments, **named)

    return function


def shrink(
    inputs: torch.Tensor, weights: torch.Tensor, batch_info: Any, num_slices: int = 1
) -> torch.Tensor:
    """In place of `sgemm_lora_a_fwd`: [tokens, in] to [tokens, slices * rank]."""
    most = weights.shape[1]
    output = inputs.new_zeros((inputs.shape[0], most))
    for adapter, rows, rank in _segments(batch_info):
        width = num_slices * rank
        scale = batch_info.scalings_cpu[adapter]
        output[rows, :width] = tiled_linear(inputs[rows], weights[adapter, :width]) * scale
    return output


def expand(
    inputs: torch.Tensor,
    weights: torch.Tensor,
    batch_info: Any,
    slice_offsets: torch.Tensor,
    base_output: torch.Tensor | None = None,
) -> torch.Tensor:
    """In place of `sgemm_lora_b_fwd`: [tokens, slices * rank], added to [tokens, out]."""
    total = int(slice_offsets[-1])
    output = inputs.new_zeros((inputs.shape[0], total)) if base_output is None else base_output
    for adapter, rows, rank in _segments(batch_info):
        for index in range(len(slice_offsets) - 1):
            start, end = int(slice_offsets[index]), int(slice_offsets[index + 1])
            part = inputs[rows, index * rank : (index + 1) * rank]
            output[rows, start:end] += tiled_linear(part, weights[adapter, start:end, :rank])
    return output


def _segments(batch_info: Any) -> list[tuple[int, slice, int]]:
    """(adapter, rows, rank) of every request in the batch that has an adapter."""
    found, at = [], 0
    adapters = batch_info.weight_indices_cpu.tolist()
    for adapter, length in zip(adapters, batch_info.seg_lens_cpu.tolist(), strict=False):
        rank = int(batch_info.lora_ranks_cpu[adapter])
        if length and rank:
            found.append((adapter, slice(at, at + length), rank))
        at += length
    return found
