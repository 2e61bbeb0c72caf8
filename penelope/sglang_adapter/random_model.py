"""A random Qwen3 with a tokenizer of bytes, made on the spot: nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

VOCABULARY = 512


def build(
    folder: Path,
    *,
    layers: int = 3,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    intermediate: int = 128,
    context: int = 4096,
) -> Path:
    """Write configuration and weights of a float32 Qwen3 and return the folder."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    if (folder / "config.json").exists():
        return folder
    torch.manual_seed(7)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=0.3,
    )
    config.dtype = torch.float32
    Qwen3ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


def _tokenizer() -> Any:
    """One token a byte: enough for a chat over HTTP."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {character: index for index, character in enumerate(alphabet)}
    special = ["<|im_start|>", "<|im_end|>"]
    words.update({word: len(alphabet) + index for index, word in enumerate(special)})
    # The model may sample any of its outputs: every id stands for some text.
    words.update({f"<{index}>": index for index in range(len(words), VOCABULARY)})
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return fast
