"""Tiny models of other families, made on the spot, each with the tokenizer of bytes."""

from __future__ import annotations

import json
from pathlib import Path

from penelope.sglang_adapter import random_model

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}


def experts_and_yarn(folder: Path) -> Path:
    """A mixture of experts whose rotary positions are stretched from 256 on."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(8)
    config = Qwen3MoeConfig(
        vocab_size=random_model.VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=0.3,
        rope_parameters={**YARN, "rope_theta": 10000.0},
    )
    config.dtype = torch.float32
    Qwen3MoeForCausalLM(config).to(torch.float32).save_pretrained(folder)
    random_model._tokenizer().save_pretrained(folder)
    return folder


def longrope(folder: Path) -> Path:
    """As much of a Phi-3 as says how it scales positions: nothing more is looked at."""
    folder.mkdir()
    config = {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 256,
        "rope_scaling": LONGROPE,
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
