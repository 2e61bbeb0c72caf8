"""The weights that one token activates, read from a Hugging Face model configuration.

Counted: the query, key, value and output projections, the MLP or the active experts, shared
experts and routers.  Not counted, because they are below one part in a thousand of a layer or
outside the layers: biases, norms, rotary tables, embeddings and the output head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penelope.policy.errors import PenelopeError


class ModelConfigError(PenelopeError):
    """A model configuration from which no cost model can be made."""


class MissingField(ModelConfigError):
    """A field the cost depends on is not in the configuration."""


class InvalidField(ModelConfigError):
    """A field has a value that no model can have."""


class UnsupportedModel(ModelConfigError):
    """The model's cost does not have the form c + position."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the cost needs to know of a model; `weights` are summed over all layers."""

    model_type: str
    layers: int
    heads: int
    head_dim: int
    weights: int
    kv_heads: int


# Everything else that uses these field names has a gated MLP: gate, up and down projections.
_UNGATED = frozenset({"arcee", "gpt_neox", "nemotron", "phi", "starcoder2"})

# Layouts of expert layers that are named by fields whose meaning is not read here.  Guessing would
# give a wrong cost without a word.
_UNREAD_EXPERT_LAYOUTS = (
    "interleave_moe_layer_step",
    "moe_layer_start_index",
    "moe_layers_enum",
    "moe_every_n_layers",
    "moe_layer_interval",
    "shared_expert_layers",
)

_RECURRENT_FIELDS = (
    "attn_layer_period",
    "block_types",
    "full_attention_interval",
    "hybrid_override_pattern",
    "layers_block_type",
    "linear_attn_config",
    "linear_num_value_heads",
    "mamba_d_state",
    "mamba_num_heads",
    "ssm_cfg",
    "state_size",
)
_RECURRENT_TYPES = (
    "bamba", "falcon_h1", "falcon_mamba", "jamba", "lfm2", "mamba", "nemotron_h", "qwen3_next",
    "recurrent_gemma", "rwkv", "zamba",
)  # fmt: skip


