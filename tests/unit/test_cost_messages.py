"""What the cost model says when it refuses, word for word: the text is part of the interface."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final

import pytest

from penelope.cost import hf_config
from penelope.cost import model as cost
from tests.unit.test_cost import DENSE, EXPERTS

MODEL: Final = cost.CostModel("m", Fraction(1), 1, 1, 1)
FULL: Final = "use a model with full attention in all layers"
CHECK: Final = "check both against the model's config.json"


def model(**wrong: Any) -> None:
    cost.CostModel(**{"name": "m", "linear": 1, "layers": 1, "heads": 1, "head_dim": 1, **wrong})


def predict(**wrong: Any) -> None:
    good = {"context": 100, "fraction": 0.3, "start": 10, "append": 1}
    cost.predict(MODEL, **{**good, **wrong})


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: model(linear=-1), "linear cost -1 of 'm' is negative; give c >= 0"),
        (lambda: model(layers=0), "layers of 'm' is below 1; give a positive integer"),
        (lambda: model(heads=0), "heads of 'm' is below 1; give a positive integer"),
        (lambda: model(head_dim=0), "head_dim of 'm' is below 1; give a positive integer"),
        (lambda: model(kv_heads=0), "kv_heads of 'm' is below 1; give a positive integer"),
        (lambda: MODEL.token(-1), "position -1 is negative; positions start at 0"),
        (lambda: MODEL.span(3, 2), "span [3, 2) is not one; give 0 <= start <= end"),
        (lambda: MODEL.span(-1, 2), "span [-1, 2) is not one; give 0 <= start <= end"),
        (
            lambda: cost.preset("gpt"),
            (
                "unknown model 'gpt'; choose one of qwen3-235b-a22b, qwen3-32b, qwen3-8b, or give "
                "a Hugging Face config.json"
            ),
        ),
        (
            lambda: predict(context=-1),
            "context -1 is negative; give the number of cached tokens",
        ),
        (
            lambda: predict(fraction=1.5),
            "fraction 1.5 is not a share; give a number from 0 to 1",
        ),
        (
            lambda: predict(append=0),
            "append 0 is below 1; give 1 or more: a request computes one token at least",
        ),
        (
            lambda: predict(start=71),
            (
                "start 71 leaves no room for 30 evicted tokens in a context of 100; give a start "
                "from 0 to 70"
            ),
        ),
    ],
)
def test_a_cost_that_cannot_be_is_refused(wrong: Callable[[], object], text: str) -> None:
    with pytest.raises(cost.CostError) as refused:
        wrong()
    assert str(refused.value) == text


@pytest.mark.parametrize(
    ("config", "error", "text"),
    [
        (
            {**DENSE, "num_key_value_heads": 3},
            hf_config.InvalidField,
            f"num_key_value_heads 3 does not divide num_attention_heads 8; {CHECK}",
        ),
        (
            {**DENSE, "hidden_size": 65},
            hf_config.MissingField,
            (
                "head_dim is missing and hidden_size 65 is not a multiple of num_attention_heads "
                "8; add head_dim"
            ),
        ),
        (
            {**DENSE, "model_type": 7},
            hf_config.InvalidField,
            "model_type 7 is not a name; give a string",
        ),
        (
            {**EXPERTS, "num_experts_per_tok": 17},
            hf_config.InvalidField,
            f"num_experts_per_tok 17 exceeds the 16 experts of a layer; {CHECK}",
        ),
        (
            {
                k: v
                for k, v in EXPERTS.items()
                if k not in {"moe_intermediate_size", "intermediate_size"}
            },
            hf_config.MissingField,
            "moe_intermediate_size is missing; add it from the model's config.json",
        ),
        (
            {**EXPERTS, "moe_layers_enum": "1"},
            hf_config.UnsupportedModel,
            (
                "moe_layers_enum places experts in a way that is not read here, and a guess would "
                "give a wrong cost; build CostModel with the model's own linear term instead"
            ),
        ),
        (
            {**EXPERTS, "mlp_only_layers": ["0"]},
            hf_config.InvalidField,
            "mlp_only_layers ['0'] is not a list of layer numbers; fix it",
        ),
        (
            {**EXPERTS, "moe_layer_freq": [1]},
            hf_config.InvalidField,
            "moe_layer_freq lists 1 layers of 4; give one entry a layer",
        ),
        (
            {**DENSE, "is_encoder_decoder": True},
            hf_config.UnsupportedModel,
            "encoder-decoder model: its cache is not one causal history; use a decoder-only model",
        ),
        (
            {**DENSE, "kv_lora_rank": 512},
            hf_config.UnsupportedModel,
            (
                "latent attention (kv_lora_rank): a pair costs about three times as much in its "
                "absorbed form as in its expanded form and the engine chooses per batch, so no "
                "single c is right; use a model with plain or grouped-query attention"
            ),
        ),
        (
            {**DENSE, "ssm_cfg": {}},
            hf_config.UnsupportedModel,
            (
                "linear-attention, state-space or hybrid layers: their state cannot be cut at a "
                f"position and costs the same everywhere; {FULL}"
            ),
        ),
        (
            {**DENSE, "sparse_attention_config": {}},
            hf_config.UnsupportedModel,
            (
                "sparse attention (sparse_attention_config): a token does not attend to "
                "everything before it, so its cost does not grow with position; use a model with "
                "full attention"
            ),
        ),
        (
            {**DENSE, "layer_types": 4},
            hf_config.InvalidField,
            "layer_types 4 is not a list; give one entry a layer",
        ),
        (
            {**DENSE, "attn_type_list": [1, 0]},
            hf_config.UnsupportedModel,
            f"attn_type_list has 0 layers: their cost does not grow with position; {FULL}",
        ),
        (
            {**DENSE, "attention_chunk_size": 8192},
            hf_config.UnsupportedModel,
            (
                "chunked attention (attention_chunk_size): cost stops growing at a chunk's end; "
                f"{FULL}"
            ),
        ),
        (
            {**DENSE, "sliding_window": 512},
            hf_config.UnsupportedModel,
            (
                "sliding-window attention (512 tokens): cost stops growing at the window and KV "
                f"before it is never read again; {FULL}"
            ),
        ),
        (
            {k: v for k, v in DENSE.items() if k != "hidden_size"},
            hf_config.MissingField,
            "hidden_size is missing; add it from the model's config.json",
        ),
        (
            {**DENSE, "hidden_size": "64"},
            hf_config.InvalidField,
            "hidden_size '64' is not a whole number from 0; fix it",
        ),
        (
            {**DENSE, "hidden_size": 0},
            hf_config.InvalidField,
            "hidden_size is 0; give a whole number from 1",
        ),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_a_model_that_has_no_cost_is_refused(
    config: dict[str, Any], error: type[hf_config.ModelConfigError], text: str
) -> None:
    with pytest.raises(error) as refused:
        hf_config.read(config)
    assert (type(refused.value), str(refused.value)) == (error, text)
