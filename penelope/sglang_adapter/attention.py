"""The attention backend of the CPU reference platform.

SGLang's ``torch_native`` pads the queries of a request to its whole length, so
a fully cached prefix still costs as much as computing it.  This one computes
new rows only, which is what makes cached tokens save time on the CPU as they do
on a GPU.  K and V are written to the pool before attention reads it, as the
refill of holes needs (every row of a batch sees every other row's K and V of
the same layer).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from torch.nn.functional import scaled_dot_product_attention

from penelope.sglang_adapter import deterministic

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

QUERY_TILE = 256


class NewRowsAttention(TorchNativeAttnBackend):
    """``torch_native`` restricted to new rows; bit-reproducible in deterministic mode."""

    def __init__(self, model_runner: Any) -> None:
        super().__init__(model_runner)
        self.deterministic = deterministic.enabled()
        self.plan: deterministic.TilePlan | None = None

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        super().init_forward_metadata(forward_batch)
        if not self.deterministic:
            return
        lengths = forward_batch.seq_lens.tolist()
        if forward_batch.forward_mode.is_decode():
            starts = [length - 1 for length in lengths]
        else:
            starts = forward_batch.extend_prefix_lens.tolist()
        rows = sum(lengths) - sum(starts)
        self.plan = deterministic.plan_tiles(
            forward_batch.req_pool_indices, starts, lengths, zero_row=rows
        )

    def _run_sdpa_forward_extend(  # noqa: PLR0913  (SGLang's signature)
        self,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        extend_prefix_lens: torch.Tensor,
        extend_seq_lens: torch.Tensor,
        encoder_lens: torch.Tensor | None = None,
        scaling: float | None = None,
        enable_gqa: bool = False,
        causal: bool = False,
        is_cross_attn: bool = False,
        sliding_window_size: int | None = None,
    ) -> torch.Tensor:
        _require_plain_causal(causal, encoder_lens, sliding_window_size)
        if self.deterministic:
            self._tiled(query, output, k_cache, v_cache, req_to_token, scaling)
            return output
        first = 0
        for index, (length, prefix) in enumerate(
            zip(seq_lens.tolist(), extend_prefix_lens.tolist(), strict=True)
        ):
            slots = req_to_token[req_pool_indices[index], :length]
            keys = k_cache[slots].transpose(0, 1).to(query.dtype)
            values = v_cache[slots].transpose(0, 1).to(query.dtype)
            for start in range(prefix, length, QUERY_TILE):
                end = min(start + QUERY_TILE, length)
                rows = slice(first + start - prefix, first + end - prefix)
                output[rows] = _attend(
                    query[rows].transpose(0, 1),
                    keys[:, :end],
                    values[:, :end],
                    start,
                    scaling,
                    enable_gqa,
                ).transpose(0, 1)
            first += length - prefix
        return output

    def _run_sdpa_forward_decode(  # noqa: PLR0913  (SGLang's signature)
        self,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        encoder_lens: torch.Tensor | None = None,
        scaling: float | None = None,
        enable_gqa: bool = False,
        causal: bool = False,
        is_cross_attn: bool = False,
        sliding_window_size: int | None = None,
    ) -> torch.Tensor:
        if self.deterministic:
            _require_plain_causal(True, encoder_lens, sliding_window_size)
            self._tiled(query, output, k_cache, v_cache, req_to_token, scaling)
            return output
        result: torch.Tensor = super()._run_sdpa_forward_decode(
            query,
            output,
            k_cache,
            v_cache,
            req_to_token,
            req_pool_indices,
            seq_lens,
            encoder_lens,
            scaling,
            enable_gqa,
            causal,
            is_cross_attn,
            sliding_window_size,
        )
        return result

    def _tiled(
        self,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        req_to_token: torch.Tensor,
        scaling: float | None,
    ) -> None:
        assert self.plan is not None, "attention before init_forward_metadata"
        scale = scaling if scaling is not None else query.shape[-1] ** -0.5
        deterministic.tiled_attention(
            query, output, k_cache, v_cache, req_to_token, self.plan, scale
        )


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    start: int,
    scaling: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """Queries at positions ``start …`` over all keys up to the last query."""
    mask = None
    if start > 0:
        positions = torch.arange(start, keys.shape[1])
        mask = torch.arange(keys.shape[1])[None, :] <= positions[:, None]
    return scaled_dot_product_attention(
        query[None],
        keys[None],
        values[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=enable_gqa,
    )[0]


def _require_plain_causal(
    causal: bool, encoder_lens: torch.Tensor | None, sliding_window_size: int | None
) -> None:
    if not causal or encoder_lens is not None or sliding_window_size not in (None, -1):
        raise NotImplementedError(
            "penelope_rows computes full causal self-attention only; "
            "use --attention-backend torch_native for this model"
        )