def read(config: Mapping[str, object]) -> Shape:
    """Count the weights that one token activates in a dense or mixture-of-experts decoder.

    Fields as Llama, Mistral, Mixtral, Qwen2/3(-MoE), DeepSeek-MoE and GLM-MoE name them; the
    `text_config` of a multimodal model is read instead when there is one.  `head_dim` defaults to
    hidden_size / num_attention_heads, `num_key_value_heads` to num_attention_heads.

    Raises `MissingField`, `InvalidField`, or `UnsupportedModel` for sliding-window, chunked,
    sparse, linear, recurrent, hybrid and latent (MLA) attention and for encoder-decoders, with
    the reason.
    """
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        config = inner
    _refuse_other_attention(config)
    hidden = _positive(config, "hidden_size")
    layers = _positive(config, "num_hidden_layers")
    heads = _positive(config, "num_attention_heads")
    kv_heads = _positive(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise InvalidField(
            f"num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}; "
            "check both against the model's config.json"
        )
    if config.get("head_dim") is None and hidden % heads:
        raise MissingField(
            f"head_dim is missing and hidden_size {hidden} is not a multiple of "
            f"num_attention_heads {heads}; add head_dim"
        )
    head_dim = _positive(config, "head_dim", hidden // heads)
    attention = 2 * hidden * head_dim * (heads + kv_heads)
    sparse = sum(_sparse_layers(config, layers))
    weights = layers * attention
    if sparse < layers:
        weights += (layers - sparse) * _mlp(config, hidden, _positive(config, "intermediate_size"))
    if sparse:
        weights += sparse * _experts(config, hidden)
    return Shape(_model_type(config), layers, heads, head_dim, weights, kv_heads)


def _model_type(config: Mapping[str, object]) -> str:
    value = config.get("model_type", "")
    if not isinstance(value, str):
        raise InvalidField(f"model_type {value!r} is not a name; give a string")
    return value


def _mlp(config: Mapping[str, object], hidden: int, width: int) -> int:
    return (2 if _model_type(config) in _UNGATED else 3) * hidden * width


def _expert_count(config: Mapping[str, object]) -> int:
    for field in ("num_experts", "num_local_experts", "n_routed_experts"):
        if config.get(field) is not None:
            return _natural(config, field)
    return 0


def _experts(config: Mapping[str, object], hidden: int) -> int:
    """Weights one token activates in one expert layer: router, chosen and shared experts."""
    count = _expert_count(config)
    chosen = _positive(config, "num_experts_per_tok")
    if chosen > count:
        raise InvalidField(
            f"num_experts_per_tok {chosen} exceeds the {count} experts of a layer; "
            "check both against the model's config.json"
        )
    # Mixtral names its experts' width as a dense model does.
    widths = ("moe_intermediate_size", "intermediate_size")
    named = next((f for f in widths if config.get(f) is not None), widths[0])
    width = _positive(config, named)
    weights = hidden * count + chosen * _mlp(config, hidden, width)
    for field in ("n_shared_experts", "num_shared_experts"):
        if config.get(field) is not None:
            return weights + _natural(config, field) * _mlp(config, hidden, width)
    shared_width = _natural(config, "shared_expert_intermediate_size", 0)
    if shared_width:
        # Qwen2-MoE weighs its shared expert by a gate of one output.
        weights += _mlp(config, hidden, shared_width) + hidden
    return weights


def _sparse_layers(config: Mapping[str, object], layers: int) -> Iterator[bool]:
    """Whether each layer holds experts instead of one dense MLP."""
    if not _expert_count(config):
        yield from (False for _ in range(layers))
        return
    for field in _UNREAD_EXPERT_LAYOUTS:
        if config.get(field) is not None:
            raise UnsupportedModel(
                f"{field} places experts in a way that is not read here, and a guess would give a "
                "wrong cost; build CostModel with the model's own linear term instead"
            )
    step = _positive(config, "decoder_sparse_step", 1)
    dense_head = _natural(config, "first_k_dense_replace", 0)
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list | tuple) or not all(_is_int(i) for i in dense):
        raise InvalidField(f"mlp_only_layers {dense!r} is not a list of layer numbers; fix it")
    frequency = config.get("moe_layer_freq")
    if isinstance(frequency, list | tuple):
        if len(frequency) != layers:
            raise InvalidField(
                f"moe_layer_freq lists {len(frequency)} layers of {layers}; give one entry a layer"
            )
        chosen = [bool(entry) for entry in frequency]
    else:
        every = _positive(config, "moe_layer_freq", 1)
        chosen = [i % every == 0 for i in range(layers)]
    for i in range(layers):
        yield i >= dense_head and i not in dense and (i + 1) % step == 0 and chosen[i]


def _refuse_other_attention(config: Mapping[str, object]) -> None:
    model_type = _model_type(config)
    if config.get("is_encoder_decoder"):
        raise UnsupportedModel(
            "encoder-decoder model: its cache is not one causal history; use a decoder-only model"
        )
    if config.get("kv_lora_rank") is not None:
        raise UnsupportedModel(
            "latent attention (kv_lora_rank): a pair costs about three times as much in its "
            "absorbed form as in its expanded form and the engine chooses per batch, so no single "
            "c is right; use a model with plain or grouped-query attention"
        )
    if any(config.get(field) is not None for field in _RECURRENT_FIELDS) or model_type.startswith(
        _RECURRENT_TYPES
    ):
        raise UnsupportedModel(
            "linear-attention, state-space or hybrid layers: their state cannot be cut at a "
            "position and costs the same everywhere; use a model with full attention in all layers"
        )
    for field in ("index_topk", "sparse_attention_config", "sparse_config"):
        if config.get(field) is not None:
            raise UnsupportedModel(
                f"sparse attention ({field}): a token does not attend to everything before it, so "
                "its cost does not grow with position; use a model with full attention"
            )
    _refuse_layer_types(config)
    _refuse_windows(config)


def _refuse_layer_types(config: Mapping[str, object]) -> None:
    for field, full in (("layer_types", ("full_attention", "attention")), ("attn_type_list", (1,))):
        kinds = config.get(field)
        if kinds is None:
            continue
        if not isinstance(kinds, list | tuple):
            raise InvalidField(f"{field} {kinds!r} is not a list; give one entry a layer")
        other = next((kind for kind in kinds if kind not in full), None)
        if other is not None:
            raise UnsupportedModel(
                f"{field} has {other!r} layers: their cost does not grow with position; "
                "use a model with full attention in all layers"
            )


def _refuse_windows(config: Mapping[str, object]) -> None:
    if config.get("attention_chunk_size") is not None:
        raise UnsupportedModel(
            "chunked attention (attention_chunk_size): cost stops growing at a chunk's end; "
            "use a model with full attention in all layers"
        )
    window = config.get("sliding_window")
    # Qwen2 and Qwen3 keep a number here and switch it off beside it; an explicit list of layer
    # types that are all full (checked before) leaves it unused.
    if window is None or config.get("use_sliding_window") is False or config.get("layer_types"):
        return
    window = _positive(config, "sliding_window")
    if window < _natural(config, "max_position_embeddings", window + 1):
        raise UnsupportedModel(
            f"sliding-window attention ({window} tokens): cost stops growing at the window and KV "
            "before it is never read again; use a model with full attention in all layers"
        )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _natural(config: Mapping[str, object], field: str, default: int | None = None) -> int:
    value = config.get(field)
    if value is None:
        if default is None:
            raise MissingField(f"{field} is missing; add it from the model's config.json")
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidField(f"{field} {value!r} is not a whole number from 0; fix it")
    return value


def _positive(config: Mapping[str, object], field: str, default: int | None = None) -> int:
    value = _natural(config, field, default)
    if value < 1:
        raise InvalidField(f"{field} is {value}; give a whole number from 1")
    return value
