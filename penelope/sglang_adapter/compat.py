"""Which SGLang this was tested with, and whether the one at hand still fits.

SGLang only logs a plug-in or a hook that fails, and goes on without it.  A cache
with holes whose phantoms never run would serve wrong output, so each process
checks for itself and refuses to start.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterable, Mapping
from importlib.metadata import version

from penelope.sglang_adapter.errors import UnsupportedError
from penelope.sglang_adapter.options import BACKEND_NAME, Options

TESTED_VERSIONS = ("0.5.23",)


# What we call or override, with the parameters that we rely on.  Names only: a
# parameter that appears beside them does no harm.
_SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req": (
        "req",
        "has_chunked_req",
        "truncation_align_size",
    ),
    "sglang.srt.managers.schedule_policy.PrefillAdder._select_prefill_admission": (
        "req",
        "total_tokens",
    ),
    "sglang.srt.managers.schedule_policy.PrefillAdder._commit_prefill_admission": (
        "req",
        "admission",
        "mamba_gap_reserve",
    ),
    "sglang.srt.managers.schedule_policy.PrefillAdder._update_prefill_budget": (
        "prefix_len",
        "extend_input_len",
        "max_new_tokens",
        "retracted_stain",
    ),
    "sglang.srt.managers.schedule_policy.PrefillAdder.preempt_to_schedule": ("req",),
    "sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority": ("waiting_queue",),
    "sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_extend": (),
    "sglang.srt.managers.schedule_batch.ScheduleBatch.filter_batch": ("reqs_to_exclude",),
    "sglang.srt.managers.schedule_batch.Req.__init__": (
        "rid",
        "origin_input_text",
        "origin_input_ids",
        "sampling_params",
        "lora_id",
        "vocab_size",
        "priority",
    ),
    "sglang.srt.managers.schedule_batch.Req._compute_max_prefix_len": ("input_len",),
    "sglang.srt.managers.scheduler.Scheduler.close_session": ("recv_req",),
    "sglang.srt.managers.scheduler.Scheduler.collect_inflight_reqs": (),
    "sglang.srt.mem_cache.base_prefix_cache.BasePrefixCache.on_release": ("req", "checkpointed"),
    "sglang.srt.mem_cache.common.match_kv_cache": ("req", "tree_cache"),
    "sglang.srt.mem_cache.common.touch_waiting_prefix": ("req", "tree_cache"),
    "sglang.srt.managers.utils.validate_input_length": ("req", "max_req_input_len"),
    "sglang.srt.managers.scheduler.Scheduler.init_req_max_new_tokens": ("req",),
    "sglang.srt.managers.scheduler.Scheduler.init_model_config": (),
    "sglang.srt.managers.tokenizer_manager.TokenizerManager._create_tokenized_object": ("obj",),
    "sglang.srt.managers.schedule_batch.Req.set_finish_with_abort": ("error_msg",),
    "sglang.srt.managers.tokenizer_manager.TokenizerManager.pause_generation": ("obj",),
    "sglang.srt.managers.tokenizer_manager.TokenizerManager._wait_for_model_update_from_disk": (
        "obj",
    ),
    "sglang.srt.managers.tokenizer_manager.TokenizerManager._async_dispatch_to_scheduler": ("obj",),
    "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
    "._apply_post_grammar_logits_transforms": ("logits",),
    "sglang.srt.layers.sampler.Sampler._preprocess_logits": ("logits", "sampling_info"),
    "sglang.srt.mem_cache.common.release_kv_cache": ("req", "tree_cache", "checkpoint"),
    "sglang.srt.mem_cache.base_prefix_cache.BasePrefixCache.checkpoint": ("req", "up_to"),
    "sglang.srt.mem_cache.base_prefix_cache.BasePrefixCache.init_load_back": ("params",),
    "sglang.srt.model_executor.runner.eager_runner.EagerRunner.__init__": ("model_runner",),
    "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._build_default_req_pool": (
        "max_num_reqs",
    ),
}


# The same for a host tier.
_HOST_SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler._build_mha_mla_host_pool": (
        "pool",
        "host_to_device_ratio",
        "page_size",
        "layout",
        "allocator_type",
        "pool_label",
        "host_token_capacity",
    ),
    "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler._mha_host_inputs": ("pool",),
    "sglang.srt.mem_cache.pool_host.base.HostKVCache.alloc": ("need_size",),
    "sglang.srt.mem_cache.pool_host.base.HostKVCache.free": ("indices",),
    "sglang.srt.mem_cache.pool_host.base.HostKVCache.backup_from_device_all_layer": (
        "device_pool",
        "host_indices",
        "device_indices",
        "io_backend",
    ),
    "sglang.srt.mem_cache.pool_host.base.HostKVCache.load_to_device_per_layer": (
        "device_pool",
        "host_indices",
        "device_indices",
        "layer_id",
        "io_backend",
    ),
}


def require_supported(options: Options) -> None:
    """Raises `UnsupportedError` for an SGLang that was not tested or does not fit."""
    require_version(options)
    for target, names in _SIGNATURES.items():
        require_signature(target, names)
    if options.host_tokens:
        for target, names in _HOST_SIGNATURES.items():
            require_signature(target, names)


def require_version(options: Options) -> None:
    """Raises `UnsupportedError` for a version that was not tested.  Imports nothing of SGLang."""
    found = version("sglang")
    if found not in TESTED_VERSIONS and not options.allow_untested:
        raise UnsupportedError(
            f"Penelope was tested with SGLang {', '.join(TESTED_VERSIONS)}, not {found}: install "
            f"that version, or set PENELOPE_ALLOW_UNTESTED_SGLANG=1 to try"
        )


def require_signature(target: str, names: Iterable[str]) -> None:
    """Raises `UnsupportedError` unless the function exists and takes these parameters."""
    try:
        function = inspect.unwrap(pkgutil.resolve_name(target))
    except (ImportError, AttributeError):
        raise UnsupportedError(f"SGLang {version('sglang')} has no {target}") from None
    missing = [n for n in names if n not in inspect.signature(function).parameters]
    if missing:
        raise UnsupportedError(
            f"{target} of SGLang {version('sglang')} takes no '{missing[0]}': "
            f"Penelope does not fit this version"
        )


def require_hooks(targets: Iterable[str]) -> None:
    """Raises `UnsupportedError` unless SGLang has applied every hook."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    lost = [t for t in targets if t not in HookRegistry._patched]
    if lost:
        raise UnsupportedError(
            f"SGLang did not apply Penelope's hook on {lost[0]}: see its log for the reason"
        )


def require_registered() -> None:
    """Raises `UnsupportedError` if SGLang did not load our plug-in (it only logs why)."""
    from sglang.srt.mem_cache.registry import get_radix_cache_factory

    if get_radix_cache_factory(BACKEND_NAME) is None:
        raise UnsupportedError(
            "SGLang did not load Penelope's plug-in: install penelope-kv in this environment, and "
            "see SGLANG_PLUGINS and SGLANG_PLATFORM, which can leave it out"
        )


__all__ = [
    "TESTED_VERSIONS",
    "UnsupportedError",
    "require_hooks",
    "require_registered",
    "require_signature",
    "require_supported",
    "require_version",
]
