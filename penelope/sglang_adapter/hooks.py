"""Where Penelope enters SGLang's scheduler.  Every hook does nothing for other caches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from penelope.policy import Order
from penelope.sglang_adapter import compat, entry_hooks, models, options, refusals, surface
from penelope.sglang_adapter.admission import COMPUTED, PATCHES, PenelopeAdder
from penelope.sglang_adapter.cache import PenelopeCache
from penelope.sglang_adapter.entry_hooks import Hook, is_chosen
from penelope.sglang_adapter.phantom import Phantom
from penelope.sglang_adapter.waiting_line import waits_in

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch


logger = logging.getLogger(__name__)


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
    if not is_chosen():
        return None
    kwargs["max_num_reqs"] += options.read().phantom_rows
    return (configurator, *args), kwargs


def wider_batches(
    original: Callable[..., None], runner: Any, model_runner: Any, *args: Any, **kwargs: Any
) -> None:
    """AROUND `EagerRunner.__init__`: its input buffers hold a batch of all the rows there are."""
    extra = options.read().phantom_rows if is_chosen() else 0
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
    if is_chosen():
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
    Hook(f"{_SCHEDULER}.close_session", end_of_session, HookType.AROUND),
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
    *entry_hooks.HOOKS,
)


def register(hooks: Iterable[Hook] = HOOKS) -> None:
    for hook in hooks:
        HookRegistry.register(hook.target, hook.function, hook.kind)
