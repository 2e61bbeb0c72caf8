"""Where Penelope enters SGLang's scheduler.  Every hook does nothing for other caches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from penelope.policy import Order
from penelope.sglang_adapter import (
    compat,
    entry,
    models,
    options,
    refusals,
    sampling,
    surface,
)
from penelope.sglang_adapter.admission import COMPUTED, PATCHES, PenelopeAdder
from penelope.sglang_adapter.cache import PenelopeCache
from penelope.sglang_adapter.phantom import Phantom
from penelope.sglang_adapter.waiting_line import waits_in

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch


logger = logging.getLogger(__name__)

REFUSED = "_penelope_refused"
"""Where a request keeps why its processor is refused, from one step of its entry to the next."""


class Hook(NamedTuple):
    target: str
    function: Callable[..., Any]
    kind: HookType


def prefill_adder_class(original: Callable[[Any], type], scheduler: Any) -> type:
    """AROUND `Scheduler.get_prefill_adder_class`."""
    stock = original(scheduler)
    return PenelopeAdder if isinstance(scheduler.tree_cache, PenelopeCache) else stock


def adopt_and_patch(_result: None, batch: ScheduleBatch) -> None:
    """AFTER `ScheduleBatch.prepare_for_extend`: the batch's slots are known.

    Rows were written before allocation, with placeholders in the holes.  First the tree
    adopts what the phantoms will compute, then every row that reads it is rewritten: a
    request finds the refilled span in the same layer in which the phantom writes it.
    """
    cache = batch.tree_cache
    if not isinstance(cache, PenelopeCache):
        return
    offset = 0
    for req, length in zip(batch.reqs, batch.extend_lens, strict=True):
        if isinstance(req, Phantom):
            cache.refill(req.refills, req.span, batch.out_cache_loc[offset : offset + length])
        offset += length
    for req in batch.reqs:
        patches = vars(req).pop(PATCHES, ())
        for start, end in patches:
            cache.req_to_token_pool.write(
                (req.kv.req_pool_idx, slice(start, end)),
                cache.slots_between(req.last_node, (start, end)).to(
                    cache.req_to_token_pool.req_to_token.dtype
                ),
            )
        _uncount_cached(req, vars(req).pop(COMPUTED, 0))
    cache.refilling.settle(cache)


def _uncount_cached(req: Req, computed: int) -> None:
    """`meta_info.cached_tokens` counts what was reused, not what phantoms computed for it."""
    if computed and not req.retracted_stain:
        req.cached_tokens -= computed
        req.cached_tokens_device -= computed


def release_phantoms(_result: None, processor: Any, batch: ScheduleBatch, *_: Any) -> None:
    """AFTER `SchedulerBatchResultProcessor.process_batch_result_prefill`."""
    for req in batch.reqs:
        if isinstance(req, Phantom) and req.kv.holds_kv:
            release_kv_cache(req, processor.tree_cache, checkpoint=False)


def uncount_matched(result: Any, req: Req, tree_cache: Any, *_: Any, **__: Any) -> None:
    """AFTER `match_kv_cache`: holes are work to do, for `lpm` and for load reports."""
    if isinstance(tree_cache, PenelopeCache):
        missing = result.last_device_node.missing
        req.num_matched_prefix_tokens = max(0, req.num_matched_prefix_tokens - missing)


def refilling_first(
    _result: None, policy: Any, waiting_queue: list[Req], *_: Any, **__: Any
) -> None:
    """AFTER `SchedulePolicy.calc_priority`."""
    cache = policy.tree_cache
    if isinstance(cache, PenelopeCache):
        cache.refilling.move_to_front(waiting_queue, cache)


def uncount_phantoms(stats: Any, _cls: type, adder: Any, *_: Any, **__: Any) -> None:
    """AFTER `PrefillStats.from_adder`: `#new-seq` counts users' requests."""
    stats.num_new_seqs -= sum(isinstance(req, Phantom) for req in adder.can_run_list)


