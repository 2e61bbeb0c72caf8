"""Where a request enters SGLang: what is refused there, and what is settled in its batch.

Every hook does nothing for other caches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang.srt.plugins.hook_registry import HookType

from penelope.sglang_adapter import entry, options, sampling
from penelope.sglang_adapter.cache import PenelopeCache

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.schedule_batch import Req

REFUSED = "_penelope_refused"
"""Where a request keeps why its processor is refused, from one step of its entry to the next."""
UPDATING = "_penelope_updating"
"""Where the tokenizer manager keeps the lock of the update of weights that is under way."""


class Hook(NamedTuple):
    target: str
    function: Callable[..., Any]
    kind: HookType


def is_chosen() -> bool:
    from sglang.srt.runtime_context import get_memory

    return bool(get_memory().radix_cache_backend == options.BACKEND_NAME)


def limit_prompt(scheduler: Any, req: Req) -> None:
    """BEFORE `Scheduler.init_req_max_new_tokens`: the first step of every request's entry.

    The limit that `validate_input_length` goes by next is the one of admission.
    """
    if isinstance(scheduler.tree_cache, PenelopeCache):
        limit = entry.longest_prompt(scheduler.token_to_kv_pool_allocator.size, scheduler.page_size)
        scheduler.max_req_input_len = min(scheduler.max_req_input_len, limit)
        if fault := _processor_fault(req, scheduler.device):
            vars(req)[REFUSED] = fault


def refuse_prompt(error: str | None, req: Req, *_: Any, **__: Any) -> str | None:
    """AFTER `validate_input_length`: no prompt gets in whose KV could not be told from others'."""
    if error is not None or not is_chosen():
        return error
    return vars(req).pop(REFUSED, None) or entry.fault(req)


def ask_for_nothing(_result: None, req: Req, *_: Any, **__: Any) -> None:
    """AFTER `Req.set_finish_with_abort`: who is refused still goes through one batch, with others.

    SGLang makes it a prompt of one token and leaves it what it has asked for, which may be why it
    is refused.
    """
    if is_chosen():
        req.custom_logit_processor = None
        req.logprob.top_logprobs_num = 0
        req.logprob.token_ids_logprob = None
        req.return_hidden_states = False
        req.return_sampling_mask = False


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
    if not is_chosen():
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
    if not is_chosen():
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
    if asked.mode == "abort" and manager.is_pause and is_chosen():
        from sglang.srt.managers.io_struct import ContinueGenerationReqInput

        # New requests go on waiting: only the scheduler is told.
        await manager._async_dispatch_to_scheduler(ContinueGenerationReqInput())
    await original(manager, asked)


async def one_update_at_a_time(original: Callable[..., Any], manager: Any, asked: Any) -> Any:
    """AROUND `TokenizerManager._wait_for_model_update_from_disk`.

    SGLang has one place for the answer.  While it is paused nothing keeps a second update from
    taking it over, and both answers then come to the second, which ends the server.  A caller that
    leaves does not take the place with it: the update goes on to its own answer.
    """
    if not is_chosen():
        return await original(manager, asked)
    lock = vars(manager).setdefault(UPDATING, asyncio.Lock())

    async def update() -> Any:
        async with lock:
            return await original(manager, asked)

    return await asyncio.shield(update())


def leave_something(_result: None, asked: Any, logits: torch.Tensor) -> None:
    """AFTER `SamplingBatchInfo._apply_post_grammar_logits_transforms`: all but processors."""
    mask = asked.grammar_mask
    penalties = asked.penalizer_orchestrator
    limited = mask is not None or asked.logit_bias is not None
    limited = limited or asked.acc_additive_penalties is not None
    limited = limited or asked.acc_scaling_penalties is not None
    if (limited or (penalties and penalties.is_required)) and is_chosen():
        sampling.leave_something(logits, None if mask is None else mask.apply)


def leave_something_processed(
    result: torch.Tensor, _sampler: Any, logits: torch.Tensor, sampling_info: Any
) -> torch.Tensor:
    """AFTER `Sampler._preprocess_logits`: custom processors have run."""
    if sampling_info.has_custom_logit_processor and is_chosen():
        sampling.leave_something(result, None)
    return result


_TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_SAMPLING = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"

HOOKS = (
    Hook("sglang.srt.managers.utils.validate_input_length", refuse_prompt, HookType.AFTER),
    Hook(
        "sglang.srt.managers.schedule_batch.Req.set_finish_with_abort",
        ask_for_nothing,
        HookType.AFTER,
    ),
    Hook(
        "sglang.srt.managers.scheduler.Scheduler.init_req_max_new_tokens",
        limit_prompt,
        HookType.BEFORE,
    ),
    Hook(
        "sglang.srt.managers.io_struct.GenerateReqInput.normalize_batch_and_arguments",
        read_arguments,
        HookType.AROUND,
    ),
    Hook(f"{_TOKENIZER}._create_tokenized_object", refuse_request, HookType.AROUND),
    Hook(f"{_TOKENIZER}.pause_generation", resume_to_abort, HookType.AROUND),
    Hook(f"{_TOKENIZER}._wait_for_model_update_from_disk", one_update_at_a_time, HookType.AROUND),
    Hook(f"{_SAMPLING}._apply_post_grammar_logits_transforms", leave_something, HookType.AFTER),
    Hook(
        "sglang.srt.layers.sampler.Sampler._preprocess_logits",
        leave_something_processed,
        HookType.AFTER,
    ),
)
