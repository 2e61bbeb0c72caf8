"""What recomputing KV costs.

Unit: one query-key pair in one attention layer.  A token at position `p` costs `c + p`: `p` pairs
with what precedes it, and `c` for the linear layers, expressed in the same unit (Rethinking KV
Cache Eviction for Agentic LLM Serving, section 2.2):

    c = P / (2 * H * d)        P weights one token activates in one layer, H query heads, d head dim

A pair is 4*H*d FLOP in one layer (2*H*d for the score, 2*H*d for the weighted sum) and a weight is
2 FLOP a token, which is where the 2*H*d comes from.

All arithmetic is exact.  `c` is a `Fraction`; the sum of consecutive positions is an integer, so a
span's cost is one once multiplied by the denominator of `c` (1 for the presets).  Sums and
comparisons (an earlier span of equal length never costs more) therefore hold without rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from penelope.cost import hf_config
from penelope.policy.errors import PenelopeError

MOST_TOKENS = 1 << 40


class CostError(PenelopeError):
    """A cost that cannot be computed from the values given."""


class UnknownModel(CostError):
    """No preset has this name."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """The cost of prefilling one sequence with one model, in units of one layer.

    `linear` is `c`, averaged over `layers` when layers differ.  Raises `CostError` when a number
    cannot belong to a model.
    """

    name: str
    linear: Fraction
    layers: int
    heads: int
    head_dim: int
    kv_heads: int = 1
    """Key-value heads: they decide how much KV there is, not what computing it costs."""
    assumed: str = ""
    """What was assumed of the model because it is not known here; empty where nothing was."""

    def __post_init__(self) -> None:
        if self.linear < 0:
            raise CostError(f"linear cost {self.linear} of {self.name!r} is negative; give c >= 0")
        for field in ("layers", "heads", "head_dim", "kv_heads"):
            if getattr(self, field) < 1:
                raise CostError(f"{field} of {self.name!r} is below 1; give a positive integer")

    @property
    def scale(self) -> int:
        """The factor that makes every span's cost an integer: the denominator of `c`."""
        return self.linear.denominator

    @property
    def flops_per_unit(self) -> int:
        """Floating point operations that one unit stands for over all layers: 4*H*d*layers."""
        return 4 * self.heads * self.head_dim * self.layers

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV of one token over all layers: key and value, two bytes a number."""
        return self.layers * 2 * self.kv_heads * self.head_dim * 2

    def token(self, position: int) -> Fraction:
        """Units to compute the token at `position` (0 is the first): c + position.

        Raises `CostError` for a negative position.
        """
        if position < 0:
            raise CostError(f"position {position} is negative; positions start at 0")
        return self.linear + position

    def span(self, start: int, end: int) -> Fraction:
        """Units to compute the tokens `[start, end)`: (end-start) * (c + (start+end-1)/2).

        Raises `CostError` unless 0 <= start <= end.
        """
        return Fraction(self.scaled_span(start, end), self.scale)

    def scaled_span(self, start: int, end: int) -> int:
        """`span(start, end) * scale`, exactly: the form to accumulate over many spans.

        Raises `CostError` unless 0 <= start <= end.
        """
        if not 0 <= start <= end:
            raise CostError(f"span [{start}, {end}) is not one; give 0 <= start <= end")
        c = self.linear
        positions = (end - start) * (start + end - 1) // 2  # one of the two factors is even
        return (end - start) * c.numerator + positions * c.denominator


def from_hf_config(config: Mapping[str, object], name: str = "") -> CostModel:
    """The cost model of a Hugging Face `config.json`, given as a mapping (see `hf_config.read`).

    Raises `hf_config.MissingField`, `hf_config.InvalidField` or `hf_config.UnsupportedModel`.
    """
    shape = hf_config.read(config)
    return CostModel(
        name=name or shape.model_type,
        linear=Fraction(shape.weights, shape.layers * 2 * shape.heads * shape.head_dim),
        layers=shape.layers,
        heads=shape.heads,
        head_dim=shape.head_dim,
        kv_heads=shape.kv_heads,
        assumed=shape.assumed,
    )


_QWEN3: Mapping[str, object] = {
    "model_type": "qwen3",
    "head_dim": 128,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_position_embeddings": 40960,
}

# The fields of the published configurations that the cost depends on: presets take the same way
# as a user's file, so that a mistake in the reader shows in the three known values of c.
PRESET_CONFIGS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "qwen3-8b": {
            **_QWEN3,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
        },
        "qwen3-32b": {
            **_QWEN3,
            "hidden_size": 5120,
            "intermediate_size": 25600,
            "num_hidden_layers": 64,
            "num_attention_heads": 64,
        },
        "qwen3-235b-a22b": {
            **_QWEN3,
            "model_type": "qwen3_moe",
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 94,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1536,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
    }
)


def preset(name: str) -> CostModel:
    """The cost model of a published model, by name (a key of `PRESET_CONFIGS`).

    Raises `UnknownModel`, naming the presets.
    """
    if name not in PRESET_CONFIGS:
        known = ", ".join(sorted(PRESET_CONFIGS))
        raise UnknownModel(
            f"unknown model {name!r}; choose one of {known}, or give a Hugging Face config.json"
        )
    return from_hf_config(PRESET_CONFIGS[name], name)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the request after an eviction computes, in units, for two places to evict from."""

    evicted: int  # tokens
    tail: Fraction  # units, when the end of the cached context went
    start: Fraction  # units, when the tokens from the given position went

    @property
    def speedup(self) -> float:
        """How many times cheaper the request is when the tail was kept."""
        return float(self.tail / self.start)


def predict(model: CostModel, context: int, fraction: float, start: int, append: int) -> Prediction:
    """Evict `fraction` of `context` cached tokens, then append `append` tokens.

        tail   |################............|++|    computes [context - n, context + append)
        start  |##............##############|++|    computes [start, start + n) and the appended

    `n` is `fraction * context` rounded down; `start` is a position in tokens.  Raises `CostError`
    naming the argument that does not fit.
    """
    if context < 0:
        raise CostError(f"context {context} is negative; give the number of cached tokens")
    for name, tokens in (("context", context), ("append", append)):
        if tokens > MOST_TOKENS:
            raise CostError(
                f"{name} {tokens} is more than any model takes; give {MOST_TOKENS} at most"
            )
    if not 0 <= fraction <= 1:
        raise CostError(f"fraction {fraction} is not a share; give a number from 0 to 1")
    if append < 1:
        raise CostError(
            f"append {append} is below 1; give 1 or more: a request computes one token at least"
        )
    evicted = int(Fraction(str(fraction)) * context)
    if not 0 <= start <= context - evicted:
        raise CostError(
            f"start {start} leaves no room for {evicted} evicted tokens in a context of {context}; "
            f"give a start from 0 to {context - evicted}"
        )
    appended = model.span(context, context + append)
    return Prediction(
        evicted=evicted,
        tail=model.span(context - evicted, context) + appended,
        start=model.span(start, start + evicted) + appended,
    )


def predicted_speedup(
    model: CostModel, context: int, fraction: float, start: int, append: int
) -> float:
    """`predict(...).speedup`; raises the same errors."""
    return predict(model, context, fraction, start, append).speedup