def more_rows(configurator: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]] | None:
    """BEFORE `KVCacheConfigurator._build_default_req_pool`.

    A request with holes needs a row for each phantom too, and SGLang guarantees it one.
    """
    if not _is_chosen():
        return None
    kwargs["max_num_reqs"] += options.read().phantom_rows
    return (configurator, *args), kwargs


def wider_batches(
    original: Callable[..., None], runner: Any, model_runner: Any, *args: Any, **kwargs: Any
) -> None:
    """AROUND `EagerRunner.__init__`: its input buffers hold a batch of all the rows there are."""
    extra = options.read().phantom_rows if _is_chosen() else 0
    model_runner.max_running_requests += extra
    try:
        original(runner, model_runner, *args, **kwargs)
    finally:
        model_runner.max_running_requests -= extra


def touch_of_request(original: Callable[..., None], req: Req, tree_cache: Any) -> None:
    """AROUND `touch_waiting_prefix`, which leaves the request out: its namespace needs it."""
    if not isinstance(tree_cache, PenelopeCache):
        original(req, tree_cache)
        return
    if tree_cache.options.queue_in_view:
        return  # That it waits is known without.
    tokens = req.origin_input_ids + req.output_ids
    tree_cache.touch(RadixKey(tokens, req.extra_key, cache_salt=req.cache_salt), req)


def limit_prompt(scheduler: Any, req: Req) -> None:
    """BEFORE `Scheduler.init_req_max_new_tokens`: the first step of every request's entry.

    The limit that `validate_input_length` goes by next is the one of admission.  A request that is
    refused, for whatever reason, still goes through one batch, with its processor.
    """
    if isinstance(scheduler.tree_cache, PenelopeCache):
        limit = entry.longest_prompt(scheduler.token_to_kv_pool_allocator.size, scheduler.page_size)
        scheduler.max_req_input_len = min(scheduler.max_req_input_len, limit)
        if fault := _processor_fault(req, scheduler.device):
            req.custom_logit_processor = None
            vars(req)[REFUSED] = fault


def refuse_prompt(error: str | None, req: Req, *_: Any, **__: Any) -> str | None:
    """AFTER `validate_input_length`: no prompt gets in whose KV could not be told from others'."""
    if error is not None or not _is_chosen():
        return error
    return vars(req).pop(REFUSED, None) or entry.fault(req)


def _processor_fault(req: Req, device: str) -> str | None:
    if not req.custom_logit_processor:
        return None
    import torch
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    text = req.custom_logit_processor
    logits = torch.zeros((1, req.vocab_size), device=device)
    return sampling.processor_fault(
        lambda: CustomLogitProcessor.from_str(text), req.sampling_params, logits
    )


def read_arguments(original: Callable[..., None], asked: Any) -> None:
    """AROUND `GenerateReqInput.normalize_batch_and_arguments`."""
    if not _is_chosen():
        original(asked)
        return
    if fault := entry.argument_fault(asked, _metric_labels()):
        raise ValueError(fault)
    sampling.read(original, asked)
    if not asked.is_single:
        # SGLang keeps what it makes of each, and fails where a list is too short.
        sampling.read(lambda: [asked[index] for index in range(len(asked.rid))])
    elif not isinstance(asked.rid, str):
        raise ValueError("rid must be a string for a single request.")


def _metric_labels() -> tuple[str, ...] | None:
    from sglang.srt.runtime_context import get_observability

    settings = get_observability()
    if not settings.enable_metrics:
        return None
    return tuple(settings.tokenizer_metrics_allowed_custom_labels or ())


def refuse_request(original: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any) -> Any:
    """AROUND `TokenizerManager._create_tokenized_object`: a `ValueError` is answered with 400."""
    if not _is_chosen():
        return original(manager, *args, **kwargs)
    made = sampling.read(original, manager, *args, **kwargs)
    if fault := sampling.fault(made.sampling_params, manager.model_config.vocab_size):
        raise ValueError(fault)
    return made


