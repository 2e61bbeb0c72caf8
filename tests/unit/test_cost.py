"""The cost model: published values, every kind of configuration, every refusal."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from penelope.cost import hf_config
from penelope.cost import model as cost

DENSE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 100,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
}
EXPERTS: dict[str, Any] = {
    **DENSE,
    "model_type": "qwen3_moe",
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 10,
}
ATTENTION = 4 * 64 * 64  # q, k, v and o, each hidden x hidden: 8 heads of 8 and as many for K/V
MLP = 3 * 64 * 100
EXPERT = 3 * 64 * 10
ROUTER = 64 * 16


def weights(config: dict[str, Any]) -> int:
    return hf_config.read(config).weights


@pytest.mark.parametrize(
    ("name", "linear", "layers"),
    [("qwen3-8b", 23552, 36), ("qwen3-32b", 29760, 64), ("qwen3-235b-a22b", 13600, 94)],
)
def test_presets_have_the_published_linear_term(name: str, linear: int, layers: int) -> None:
    model = cost.preset(name)
    assert model.linear == linear
    assert (model.layers, model.name) == (layers, name)


def test_unit_is_the_flops_of_one_pair_in_every_layer() -> None:
    """2 FLOP a weight and token must equal c units."""
    model = cost.preset("qwen3-8b")
    shape = hf_config.read(cost.PRESET_CONFIGS["qwen3-8b"])
    assert model.linear * model.flops_per_unit == 2 * shape.weights


@pytest.mark.parametrize(("context", "published"), [(8192, 1.11), (131072, 2.90)])
def test_predicted_speedup_matches_the_published_values(context: int, published: float) -> None:
    speedup = cost.predicted_speedup(cost.preset("qwen3-8b"), context, 0.3, 2048, 512)
    assert round(speedup, 2) == published


def test_presets_have_the_published_kv() -> None:
    """Qwen3-8B: 36 layers, key and value, 8 heads of 128, two bytes each."""
    assert cost.preset("qwen3-8b").kv_bytes_per_token == 147_456
    assert cost.preset("qwen3-235b-a22b").kv_bytes_per_token == 94 * 2 * 4 * 128 * 2


def test_the_first_token_costs_the_linear_layers_alone() -> None:
    model = cost.CostModel("m", Fraction(0), 1, 1, 1)
    assert [model.token(position) for position in (0, 3)] == [0, 3]
    assert [model.span(0, end) for end in (0, 4)] == [0, 6]


def test_a_whole_context_may_be_evicted() -> None:
    model = cost.CostModel("m", Fraction(0), 1, 1, 1)
    # Either way all of it is computed again: positions 0 to 10.
    assert cost.predict(model, 10, 1.0, 0, 1) == cost.Prediction(10, Fraction(55), Fraction(55))
    assert cost.predict(model, 0, 0.0, 0, 1) == cost.Prediction(0, Fraction(0), Fraction(0))


def test_prediction_counts_both_evictions() -> None:
    model = cost.CostModel("m", Fraction(10), 1, 1, 1)
    got = cost.predict(model, context=10, fraction=0.2, start=1, append=1)
    # tail: tokens 8, 9, 10; start: tokens 1, 2, 10; each costs 10 + its position
    assert got == cost.Prediction(evicted=2, tail=Fraction(57), start=Fraction(11 + 12 + 20))
    assert got.speedup == 57 / 43


def test_a_decimal_fraction_evicts_its_exact_share() -> None:
    """0.29 * 100 is 28.999999999999996 in binary."""
    got = cost.predict(cost.preset("qwen3-8b"), 100, 0.29, 0, 1)
    assert got.evicted == 29


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"context": -1}, "context -1"),
        ({"fraction": 1.5}, "fraction 1.5"),
        ({"fraction": float("nan")}, "fraction nan"),
        ({"start": 71}, "start 71.*from 0 to 70"),
        ({"start": -1}, "start -1"),
        ({"append": 0}, "append 0"),
    ],
)
def test_prediction_names_the_argument_that_does_not_fit(
    change: dict[str, Any], named: str
) -> None:
    good: dict[str, Any] = {"context": 100, "fraction": 0.3, "start": 10, "append": 1}
    with pytest.raises(cost.CostError, match=named):
        cost.predict(cost.preset("qwen3-8b"), **(good | change))


def test_a_span_must_be_one() -> None:
    model = cost.preset("qwen3-8b")
    for start, end in ((3, 2), (-1, 2)):
        with pytest.raises(cost.CostError, match="span"):
            model.span(start, end)
    with pytest.raises(cost.CostError, match="position -1"):
        model.token(-1)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"linear": Fraction(-1)}, "negative"), ({"layers": 0}, "layers"), ({"heads": 0}, "heads")],
)
def test_a_model_must_be_possible(change: dict[str, Any], named: str) -> None:
    good: dict[str, Any] = {
        "name": "m",
        "linear": Fraction(1),
        "layers": 1,
        "heads": 1,
        "head_dim": 1,
    }
    with pytest.raises(cost.CostError, match=named):
        cost.CostModel(**(good | change))


def test_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(cost.UnknownModel, match=r"'gpt'.*qwen3-235b-a22b, qwen3-32b, qwen3-8b"):
        cost.preset("gpt")


# --- dense configurations ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, 4 * (ATTENTION + MLP)),
        ({"num_key_value_heads": 2}, 4 * (2 * 64 * 64 + 2 * 64 * 16 + MLP)),
        ({"head_dim": 16}, 4 * (2 * ATTENTION + MLP)),
        ({"head_dim": None, "num_key_value_heads": None}, 4 * (ATTENTION + MLP)),
        ({"model_type": "gpt_neox"}, 4 * (ATTENTION + 2 * 64 * 100)),
        ({"num_experts": 0}, 4 * (ATTENTION + MLP)),
        ({"hidden_size": 65, "head_dim": 8}, 4 * (4 * 65 * 64 + 3 * 65 * 100)),
    ],
    ids=["defaults", "gqa", "head_dim", "null-defaults", "ungated", "no-experts", "odd-width"],
)
def test_dense_weights(change: dict[str, Any], expected: int) -> None:
    assert weights(DENSE | change) == expected


def test_text_config_of_a_multimodal_model_is_read() -> None:
    assert weights({"model_type": "vl", "hidden_size": 1, "text_config": DENSE}) == weights(DENSE)


def test_linear_term_is_the_average_over_layers() -> None:
    model = cost.from_hf_config(EXPERTS | {"mlp_only_layers": [0]})
    per_layer = 4 * (ATTENTION) + MLP + 3 * (ROUTER + 2 * EXPERT)
    assert model.linear == Fraction(per_layer, 4 * 2 * 64)
    assert model.name == "qwen3_moe"
    assert model.span(0, 3) * model.scale == model.scaled_span(0, 3)


# --- mixture-of-experts configurations ----------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sparse", "extra"),
    [
        ({}, 4, 0),
        ({"decoder_sparse_step": 2}, 2, 0),
        ({"mlp_only_layers": [1, 3]}, 2, 0),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, 1, 0),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [2]}, 0, 0),
        ({"first_k_dense_replace": 1}, 3, 0),
        ({"moe_layer_freq": 2}, 2, 0),
        ({"moe_layer_freq": [0, 1, 1, 1]}, 3, 0),
        ({"n_shared_experts": 2}, 4, 2 * EXPERT),
        ({"num_shared_experts": 2}, 4, 2 * EXPERT),
        ({"shared_expert_intermediate_size": 7}, 4, 3 * 64 * 7 + 64),
    ],
    ids=str,
)
def test_expert_weights(change: dict[str, Any], sparse: int, extra: int) -> None:
    expected = 4 * ATTENTION + (4 - sparse) * MLP + sparse * (ROUTER + 2 * EXPERT + extra)
    assert weights(EXPERTS | change) == expected


def test_mixtral_experts_have_the_dense_width() -> None:
    config = DENSE | {
        "model_type": "mixtral",
        "num_local_experts": 16,
        "num_experts_per_tok": 2,
    }
    assert weights(config) == 4 * (ATTENTION + ROUTER + 2 * MLP)


@pytest.mark.parametrize("name", ["num_experts", "num_local_experts", "n_routed_experts"])
def test_experts_are_counted_by_whatever_name(name: str) -> None:
    config = {k: v for k, v in EXPERTS.items() if k != "num_experts"}
    assert weights({**config, name: 16}) == weights(EXPERTS)


def test_all_experts_may_be_active() -> None:
    assert weights(EXPERTS | {"num_experts_per_tok": 16}) == 4 * (ATTENTION + ROUTER + 16 * EXPERT)


def test_a_model_without_a_type_is_a_gated_one_without_a_name() -> None:
    config = {k: v for k, v in DENSE.items() if k != "model_type"}
    assert weights(config) == weights(DENSE)
    assert cost.from_hf_config(config).name == ""


def test_a_model_of_experts_only_needs_no_dense_width() -> None:
    config = {k: v for k, v in EXPERTS.items() if k != "intermediate_size"}
    assert weights(config) == weights(EXPERTS)
    with pytest.raises(hf_config.MissingField, match="intermediate_size"):
        weights(config | {"mlp_only_layers": [0]})


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field", ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
)
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(hf_config.MissingField, match=f"{field} is missing"):
        weights({k: v for k, v in DENSE.items() if k != field})


def test_a_missing_expert_field_is_named() -> None:
    for field in ("num_experts_per_tok", "moe_intermediate_size"):
        config = {k: v for k, v in EXPERTS.items() if k not in (field, "intermediate_size")}
        with pytest.raises(hf_config.MissingField, match=f"{field} is missing"):
            weights(config)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_size": "64"}, "hidden_size '64'"),
        ({"hidden_size": True}, "hidden_size True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_attention_heads": -8}, "num_attention_heads -8"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide"),
        ({"model_type": 7}, "model_type 7"),
        ({**EXPERTS, "num_experts": 1}, "num_experts_per_tok 2 exceeds the 1"),
        ({**EXPERTS, "mlp_only_layers": ["0"]}, "mlp_only_layers"),
        ({**EXPERTS, "moe_layer_freq": [1]}, "moe_layer_freq lists 1 layers of 4"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"sliding_window": -1}, "sliding_window -1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_invalid_field_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(hf_config.InvalidField, match=named):
        weights(DENSE | change)


def test_head_dim_that_cannot_be_derived_is_asked_for() -> None:
    with pytest.raises(hf_config.MissingField, match="add head_dim"):
        weights(DENSE | {"hidden_size": 65})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sliding_window": 4096}, "sliding-window attention"),
        ({"sliding_window": 4096, "use_sliding_window": True}, "sliding-window attention"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention' layers"),
        ({"layer_types": ["linear_attention"]}, "'linear_attention' layers"),
        ({"attn_type_list": [1, 0]}, "has 0 layers"),
        ({"attention_chunk_size": 8192}, "chunked attention"),
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"index_topk": 2048}, "sparse attention"),
        ({"sparse_attention_config": {}}, "sparse attention"),
        ({"sparse_config": {}}, "sparse attention"),
        ({"model_type": "mamba2"}, "state-space"),
        ({"model_type": "qwen3_next"}, "hybrid"),
        ({"hybrid_override_pattern": "M-M*"}, "hybrid"),
        ({"layers_block_type": ["mamba"]}, "hybrid"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({**EXPERTS, "moe_layer_start_index": 1}, "moe_layer_start_index"),
        ({"text_config": {**DENSE, "sliding_window": 512}}, "sliding-window"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_attention_is_refused_with_the_reason(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(hf_config.UnsupportedModel, match=reason) as refused:
        weights(DENSE | change)
    assert "\n" not in str(refused.value)
    assert "; " in str(refused.value), "a refusal says what to do"


@pytest.mark.parametrize(
    "change",
    [
        {"sliding_window": 32768, "use_sliding_window": False},
        {"sliding_window": None},
        {"sliding_window": 8192, "max_position_embeddings": 8192},
        {"sliding_window": 512, "layer_types": ["full_attention"] * 4},
        {"layer_types": ["attention"] * 4},
        {"attn_type_list": [1, 1, 1, 1]},
    ],
)
def test_a_window_that_cuts_nothing_is_accepted(change: dict[str, Any]) -> None:
    assert weights(DENSE | change) == weights(DENSE)
