"""Entry point of ``sglang.srt.plugins``: run by SGLang in every one of its processes."""

from __future__ import annotations

import os
from typing import Any

from sglang.srt.mem_cache.registry import (
    get_radix_cache_factory,
    register_radix_cache_backend,
)
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from penelope.policy import Order
from penelope.sglang_adapter import compat, deterministic, hooks, models, options, shadow
from penelope.sglang_adapter.cache import PenelopeCache
from penelope.sglang_adapter.platform import ATTENTION_BACKEND, PLATFORM_NAME


def load() -> None:
    """Register the cache, its hooks and, where it was asked for, the CPU platform."""
    if get_radix_cache_factory(options.BACKEND_NAME) is None:
        register_radix_cache_backend(options.BACKEND_NAME, build_cache)
    hooks.register()
    if options.shadow_is_asked():
        hooks.register(shadow.HOOKS)
    if os.environ.get("SGLANG_PLATFORM") == PLATFORM_NAME:
        _load_reference_platform()


def build_cache(context: Any) -> PenelopeCache:
    """Factory for ``--radix-cache-backend penelope``, in each scheduler process."""
    chosen = options.read()
    compat.require_supported(chosen)
    # Where nothing is weighed by its cost, a model whose cost is not known is served all the same.
    weighs = chosen.order is Order.EXPECTED_COST
    linear_cost = models.linear_cost(context.model_config) if weighs else 0
    return PenelopeCache(context.params, chosen, linear_cost)


def _load_reference_platform() -> None:
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    from penelope.sglang_adapter.attention import NewRowsAttention

    if ATTENTION_BACKEND not in ATTENTION_BACKEND_CHOICES:
        ATTENTION_BACKEND_CHOICES.append(ATTENTION_BACKEND)
    register_attention_backend(ATTENTION_BACKEND)(NewRowsAttention)
    if deterministic.enabled():
        HookRegistry.register(
            "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply",
            deterministic.linear_method_apply,
            HookType.AROUND,
        )
        HookRegistry.register(
            "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head",
            deterministic.compute_lm_head,
            HookType.AROUND,
        )