async def resume_to_abort(original: Callable[..., Any], manager: Any, asked: Any) -> None:
    """AROUND `TokenizerManager.pause_generation`.

    With `abort` it waits until all requests have ended, which none does while the scheduler stands
    still after a pause `in_place`; and nobody can resume it, because the wait holds the lock.
    """
    if asked.mode == "abort" and manager.is_pause and _is_chosen():
        from sglang.srt.managers.io_struct import ContinueGenerationReqInput

        # New requests go on waiting: only the scheduler is told.
        await manager._async_dispatch_to_scheduler(ContinueGenerationReqInput())
    await original(manager, asked)


def leave_something(_result: None, asked: Any, logits: torch.Tensor) -> None:
    """AFTER `SamplingBatchInfo._apply_post_grammar_logits_transforms`: all but processors."""
    mask = asked.grammar_mask
    penalties = asked.penalizer_orchestrator
    limited = mask is not None or asked.logit_bias is not None
    limited = limited or asked.acc_additive_penalties is not None
    limited = limited or asked.acc_scaling_penalties is not None
    if (limited or (penalties and penalties.is_required)) and _is_chosen():
        sampling.leave_something(logits, None if mask is None else mask.apply)


def leave_something_processed(
    result: torch.Tensor, _sampler: Any, logits: torch.Tensor, sampling_info: Any
) -> torch.Tensor:
    """AFTER `Sampler._preprocess_logits`: custom processors have run."""
    if sampling_info.has_custom_logit_processor and _is_chosen():
        sampling.leave_something(result, None)
    return result


def other_weights(result: Any, updater: Any, *_: Any, **__: Any) -> None:
    """AFTER what ends an update of weights: SGLang flushes the cache only if it is asked to."""
    cache = updater.scheduler.tree_cache
    if isinstance(cache, PenelopeCache):
        cache.weights_changed()


def end_of_session(original: Callable[..., None], scheduler: Any, request: Any) -> None:
    """AROUND `Scheduler.close_session`, which every rank runs in the same step.

    SGLang knows the sessions that were opened with it; a `session_id` needs no opening.
    """
    cache, session = scheduler.tree_cache, request.session_id
    if isinstance(cache, PenelopeCache):
        chunked = [] if scheduler.chunked_req is None else [scheduler.chunked_req]
        running = [*scheduler.collect_inflight_reqs(), *waits_in(scheduler), *chunked]
        known = cache.sessions.close(cache, session, running)
        if known and session not in scheduler.session_controller:
            return
    original(scheduler, request)


def _is_chosen() -> bool:
    from sglang.srt.runtime_context import get_memory

    return bool(get_memory().radix_cache_backend == options.BACKEND_NAME)


def refuse_early(_result: None, server_args: Any) -> None:
    """AFTER `check_server_args`: say no before any process is started."""
    from sglang.srt.arg_groups.overrides import resolving_view

    settings = resolving_view(server_args)
    if settings.radix_cache_backend == options.BACKEND_NAME:
        chosen = options.read()
        compat.require_supported(chosen)
        refusals.require_supported_settings(settings, host_tier=bool(chosen.host_tokens))
        _refuse_model_early(server_args, chosen)
        if settings.page_size is not None:
            # The capacity is known only once the model is loaded.
            chosen.config(device_capacity=settings.page_size, page_size=settings.page_size)
        if chosen.host_tokens:
            from penelope.sglang_adapter import host_memory

            host_memory.require_room(settings, chosen.host_tokens)


def _refuse_model_early(server_args: Any, chosen: options.Options) -> None:
    from sglang.srt.configs.model_config import ModelConfig

    try:
        model = ModelConfig.from_server_args(server_args)
    except (OSError, ValueError):
        return  # SGLang will say what is wrong with it.
    models.require_supported(model)
    if chosen.order is Order.EXPECTED_COST:
        models.linear_cost(model)


def refuse_model(_result: None, scheduler: Any) -> None:
    """AFTER `Scheduler.init_model_config`: its weights are not loaded yet."""
    if _is_chosen():
        models.require_supported(scheduler.model_config)


