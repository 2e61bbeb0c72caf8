"""Which models are known, by the `model_type` of their configuration: one line a layout.

What a field means, and which weights there are at all, is decided by the model's code, not by the
field's name: an MLP has two matrices or three, experts are counted under five names.  Only types in
this table are read with certainty; what is not in it is assumed to be a plain gated decoder and
says so, or is refused where its own fields contradict that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Layout:
    """How the layers of one type of model are put together."""

    gated: bool = True
    """An MLP has gate, up and down projections; otherwise up and down."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Its own names for the fields that this package reads."""
    experts: bool = False
    """Whether layers may hold experts."""
    expert_width: str = "moe_intermediate_size"
    """The field with an expert's width."""
    requires: tuple[str, ...] = ()
    """Fields without which a default of the model's code would apply that is not known here."""
    shared_as_wide: bool = False
    """One shared expert in every expert layer, as wide as the others, that no field counts."""
    mlp_factor: int = 0
    """The MLP's width in hidden sizes where the configuration does not give it; 0: it must."""
    kv_heads: str = ""
    """Where not by their number: `all` heads have their own, `multi-query`, or `falcon`."""


_GPT2 = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}

_GATED = (
    *("llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "phi3", "gemma", "gemma2"),
    *("gemma3_text", "olmo", "olmo2", "olmo3", "cohere", "cohere2", "glm", "glm4", "granite"),
    *("helium", "stablelm", "exaone4", "seed_oss", "smollm3", "ernie4_5", "hunyuan_v1_dense"),
    *("hyperclovax", "bitnet", "cwm", "internlm2", "internlm3", "qwen2_vl_text", "qwen3_vl_text"),
    *("qwen2_5_vl_text",),
)
_UNGATED = (*("apertus", "arcee", "jais2", "nanochat", "nemotron", "phi", "starcoder2"),)
_EXPERTS_AS_WIDE_AS_DENSE = (
    *("mixtral", "olmoe", "flex_olmo", "phimoe", "minimax_m2", "granitemoe", "gpt_oss"),
)
_EXPERTS_WITH_THEIR_OWN_WIDTH = (
    *("qwen3_moe", "qwen3_vl_moe_text", "deepseek", "dots1", "glm4_moe"),
)

LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        **dict.fromkeys(_GATED, Layout()),
        **dict.fromkeys(_UNGATED, Layout(gated=False)),
        **dict.fromkeys(("biogpt", "gpt_neox", "persimmon"), Layout(gated=False, kv_heads="all")),
        "opt": Layout(gated=False, names={"intermediate_size": "ffn_dim"}, kv_heads="all"),
        "xglm": Layout(
            gated=False,
            names={
                "hidden_size": "d_model",
                "num_hidden_layers": "num_layers",
                "num_attention_heads": "attention_heads",
                "intermediate_size": "ffn_dim",
            },
            kv_heads="all",
        ),
        "gpt2": Layout(gated=False, names=_GPT2, mlp_factor=4, kv_heads="all"),
        "gptj": Layout(gated=False, names=_GPT2, mlp_factor=4, kv_heads="all"),
        "codegen": Layout(gated=False, names=_GPT2, mlp_factor=4, kv_heads="all"),
        "gpt_bigcode": Layout(gated=False, names=_GPT2, mlp_factor=4, kv_heads="multi-query"),
        "bloom": Layout(
            gated=False,
            names={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
            mlp_factor=4,
            kv_heads="all",
        ),
        "falcon": Layout(
            gated=False,
            names={"intermediate_size": "ffn_hidden_size"},
            mlp_factor=4,
            kv_heads="falcon",
        ),
        **dict.fromkeys(
            _EXPERTS_AS_WIDE_AS_DENSE, Layout(experts=True, expert_width="intermediate_size")
        ),
        "granitemoeshared": Layout(
            experts=True,
            expert_width="intermediate_size",
            requires=("shared_intermediate_size",),
        ),
        "hunyuan_v1_moe": Layout(
            experts=True, expert_width="intermediate_size", shared_as_wide=True
        ),
        **dict.fromkeys(_EXPERTS_WITH_THEIR_OWN_WIDTH, Layout(experts=True)),
        "qwen2_moe": Layout(experts=True, requires=("shared_expert_intermediate_size",)),
        "ernie4_5_moe": Layout(experts=True, requires=("moe_num_shared_experts",)),
    }
)

RECURRENT_TYPES = (
    *("bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear", "lfm2"),
    *("mamba", "minimax", "nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_next"),
    *("recurrent_gemma", "rwkv", "xlstm", "zamba"),
)
"""Beginnings of types whose layers keep a state instead of KV, in part or throughout."""

EXACT_RECURRENT_TYPES = frozenset({"minimax"})
"""Of these, the ones that are the beginning of other names too."""

ENCODERS = (
    *("albert", "bert", "big_bird", "camembert", "canine", "clip", "convbert", "data2vec"),
    *("deberta", "dinov2", "distilbert", "electra", "ernie_m", "esm", "eurobert", "flaubert"),
    *("fnet", "funnel", "hubert", "layoutlm", "longformer", "luke", "megatron-bert", "mobilebert"),
    *("modernbert", "mpnet", "mra", "nomic_bert", "nystromformer", "rembert", "roberta"),
    *("roc_bert", "roformer", "siglip", "squeezebert", "vit", "wav2vec2", "xlm", "xlnet", "xmod"),
    *("yoso",),
)
"""Beginnings of types in which every token attends to those behind it as well."""

ENCODER_DECODERS = (
    *("bart", "bigbird_pegasus", "blenderbot", "led", "longt5", "m2m_100", "marian", "mbart"),
    *("mt5", "mvp", "nllb", "pegasus", "plbart", "prophetnet", "seamless", "speech_to_text"),
    *("switch_transformers", "t5", "umt5", "whisper"),
)
