"""What a model's type says about its layers: weights counted by hand, and what is not guessed.

The shapes were compared with the modelling code of the published types: four layers, hidden size
64, eight heads of eight, four key-value heads, with every expert active.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penelope import cli
from penelope.cost import hf_config
from penelope.cost import model as cost
from penelope.cost.hf_layouts import LAYOUTS

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 96,
}
NAMED_AS_GPT2: dict[str, Any] = {"n_embd": 64, "n_layer": 4, "n_head": 8, "n_inner": 96}
MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 4}
QWEN = {"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 24}
DEEP = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
ERNIE = {
    "moe_num_experts": 4,
    "moe_k": 4,
    "moe_intermediate_size": 24,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
}


@pytest.mark.parametrize(
    ("model_type", "fields", "weights"),
    [
        *((t, BASE, 122880) for t in ("llama", "qwen2", "phi3", "cohere", "glm4", "helium")),
        *((t, BASE, 98304) for t in ("apertus", "arcee", "nemotron", "phi", "nanochat")),
        *((t, BASE, 114688) for t in ("persimmon", "gpt_neox", "biogpt")),
        ("opt", {**BASE, "ffn_dim": 96}, 114688),
        *((t, NAMED_AS_GPT2, 114688) for t in ("gpt2", "gptj", "codegen")),
        ("gpt_bigcode", NAMED_AS_GPT2, 86016),
        ("gpt_bigcode", {**NAMED_AS_GPT2, "multi_query": False}, 114688),
        ("bloom", {"hidden_size": 64, "n_layer": 4, "n_head": 8}, 196608),
        ("falcon", {k: v for k, v in BASE.items() if k != "intermediate_size"}, 167936),
        *(
            (t, {**BASE, **MIXTRAL}, 345088)
            for t in ("mixtral", "olmoe", "phimoe", "minimax_m2", "granitemoe")
        ),
        ("granitemoeshared", {**BASE, **MIXTRAL, "shared_intermediate_size": 40}, 375808),
        ("hunyuan_v1_moe", {**BASE, "num_experts": 4, "moe_topk": [4, 4, 4, 4]}, 418816),
        ("qwen3_moe", {**BASE, **QWEN}, 123904),
        ("qwen2_moe", {**BASE, **QWEN, "shared_expert_intermediate_size": 56}, 167168),
        *((t, {**BASE, **DEEP}, 151296) for t in ("dots1", "glm4_moe", "deepseek")),
        ("ernie4_5_moe", {**BASE, **ERNIE}, 151296),
        ("ernie4_5_moe", {**BASE, **ERNIE, "moe_layer_end_index": -1}, 151296),
        (
            "ernie4_5_moe",
            {**BASE, **ERNIE, "moe_layer_interval": 2},
            4 * 12288 + 2 * 3 * 64 * 96 + 2 * (64 * 4 + 6 * 3 * 64 * 24),
        ),
    ],
)
def test_weights_of_known_layouts(model_type: str, fields: dict[str, Any], weights: int) -> None:
    shape = hf_config.read({"model_type": model_type, **fields})
    assert shape.weights == weights
    assert shape.assumed == ""


@pytest.mark.parametrize("heads", [33, 64, 128])
def test_every_head_may_have_keys_and_values_of_its_own(heads: int) -> None:
    """However many: they decide how much KV there is."""
    config = {
        "model_type": "llama",
        "hidden_size": 8 * heads,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
    }
    model = cost.from_hf_config(config)
    assert model.kv_heads == heads
    assert model.kv_bytes_per_token == 2 * 2 * heads * 8 * 2
    assert model.linear * 2 * heads * 8 == 4 * (8 * heads) ** 2 + 3 * 8 * heads * 96


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model_type": "bert"}, "encoder: a token attends to those behind it too"),
        ({"model_type": "modernbert"}, "encoder: "),
        ({"model_type": "deberta-v2"}, "encoder: "),
        ({"model_type": "clip_text_model"}, "encoder: "),
        ({"model_type": "llama", "is_causal": False}, "encoder: "),
        ({"model_type": "t5"}, "encoder-decoder model"),
        ({"model_type": "new", "architectures": ["NewForMaskedLM"]}, "is no causal decoder"),
        ({"model_type": "new", **QWEN}, "not known here and has experts (moe_intermediate_size"),
        ({"model_type": "step3_text", "moe_num_experts": 4, "moe_top_k": 2}, "has experts"),
        ({"model_type": "", "ffn_config": {}, "num_experts": 2}, "has experts (num_experts)"),
        ({"model_type": "qwen3", **QWEN}, "qwen3 has no experts, but num_experts counts some"),
        ({"model_type": "llama", "moe_num_experts": 4}, "has no experts, but moe_num_experts"),
        ({"model_type": "qwen2_moe", **QWEN}, "shared_expert_intermediate_size is missing"),
        ({"model_type": "qwen3_moe", **MIXTRAL}, "moe_intermediate_size is missing"),
        ({"model_type": "hunyuan_v1_moe", "num_experts": 4, "moe_topk": [1, 2]}, "differs from"),
        ({"model_type": "llama", "hidden_size": 10**30}, "is more than any model has; give"),
        ({"model_type": "llama", "num_hidden_layers": 10**6}, "num_hidden_layers 1000000 is more"),
        ({"model_type": "llama", "intermediate_size": 10**9}, "intermediate_size 1000000000 is"),
        ({"model_type": "llama", "hidden_size": 10**5000}, "hidden_size"),
        ({"model_type": "mllama_text_model", "cross_attention_layers": [3]}, "layers differ"),
        ({"model_type": "hunyuan_v1_dense", "use_cla": True}, "use_cla makes layers differ"),
        ({"model_type": "gpt2"}, "n_embd is missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_known_is_not_guessed(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(hf_config.ModelConfigError) as refused:
        hf_config.read({**BASE, **fields})
    assert says in str(refused.value)
    assert len(str(refused.value)) < 400
    assert "; " in str(refused.value)


@pytest.mark.parametrize("model_type", ["brand_new", None])
def test_what_is_assumed_is_said(
    model_type: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {**BASE, "architectures": ["BrandNewForCausalLM"]}
    if model_type is not None:
        config["model_type"] = model_type
    path = tmp_path / "m.json"
    path.write_text(json.dumps(config))
    assert cli.main(["cost", "--model", str(path), "--context", "9000"]) == 0
    assert "\nassumed: " in capsys.readouterr().out
    options = "--sessions 1 --max-context 34000 --policy penelope".split()
    assert cli.main(["replay", "--model", str(path), *options]) == 0
    assert "m.json (layout assumed)" in " ".join(capsys.readouterr().out.split())


def test_no_type_is_known_and_refused_at_once() -> None:
    for name, layout in LAYOUTS.items():
        fields = {"model_type": name, **BASE, **NAMED_AS_GPT2}
        fields |= {"ffn_dim": 96, "d_model": 64, "num_layers": 4, "attention_heads": 8}
        if layout.experts:
            fields |= {**MIXTRAL, "moe_intermediate_size": 24}
        fields |= dict.fromkeys(layout.requires, 8)
        assert hf_config.read(fields).weights > 0
