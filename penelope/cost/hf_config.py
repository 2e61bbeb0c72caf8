"""The weights that one token activates, read from a Hugging Face model configuration.

Counted: the query, key, value and output projections, the MLP or the active experts, shared
experts and routers.  Not counted, because they are below one part in a thousand of a layer or
outside the layers: biases, norms, rotary tables, embeddings and the output head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penelope.cost.hf_layouts import (
    ENCODER_DECODERS,
    ENCODERS,
    EXACT_RECURRENT_TYPES,
    LAYOUTS,
    RECURRENT_TYPES,
    Layout,
)
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
    assumed: str = ""
    """What was assumed because the type is not known; empty where nothing was."""


_RECURRENT_BEGINNINGS = tuple(t for t in RECURRENT_TYPES if t not in EXACT_RECURRENT_TYPES)

# Layouts of expert layers that are named by fields whose meaning is not read here.  Guessing would
# give a wrong cost without a word.
_UNREAD_EXPERT_LAYOUTS = (
    "interleave_moe_layer_step",
    "moe_layer_start_index",
    "moe_layer_end_index",
    "moe_layers_enum",
    "moe_every_n_layers",
    "moe_layer_interval",
    "shared_expert_layers",
)

_ERNIE_LAYOUT = ("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval")

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

_EXPERT_COUNTS = (
    *("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    *("num_routed_experts",),
)
_EXPERTS_CHOSEN = (
    *("num_experts_per_tok", "moe_k", "moe_topk", "moe_top_k", "num_experts_per_token"),
)
_SHARED_COUNTS = (
    *("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
)

# Beyond these no model is: a mistake in the file, or a joke.
_MOST = {
    "hidden_size": 1 << 20,
    "num_hidden_layers": 1 << 14,
    "num_attention_heads": 1 << 14,
    "num_key_value_heads": 1 << 14,
    "head_dim": 1 << 14,
}
_MOST_OF_OTHERS = 1 << 24

# What says that layers differ in size, or share KV, in a way that is not read here.
_UNREAD_LAYERS = (
    *("block_configs", "num_kv_shared_layers", "use_cla", "cross_attention_layers"),
    *("add_cross_attention", "hidden_size_per_layer_input", "moe_latent_size"),
)

_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "CausalLM")


def read(config: Mapping[str, object]) -> Shape:
    """Count the weights that one token activates in a dense or mixture-of-experts decoder.

    The model's type decides what its fields mean (see `hf_layouts`); the `text_config` of a
    multimodal model is read instead when there is one.  `head_dim` defaults to hidden_size /
    num_attention_heads, `num_key_value_heads` to num_attention_heads.  A type that is not known is
    taken for a plain gated decoder, which `Shape.assumed` says.

    Raises `MissingField`, `InvalidField`, or `UnsupportedModel` for sliding-window, chunked,
    sparse, linear, recurrent, hybrid and latent (MLA) attention, for encoders and
    encoder-decoders, and for experts of a type that is not known to have any, with the reason.
    """
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        config = inner
    model_type = _model_type(config)
    known = LAYOUTS.get(model_type)
    layout = known or Layout()
    config = {**config, **{ours: config.get(name) for ours, name in layout.names.items()}}
    _refuse_other_attention(config)
    _refuse_what_contradicts(config, known)
    hidden = _positive(config, "hidden_size")
    layers = _positive(config, "num_hidden_layers")
    heads = _positive(config, "num_attention_heads")
    kv_heads = _kv_heads(config, layout, heads)
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
        width = _positive(config, "intermediate_size", layout.mlp_factor * hidden or None)
        weights += (layers - sparse) * _mlp(layout, hidden, width)
    if sparse:
        weights += sparse * _experts(config, layout, hidden)
    assumed = ""
    if known is None:
        named = f"model_type {model_type[:60]!r} is" if model_type else "without model_type, it is"
        assumed = f"{named} not known here: taken for a plain decoder with gated MLPs"
    return Shape(model_type, layers, heads, head_dim, weights, kv_heads, assumed)


def _model_type(config: Mapping[str, object]) -> str:
    value = config.get("model_type", "")
    if not isinstance(value, str):
        raise InvalidField(f"model_type {_shown(value)} is not a name; give a string")
    return value


def _kv_heads(config: Mapping[str, object], layout: Layout, heads: int) -> int:
    if layout.kv_heads == "all":
        return heads
    if layout.kv_heads == "multi-query":
        return heads if config.get("multi_query") is False else 1
    if layout.kv_heads == "falcon":
        if config.get("new_decoder_architecture"):
            return _positive(config, "num_kv_heads", heads)
        return heads if config.get("multi_query") is False else 1
    return _positive(config, "num_key_value_heads", heads)


def _refuse_what_contradicts(config: Mapping[str, object], known: Layout | None) -> None:
    """Refuse experts where the type has none, and what no type in the table has."""
    for field in _UNREAD_LAYERS:
        if config.get(field):
            raise UnsupportedModel(
                f"{field} makes layers differ in a way that is not read here, and a guess would "
                "give a wrong cost; build CostModel with the model's own linear term instead"
            )
    for field in known.requires if known else ():
        if config.get(field) is None:
            raise MissingField(f"{field} is missing; add it from the model's config.json")
    model_type = _model_type(config)
    if known is None:
        _refuse_unknown(config, model_type)
    elif not known.experts and _expert_count(config):
        raise UnsupportedModel(
            f"model_type {model_type} has no experts, but {_named(config, _EXPERT_COUNTS)} counts "
            "some; correct model_type"
        )


def _refuse_unknown(config: Mapping[str, object], model_type: str) -> None:
    named = sorted(
        field
        for field, value in config.items()
        if value and any(word in field.lower() for word in ("expert", "moe"))
    )
    if named:
        raise UnsupportedModel(
            f"model_type {model_type[:60]!r} is not known here and has experts "
            f"({', '.join(named)[:80]}), "
            "which every type lays out in its own way; build CostModel with its own linear term"
        )
    architectures = config.get("architectures")
    if architectures and not (
        isinstance(architectures, list | tuple)
        and any(isinstance(a, str) and a.endswith(_CAUSAL) for a in architectures)
    ):
        raise UnsupportedModel(
            f"architectures {_shown(architectures)} is no causal decoder that is known here; use "
            "a decoder-only model"
        )


def _mlp(layout: Layout, hidden: int, width: int) -> int:
    return (3 if layout.gated else 2) * hidden * width


def _named(config: Mapping[str, object], fields: Sequence[str]) -> str:
    """The first of these fields that is there; the first of all if none is."""
    return next((field for field in fields if config.get(field) is not None), fields[0])


def _expert_count(config: Mapping[str, object]) -> int:
    field = _named(config, _EXPERT_COUNTS)
    return _natural(_alike(config, field), field, 0)


def _experts(config: Mapping[str, object], layout: Layout, hidden: int) -> int:
    """Weights one token activates in one expert layer: router, chosen and shared experts."""
    count = _expert_count(config)
    field = _named(config, _EXPERTS_CHOSEN)
    chosen = _positive(_alike(config, field), field)
    if chosen > count:
        raise InvalidField(
            f"{field} {chosen} exceeds the {count} experts of a layer; "
            "check both against the model's config.json"
        )
    width = _positive(config, layout.expert_width)
    expert = _mlp(layout, hidden, width)
    weights = hidden * count + (chosen + layout.shared_as_wide) * expert
    if not layout.shared_as_wide:
        shared = _named(config, _SHARED_COUNTS)
        weights += _natural(_alike(config, shared), shared, 0) * expert
    shared_width = _natural(config, "shared_expert_intermediate_size", 0)
    if shared_width:
        # Qwen2-MoE weighs its shared expert by a gate of one output.
        weights += _mlp(layout, hidden, shared_width) + hidden
    return weights + _mlp(layout, hidden, _natural(config, "shared_intermediate_size", 0))


def _alike(config: Mapping[str, object], field: str) -> Mapping[str, object]:
    """With one number for a field that lists the same one for every layer."""
    value = config.get(field)
    if not isinstance(value, list | tuple):
        return config
    if not value or any(entry != value[0] for entry in value):
        raise UnsupportedModel(
            f"{field} differs from layer to layer, which is not read here; build CostModel with "
            "the model's own linear term instead"
        )
    return {**config, field: value[0]}


def _sparse_layers(config: Mapping[str, object], layers: int) -> Iterator[bool]:
    """Whether each layer holds experts instead of one dense MLP."""
    if not _expert_count(config):
        yield from (False for _ in range(layers))
        return
    ernie = _model_type(config) == "ernie4_5_moe"
    for field in _UNREAD_EXPERT_LAYOUTS:
        if config.get(field) is not None and not (ernie and field in _ERNIE_LAYOUT):
            raise UnsupportedModel(
                f"{field} places experts in a way that is not read here, and a guess would give a "
                "wrong cost; build CostModel with the model's own linear term instead"
            )
    step = _positive(config, "moe_layer_interval" if ernie else "decoder_sparse_step", 1)
    first = _natural(config, "moe_layer_start_index" if ernie else "first_k_dense_replace", 0)
    last = layers
    # -1 stands for the last layer.
    if ernie and config.get("moe_layer_end_index") not in (None, -1):
        last = _natural(config, "moe_layer_end_index")
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list | tuple) or not all(_is_int(i) for i in dense):
        raise InvalidField(
            f"mlp_only_layers {_shown(dense)} is not a list of layer numbers; fix it"
        )
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
        yield first <= i <= last and i not in dense and (i + 1) % step == 0 and chosen[i]


def _refuse_other_attention(config: Mapping[str, object]) -> None:
    model_type = _model_type(config)
    if config.get("is_encoder_decoder") or _is_of(model_type, ENCODER_DECODERS):
        raise UnsupportedModel(
            "encoder-decoder model: its cache is not one causal history; use a decoder-only model"
        )
    if (
        _is_of(model_type, ENCODERS)
        or config.get("is_causal") is False
        or config.get("use_bidirectional_attention")
    ):
        raise UnsupportedModel(
            "encoder: a token attends to those behind it too, so nothing of it can be cached; use "
            "a decoder-only model"
        )
    if config.get("kv_lora_rank") is not None:
        raise UnsupportedModel(
            "latent attention (kv_lora_rank): a pair costs about three times as much in its "
            "absorbed form as in its expanded form and the engine chooses per batch, so no single "
            "c is right; use a model with plain or grouped-query attention"
        )
    if any(config.get(field) is not None for field in _RECURRENT_FIELDS) or (
        model_type.startswith(_RECURRENT_BEGINNINGS) or model_type in EXACT_RECURRENT_TYPES
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
            raise InvalidField(f"{field} {_shown(kinds)} is not a list; give one entry a layer")
        other = next((kind for kind in kinds if kind not in full), None)
        if other is not None:
            raise UnsupportedModel(
                f"{field} has {_shown(other)} layers: their cost does not grow with position; "
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


def _is_of(model_type: str, families: Sequence[str]) -> bool:
    """Whether a type is one of these, or a variant: `deberta` is, as `deberta-v2`."""
    return model_type not in LAYOUTS and any(
        model_type == family or model_type.startswith((f"{family}-", f"{family}_"))
        for family in families
    )


def _shown(value: object) -> str:
    """A value of the file as an error shows it: of bounded length."""
    # Python refuses to write down very long numbers.
    if isinstance(value, int) and value.bit_length() > 256:
        return f"of {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _natural(config: Mapping[str, object], field: str, default: int | None = None) -> int:
    value = config.get(field)
    if value is None:
        if default is None:
            name = LAYOUTS.get(_model_type(config), Layout()).names.get(field, field)
            raise MissingField(f"{name} is missing; add it from the model's config.json")
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidField(f"{field} {_shown(value)} is not a whole number from 0; fix it")
    most = _MOST.get(field, _MOST_OF_OTHERS)
    if value > most:
        raise InvalidField(
            f"{field} {_shown(value)} is more than any model has; give {most} at most"
        )
    return value


def _positive(config: Mapping[str, object], field: str, default: int | None = None) -> int:
    value = _natural(config, field, default)
    if value < 1:
        raise InvalidField(f"{field} is {value}; give a whole number from 1")
    return value
