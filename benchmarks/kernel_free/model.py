"""A decoder of the Qwen3 kind with random weights, and its prefill over one KV buffer.

Values do not change what a dense prefill costs, so random weights measure as well as trained ones
and nothing is downloaded.  They are scaled so that the model is well-behaved, as trained models
are: each sublayer adds a small part to the residual stream, and attention is neither uniform nor
one-hot.  Without the first a rounding difference would grow from layer to layer until it hid
everything; without the second no row would notice what it attends to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from benchmarks.kernel_free.attention import Attention
from penelope.cost import CostModel, from_hf_config

EPSILON = 1e-6
ROPE_BASE = 1e6
# Of queries and keys: the logits' standard deviation is its square, 2.9, so that of thousands of
# random keys a row attends to a few.
HEAD_GAIN = 1.7


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model; the defaults are Qwen3-8B's."""

    layers: int = 36
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    intermediate: int = 12288
    vocabulary: int = 151_936

    def cost(self) -> CostModel:
        """The policy's cost model of this shape."""
        return from_hf_config(
            {
                "model_type": "qwen3",
                "num_hidden_layers": self.layers,
                "hidden_size": self.hidden,
                "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads,
                "head_dim": self.head_dim,
                "intermediate_size": self.intermediate,
                "vocab_size": self.vocabulary,
            },
            "random weights",
        )

    def kv_bytes(self, dtype: torch.dtype) -> int:
        """Of one token, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * int(dtype.itemsize)

    def weight_bytes(self, dtype: torch.dtype) -> int:
        heads = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        layer = self.hidden * (heads + 3 * self.intermediate)
        return (self.layers * layer + 2 * self.vocabulary * self.hidden) * int(dtype.itemsize)


@dataclass(frozen=True, slots=True)
class Piece:
    """The tokens of positions [start, end) of a sequence whose position 0 has slot `base`.

    slots  ....|base                                      |....
               |== in the buffer ==|+ computed +|
               0                 start         end
    """

    base: int
    start: int
    tokens: torch.Tensor

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def part(self, first: int, last: int) -> Piece:
        """Its rows `first` to `last`."""
        return Piece(self.base, self.start + first, self.tokens[first:last])


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: torch.Tensor
    qkv: torch.Tensor
    query_norm: torch.Tensor
    key_norm: torch.Tensor
    out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class Model:
    """Weights, and `prefill`."""

    def __init__(
        self,
        shape: Shape,
        attention: Attention,
        device: torch.device,
        dtype: torch.dtype,
        seed: int = 0,
    ) -> None:
        self.shape, self.attention, self.device, self.dtype = shape, attention, device, dtype
        self._source = torch.Generator(device).manual_seed(seed)
        s = shape
        queries, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
        # What the sublayers add up to is as large as the embedding.
        adding = 1 / math.sqrt(2 * s.layers)
        self.embedding = self._random(s.vocabulary, s.hidden, 1.0)
        self.layers = [
            Layer(
                self._ones(s.hidden),
                self._random(queries + 2 * keys, s.hidden),
                self._ones(s.head_dim) * HEAD_GAIN,
                self._ones(s.head_dim) * HEAD_GAIN,
                self._random(s.hidden, queries, adding / math.sqrt(queries)),
                self._ones(s.hidden),
                self._random(2 * s.intermediate, s.hidden),
                self._random(s.hidden, s.intermediate, adding / math.sqrt(s.intermediate)),
            )
            for _ in range(s.layers)
        ]
        self.norm = self._ones(s.hidden)
        self.head = self._random(s.vocabulary, s.hidden)
        half = torch.arange(0, s.head_dim, 2, device=device, dtype=torch.float64) / s.head_dim
        self._frequencies = ROPE_BASE**-half

    def _ones(self, size: int) -> torch.Tensor:
        return torch.ones(size, device=self.device, dtype=self.dtype)

    def _random(self, rows: int, columns: int, deviation: float | None = None) -> torch.Tensor:
        matrix = torch.empty(rows, columns, device=self.device, dtype=self.dtype)
        matrix.normal_(0, deviation or 1 / math.sqrt(columns), generator=self._source)
        return matrix

    def random_tokens(self, count: int) -> torch.Tensor:
        return torch.randint(
            self.shape.vocabulary, (count,), generator=self._source, device=self.device
        )

    def buffer(self, slots: int) -> torch.Tensor:
        """K and V of so many tokens: [layer, K or V, slot, kv head, head dim]."""
        s = self.shape
        return torch.zeros(
            s.layers, 2, slots, s.kv_heads, s.head_dim, device=self.device, dtype=self.dtype
        )

    def prefill(
        self, pieces: Sequence[Piece], kv: torch.Tensor, *, write_first: bool = True
    ) -> torch.Tensor:
        """One forward pass over all pieces; the logits of the last row.

        In every layer the K and V of all pieces are in the buffer before any piece's attention
        reads it.  With `write_first=False` a piece's are written just before its own attention,
        last piece first: an engine whose attention takes the batch's new rows from elsewhere than
        the cache, and in which a request therefore misses what its phantom computes beside it.
        """
        positions = torch.cat(
            [torch.arange(p.start, p.end, device=self.device) for p in pieces]
        ).to(torch.float64)
        angles = positions.unsqueeze(1) * self._frequencies
        rotation = (angles.cos().to(self.dtype)[:, None], angles.sin().to(self.dtype)[:, None])
        x = self.embedding[torch.cat([p.tokens for p in pieces])]
        for layer, cache in zip(self.layers, kv, strict=True):
            x = x + self._attend(layer, x, rotation, pieces, cache, write_first)
            gate, up = functional.linear(self._rms(x, layer.mlp_norm), layer.gate_up).chunk(
                2, dim=-1
            )
            x = x + functional.linear(functional.silu(gate) * up, layer.down)
        return functional.linear(self._rms(x[-1:], self.norm), self.head)[0].float()

    def _attend(
        self,
        layer: Layer,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        pieces: Sequence[Piece],
        cache: torch.Tensor,
        write_first: bool,
    ) -> torch.Tensor:
        s = self.shape
        rows = len(x)
        sizes = [s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim]
        q, k, v = functional.linear(self._rms(x, layer.attention_norm), layer.qkv).split(
            sizes, dim=-1
        )
        q = _rotate(self._rms(q.reshape(rows, s.heads, -1), layer.query_norm), rotation)
        k = _rotate(self._rms(k.reshape(rows, s.kv_heads, -1), layer.key_norm), rotation)
        v = v.reshape(rows, s.kv_heads, -1)
        spans = list(_rows_of(pieces))
        if write_first:
            for piece, own in spans:
                _write(cache, piece, k[own], v[own])
        out = torch.empty_like(q)
        for piece, own in spans if write_first else reversed(spans):
            if not write_first:
                _write(cache, piece, k[own], v[own])
            keys, values = cache[:, piece.base : piece.base + piece.end]
            out[own] = self.attention(q[own], keys, values)
        return functional.linear(out.reshape(rows, -1), layer.out)

    def _rms(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, EPSILON)


def _rotate(x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _write(cache: torch.Tensor, piece: Piece, k: torch.Tensor, v: torch.Tensor) -> None:
    cache[0, piece.base + piece.start : piece.base + piece.end] = k
    cache[1, piece.base + piece.start : piece.base + piece.end] = v


def _rows_of(pieces: Iterable[Piece]) -> Iterator[tuple[Piece, slice]]:
    at = 0
    for piece in pieces:
        yield piece, slice(at, at + len(piece.tokens))
        at += len(piece.tokens)


def steps(pieces: Sequence[Piece], rows: int) -> list[list[Piece]]:
    """Chunked prefill: batches of at most `rows` rows, pieces in order, cut where one is full."""
    found: list[list[Piece]] = [[]]
    room = rows
    for piece in pieces:
        at = 0
        while at < len(piece.tokens):
            if room == 0:
                found.append([])
                room = rows
            taken = min(room, len(piece.tokens) - at)
            found[-1].append(piece.part(at, at + taken))
            at, room = at + taken, room - taken
    return found
