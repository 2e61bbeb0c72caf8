"""Deterministic mode of the CPU reference platform.

Floating-point sums depend on the order of their terms, and libraries choose
that order by the shape of a call.  So the same token, computed once alone and
once inside a longer batch, usually differs in its last bits, and a test that
compares a refilled history with a full prefill could only compare roughly.

With ``PENELOPE_DETERMINISTIC=1`` every matrix product has a shape that does not
depend on the batch:

* linear layers and the output head work on tiles of ``ROWS`` rows, the last one
  padded with zeros;
* attention works on tiles of ``ROWS`` query positions, aligned to the absolute
  position, over key blocks of ``KEYS`` positions in ascending order with an
  online softmax; the last block is padded and masked.

The result of a token is then a function of its history alone, bit for bit,
however requests are batched, chunked or refilled.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from penelope.sglang_adapter.options import switch

ROWS = 16
KEYS = 64


def enabled() -> bool:
    return switch(os.environ, "PENELOPE_DETERMINISTIC")


def tiled_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``x @ weight.T + bias`` in products of exactly ``ROWS`` rows."""
    flat = x.reshape(-1, x.shape[-1])
    rows = flat.shape[0]
    tiles = -(-rows // ROWS)
    padded = flat.new_zeros((tiles * ROWS, flat.shape[1]))
    padded[:rows] = flat
    batched = torch.bmm(padded.view(tiles, ROWS, -1), weight.t().expand(tiles, -1, -1)).reshape(
        tiles * ROWS, -1
    )[:rows]
    if bias is not None:
        batched = batched + bias
    return batched.reshape(*x.shape[:-1], weight.shape[0])


@dataclass(frozen=True)
class TilePlan:
    """Which rows and which KV slots each query tile works on, for one forward pass.

    Tiles are sorted by their number of key blocks, longest first, so that the
    tiles that still need block ``j`` are always the first ``active[j]``.
    """

    query_rows: torch.Tensor  # [tiles, ROWS], index into q, or the zero row behind it
    positions: torch.Tensor  # [tiles, ROWS], absolute position of each row
    lengths: torch.Tensor  # [tiles], tokens of the tile's request
    table_rows: torch.Tensor  # [tiles], row of req_to_token
    active: tuple[int, ...]  # per key block: how many tiles need it

    def slots(self, req_to_token: torch.Tensor, block: int) -> torch.Tensor:
        """KV slots of key block ``block`` for the active tiles; slot 0 past the end."""
        count = self.active[block]
        keys = torch.arange(block * KEYS, (block + 1) * KEYS)
        inside = keys[None, :] < self.lengths[:count, None]
        # Indexing past the table's width would fail; the mask drops those columns.
        columns = keys.clamp(max=req_to_token.shape[1] - 1)
        rows = self.table_rows[:count]
        found = req_to_token[rows[:, None], columns[None, :]].to(torch.int64)
        return torch.where(inside, found, torch.zeros_like(found))


def plan_tiles(
    table_rows: torch.Tensor, starts: list[int], lengths: list[int], zero_row: int
) -> TilePlan:
    """Tiles for requests whose queries are positions ``[start, length)``, in batch order."""
    tiles: list[tuple[int, list[int], list[int], int, int]] = []
    first_row = 0
    for index, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        for tile_start in range(start // ROWS * ROWS, length, ROWS):
            span = list(range(tile_start, tile_start + ROWS))
            rows = [first_row + p - start if start <= p < length else zero_row for p in span]
            blocks = (tile_start + ROWS - 1) // KEYS + 1
            tiles.append((blocks, rows, span, length, index))
        first_row += length - start
    tiles.sort(key=lambda tile: -tile[0])
    most = tiles[0][0] if tiles else 0
    return TilePlan(
        query_rows=torch.tensor([t[1] for t in tiles], dtype=torch.int64),
        positions=torch.tensor([t[2] for t in tiles], dtype=torch.int64),
        lengths=torch.tensor([t[3] for t in tiles], dtype=torch.int64),
        table_rows=table_rows.to(torch.int64)[
            torch.tensor([t[4] for t in tiles], dtype=torch.int64)
        ],
        active=tuple(sum(t[0] > j for t in tiles) for j in range(most)),
    )


def tiled_attention(
    q: torch.Tensor,
    out: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    plan: TilePlan,
    scaling: float,
) -> None:
    """Causal attention of ``q`` [rows, heads, dim] over the cache, into ``out``."""
    heads, dim = q.shape[1], q.shape[2]
    kv_heads, value_dim = k_cache.shape[1], v_cache.shape[2]
    group = heads // kv_heads
    tiles = plan.query_rows.shape[0]
    with_zero = torch.cat([q, q.new_zeros((1, heads, dim))])
    # [tiles, ROWS, kv_heads, group, dim] -> [tiles, kv_heads, ROWS * group, dim]
    query = (
        with_zero[plan.query_rows]
        .view(tiles, ROWS, kv_heads, group, dim)
        .permute(0, 2, 1, 3, 4)
        .reshape(tiles, kv_heads, ROWS * group, dim)
        * scaling
    )
    best = query.new_full((tiles, kv_heads, ROWS * group, 1), float("-inf"))
    total = torch.zeros_like(best)
    acc = query.new_zeros((tiles, kv_heads, ROWS * group, value_dim))
    for block, count in enumerate(plan.active):
        slots = plan.slots(req_to_token, block)
        keys = k_cache[slots].to(query.dtype).permute(0, 2, 3, 1).contiguous()
        values = v_cache[slots].to(query.dtype).transpose(1, 2).contiguous()
        scores = torch.matmul(query[:count], keys)
        # Only a tile's last block holds keys after its queries (KEYS is a multiple of ROWS).
        settled = plan.active[block + 1] if block + 1 < len(plan.active) else 0
        _mask_tail(scores, values, plan, block, settled, count, group)
        peak = torch.maximum(best[:count], scores.amax(dim=-1, keepdim=True))
        weights = torch.exp(scores - peak)
        shrink = torch.exp(best[:count] - peak)
        total[:count] = total[:count] * shrink + weights.sum(dim=-1, keepdim=True)
        acc[:count] = acc[:count] * shrink + torch.matmul(weights, values)
        best[:count] = peak
    result = (
        (acc / total)
        .view(tiles, kv_heads, ROWS, group, value_dim)
        .permute(0, 2, 1, 3, 4)
        .reshape(tiles * ROWS, heads, value_dim)
    )
    rows = plan.query_rows.reshape(-1)
    real = rows < q.shape[0]
    out[rows[real]] = result[real]


def _mask_tail(
    scores: torch.Tensor,
    values: torch.Tensor,
    plan: TilePlan,
    block: int,
    first: int,
    last: int,
    group: int,
) -> None:
    """Hide keys after each query, and zero the padding, in tiles ``[first, last)``."""
    keys = torch.arange(block * KEYS, (block + 1) * KEYS)
    hidden = keys[None, None, :] > plan.positions[first:last, :, None]
    scores[first:last].masked_fill_(hidden.repeat_interleave(group, dim=1)[:, None], float("-inf"))
    padding = keys[None, :] >= plan.lengths[first:last, None]
    values[first:last].masked_fill_(padding[:, None, :, None], 0.0)


def linear_method_apply(
    original: Any, method: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """AROUND ``UnquantizedLinearMethod.apply``."""
    return tiled_linear(x, layer.weight, bias)


def compute_lm_head(
    original: Any,
    processor: Any,
    hidden_states: torch.Tensor,
    lm_head: Any,
    embedding_bias: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """AROUND ``LogitsProcessor._compute_lm_head``."""
    logits = tiled_linear(hidden_states.to(lm_head.weight.dtype), lm_head.weight, embedding_bias)
    if out is not None and out.shape == logits.shape:
        out.copy_(logits)
        return out
    return logits