def handshake(_result: None, scheduler: Any) -> None:
    """AFTER `Scheduler.init_schedule_policy`: prove that we are the live cache, hooks and all."""
    if isinstance(scheduler.tree_cache, PenelopeCache):
        surface.require_known()
        compat.require_hooks([hook.target for hook in HOOKS])
        refusals.require_supported_scheduler(scheduler)
        if scheduler.tree_cache.host is not None:
            scheduler.tree_cache.host.follow(scheduler.forward_stream)
        scheduler.tree_cache.line.follow(lambda: waits_in(scheduler))
        config = scheduler.tree_cache.state.config
        logger.info(
            "Penelope evicts %s, blocks of %d tokens, in the order %s with the queue %s; prefixes "
            "are reused in whole pages of %d tokens; KV of %d tokens fits the device, of %d the "
            "host",
            config.position.value,
            config.block_size,
            config.order.value,
            "in view" if scheduler.tree_cache.options.queue_in_view else "out of view",
            config.page_size,
            config.device_capacity,
            config.host_capacity,
        )


_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_COMPONENTS = "sglang.srt.managers.scheduler_components"
_TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_SAMPLING = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"

HOOKS = (
    Hook(f"{_SCHEDULER}.get_prefill_adder_class", prefill_adder_class, HookType.AROUND),
    Hook(f"{_SCHEDULER}.init_schedule_policy", handshake, HookType.AFTER),
    Hook(
        "sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_extend",
        adopt_and_patch,
        HookType.AFTER,
    ),
    Hook(
        f"{_COMPONENTS}.batch_result_processor.SchedulerBatchResultProcessor"
        ".process_batch_result_prefill",
        release_phantoms,
        HookType.AFTER,
    ),
    Hook("sglang.srt.mem_cache.common.match_kv_cache", uncount_matched, HookType.AFTER),
    Hook(
        "sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority",
        refilling_first,
        HookType.AFTER,
    ),
    Hook(
        f"{_COMPONENTS}.metrics_reporter.PrefillStats.from_adder",
        uncount_phantoms,
        HookType.AFTER,
    ),
    Hook(
        "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._build_default_req_pool",
        more_rows,
        HookType.BEFORE,
    ),
    Hook("sglang.srt.managers.utils.validate_input_length", refuse_prompt, HookType.AFTER),
    Hook(f"{_SCHEDULER}.init_req_max_new_tokens", limit_prompt, HookType.BEFORE),
    Hook(f"{_SCHEDULER}.close_session", end_of_session, HookType.AROUND),
    Hook(
        "sglang.srt.managers.io_struct.GenerateReqInput.normalize_batch_and_arguments",
        read_arguments,
        HookType.AROUND,
    ),
    Hook(f"{_TOKENIZER}._create_tokenized_object", refuse_request, HookType.AROUND),
    Hook(f"{_TOKENIZER}.pause_generation", resume_to_abort, HookType.AROUND),
    Hook(f"{_SAMPLING}._apply_post_grammar_logits_transforms", leave_something, HookType.AFTER),
    Hook(
        "sglang.srt.layers.sampler.Sampler._preprocess_logits",
        leave_something_processed,
        HookType.AFTER,
    ),
    Hook("sglang.srt.mem_cache.common.touch_waiting_prefix", touch_of_request, HookType.AROUND),
    Hook(f"{_SCHEDULER}.init_model_config", refuse_model, HookType.AFTER),
    Hook(
        "sglang.srt.model_executor.runner.eager_runner.EagerRunner.__init__",
        wider_batches,
        HookType.AROUND,
    ),
    Hook(
        f"{_COMPONENTS}.weight_updater.SchedulerWeightUpdaterManager"
        ".flush_cache_after_weight_update",
        other_weights,
        HookType.AFTER,
    ),
    Hook(
        f"{_COMPONENTS}.weight_updater.SchedulerWeightUpdaterManager.end_weight_update",
        other_weights,
        HookType.AFTER,
    ),
    Hook("sglang.srt.arg_groups.validation_hook.check_server_args", refuse_early, HookType.AFTER),
)


def register() -> None:
    for hook in HOOKS:
        HookRegistry.register(hook.target, hook.function, hook.kind)
