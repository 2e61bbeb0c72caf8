"""Models whose KV depends on more than tokens and positions: refused before weights are loaded.

A phantom computes K and V of a span beside other requests than the first prefill had beside it.
The result is the same only where nothing but the tokens up to a position, and the position, goes
in.  What a configuration says is looked at, not what a model is called.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from penelope.cost import model as cost
from penelope.cost.hf_config import ModelConfigError
from penelope.sglang_adapter.errors import UnsupportedError

FIXED_ROTARY_TYPES = frozenset(
    {"default", "linear", "llama3", "yarn", "deepseek_yarn", "mrope", "proportional"}
)
"""Ways to scale rotary positions with one table, made when the model is loaded."""


def require_supported(model: Any) -> None:
    """Raises `UnsupportedError` for SGLang's `ModelConfig` of a model that is not."""
    for wrong, reason in (
        (model.is_multimodal, "its KV depends on more than token ids and positions"),
        (model.is_encoder_decoder, "its KV depends on more than token ids and positions"),
        (not model.is_generation, "it generates no text"),
        (
            model.use_ngram_embedding or model.use_engram,
            "its embeddings depend on tables that SGLang keeps by the row of a request",
        ),
    ):
        if wrong:
            refuse(reason)
    for config in (model.hf_config, model.hf_text_config):
        require_fixed_positions(config)


def require_supported_folder(folder: str) -> None:
    """The same for as much as `config.json` of a local model tells; needs no engine.

    Raises `UnsupportedError`.
    """
    with suppress(OSError, ValueError):
        config = json.loads((Path(folder) / "config.json").read_text())
        if isinstance(config, dict):
            require_fixed_positions(config)
            require_fixed_positions(config.get("text_config") or {})


def require_fixed_positions(config: Any) -> None:
    """Raises `UnsupportedError` if K at a position depends on how long a request, or one beside it.

    `config` is a configuration of transformers or what is in its file.
    """
    for kind in _rotary_types(config):
        if kind not in FIXED_ROTARY_TYPES:
            refuse(
                f"with rotary positions of type '{kind}' K depends on how long the longest "
                f"request of a batch is, so a refilled hole would not hold what was there"
            )
    if _get(config, "dual_chunk_attention_config"):
        refuse("with dual-chunk attention a request is computed by its whole length")


def linear_cost(model: Any) -> int:
    """What the linear layers of SGLang's `ModelConfig` cost a token, in positions.

    Raises `UnsupportedError` where the configuration does not tell.
    """
    try:
        return round(cost.from_hf_config(model.hf_text_config.to_dict()).linear)
    except (cost.CostError, ModelConfigError) as error:
        raise UnsupportedError(
            f"PENELOPE_ORDER=expected-cost must know what a token of this model costs: {error}; "
            f"choose PENELOPE_ORDER=lru"
        ) from None


def refuse(reason: str) -> None:
    raise UnsupportedError(f"Penelope does not work with this model: {reason}")


def _rotary_types(config: Any) -> Iterator[str]:
    for name in ("rope_parameters", "rope_scaling"):
        yield from _types_in(_get(config, name))


def _types_in(scaling: Any) -> Iterator[str]:
    """Of one description, or of one for each kind of layer."""
    if not isinstance(scaling, Mapping):
        return
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind is not None:
        yield str(kind)
    for part in scaling.values():
        yield from _types_in(part)


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
