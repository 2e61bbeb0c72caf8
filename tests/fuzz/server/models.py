"""The tiny models and adapters that the fuzzed server loads: made on the spot, from no chance."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from penelope.sglang_adapter import random_model

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 2, 32, 2, 1, 16, 64
CONTEXT = 2048
RANK = 4
END = 257
"""The token `<|im_end|>` of the random model's tokenizer."""
WEIGHTS = ("first", "second")
"""Names of the two sets of weights; the server starts with the first."""
ADAPTERS = ("red", "blue")
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")


def build(folder: Path) -> Path:
    """Write the models `first` and `second` and the adapters `red` and `blue`; return `folder`."""
    first = random_model.build(
        folder / "first",
        layers=LAYERS,
        hidden=HIDDEN,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        intermediate=INTERMEDIATE,
        context=CONTEXT,
    )
    _end_of_text(first)
    _other_weights(first, folder / "second")
    for seed, name in enumerate(ADAPTERS):
        _adapter(folder / name, seed)
    return folder


def _end_of_text(model: Path) -> None:
    """Give the model a token that ends its output: a grammar must have one to end with."""
    for file, name, value in (
        ("config.json", "eos_token_id", END),
        ("tokenizer_config.json", "eos_token", "<|im_end|>"),
    ):
        settings = json.loads((model / file).read_text())
        settings[name] = value
        (model / file).write_text(json.dumps(settings))


def _other_weights(model: Path, folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    if folder.exists():
        return
    shutil.copytree(model, folder)
    for file in folder.glob("*.safetensors"):
        tensors = {name: tensor.roll(1, 0) for name, tensor in load_file(file).items()}
        save_file(tensors, file, metadata={"format": "pt"})


def _adapter(folder: Path, seed: int) -> None:
    """A LoRA adapter in the layout of PEFT, large enough to change what is sampled."""
    import torch
    from safetensors.torch import save_file

    if folder.exists():
        return
    folder.mkdir(parents=True)
    source = torch.Generator().manual_seed(100 + seed)
    sizes = {
        "q_proj": (HIDDEN, HEADS * HEAD_DIM),
        "k_proj": (HIDDEN, KV_HEADS * HEAD_DIM),
        "v_proj": (HIDDEN, KV_HEADS * HEAD_DIM),
        "o_proj": (HEADS * HEAD_DIM, HIDDEN),
    }
    tensors = {}
    for layer in range(LAYERS):
        for name in TARGETS:
            inner, outer = sizes[name]
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{at}.lora_A.weight"] = torch.randn(RANK, inner, generator=source) * 0.5
            tensors[f"{at}.lora_B.weight"] = torch.randn(outer, RANK, generator=source) * 0.5
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "base_model_name_or_path": "first",
        "bias": "none",
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": RANK,
        "target_modules": list(TARGETS),
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))
