"""Shadow mode: SGLang serves from its own cache, and the policy follows beside it.

`PENELOPE_SHADOW=1`, with any radix cache but ours.  Nothing that SGLang decides depends on it: it
reads what a request brings and what it leaves, in the one process that keeps statistics.  A fault
of its own ends the shadow and no request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from sglang.srt.plugins.hook_registry import HookType

from penelope.cost import CostError, CostModel, ModelConfigError, from_hf_config
from penelope.policy import PenelopeError
from penelope.runtime.shadow import Shadow, Tally
from penelope.sglang_adapter import compat, options
from penelope.sglang_adapter.entry_hooks import Hook, is_chosen
from penelope.sglang_adapter.errors import UnsupportedError
from penelope.sglang_adapter.paths import namespace_of, pack_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch

logger = logging.getLogger(__name__)

SWITCH = "penelope_shadow"
"""Its key in `/set_internal_state`, and the attribute of the tree cache that it follows."""
SHARE = 0.01
"""Of the time that passes, how much the shadow may take."""
BURST_S = 0.05
"""Time that it may take at once after a pause."""
REPORT_S = 60.0

_HELP = {
    "requests": "Requests that the shadow followed",
    "prompt_tokens": "Prompt tokens of requests that the shadow followed",
    "engine_reused_tokens": "Of these, tokens that SGLang's own cache had",
    "reused_tokens": "Of these, tokens that Penelope would have had",
    "refilled_tokens": "Of these, tokens in holes, which phantom requests would have computed",
    "evicted_tokens": "Tokens that Penelope would have evicted",
    "engine_cost": "Cost of what SGLang computed, in token positions of one layer",
    "cost": "Cost of what Penelope would have computed, in the same unit",
    "unfollowed_requests": "Requests that the shadow left out: no room, or no time",
    "unfollowed_outputs": "Requests whose output the shadow left out",
}
assert set(_HELP) == {field.name for field in fields(Tally)}


class Allowance:
    """A share of the time that passes, saved up for at most `burst` seconds of work."""

    def __init__(
        self,
        share: float = SHARE,
        burst: float = BURST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share, self._burst, self._clock = share, burst, clock
        self._left, self._seen = burst, clock()
        self.used = 0.0
        """Seconds of work so far."""

    @property
    def any(self) -> bool:
        """Whether some is left now."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._seen) * self._share)
        self._seen = now
        return self._left > 0

    @contextmanager
    def work(self) -> Iterator[None]:
        """Count what is done inside, which may overdraw it once."""
        began = self._clock()
        try:
            yield
        finally:
            spent = self._clock() - began
            self._left -= spent
            self.used += spent


class Follower:
    """The shadow of one scheduler process."""

    def __init__(self, make: Callable[[], Shadow], labels: dict[str, str] | None) -> None:
        self._make = make
        self.shadow: Shadow | None = None
        """None while it is switched off."""
        self.allowance = Allowance()
        self._exported: dict[str, Any] = {}
        self._published = Tally()
        self._reported = time.monotonic()
        if labels is not None:
            self._export(labels)

    def switch(self, on: bool) -> None:
        """On starts with an empty cache; what was counted before is forgotten."""
        self.shadow = self._make() if on else None
        self._published = Tally()

    def batch(self, batch: ScheduleBatch) -> None:
        """A batch is about to be computed: who is new in it?"""
        shadow = self.shadow
        if shadow is None:
            return
        with self._guarded():
            for req, reused in zip(batch.reqs, batch.prefix_lens, strict=True):
                if shadow.follows(req.rid):
                    continue
                if not self.allowance.any:
                    # Of a prompt in steps only the first is a start.
                    shadow.tally.unfollowed_requests += 1
                    continue
                ids = req.full_untruncated_fill_ids
                shadow.started(req.rid, pack_tokens(ids, len(ids)), namespace_of(req), reused)
            self._publish()

    def ended(self, req: Req, kept: int | None) -> None:
        """A request has given its row back; the tree was offered so many tokens of it, or none."""
        shadow = self.shadow
        if shadow is None or not shadow.follows(req.rid):
            return
        with self._guarded():
            ids = req.full_untruncated_fill_ids
            history = None if kept is None else pack_tokens(ids, min(kept, len(ids)))
            shadow.ended(req.rid, history)
            self._publish()

    def flushed(self) -> None:
        if self.shadow is not None:
            with self._guarded():
                self.shadow.forget()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            with self.allowance.work():
                yield
        except Exception:
            logger.exception("Penelope's shadow has failed and is off; SGLang is not touched")
            self.shadow = None

    def _export(self, labels: dict[str, str]) -> None:
        from prometheus_client import Counter

        for name, text in _HELP.items():
            counter = Counter(f"sglang:penelope_shadow_{name}_total", text, labelnames=list(labels))
            self._exported[name] = counter.labels(**labels)

    def _publish(self) -> None:
        assert self.shadow is not None
        tally = self.shadow.tally
        for name, counter in self._exported.items():
            counter.inc(getattr(tally, name) - getattr(self._published, name))
            setattr(self._published, name, getattr(tally, name))
        if (now := time.monotonic()) - self._reported >= REPORT_S:
            self._reported = now
            logger.info("%s", told(tally))


def told(tally: Tally) -> str:
    """A line for the log."""
    saved = tally.saved
    cost = "" if saved is None else f"; recomputation {-saved:+.1%}"
    return (
        f"Penelope's shadow: of {tally.prompt_tokens:,} prompt tokens of {tally.requests:,} "
        f"requests SGLang reused {tally.engine_reused_tokens:,}, Penelope would have "
        f"{tally.reused_tokens:,} and refilled {tally.refilled_tokens:,} beside the rest{cost}; "
        f"{tally.unfollowed_requests:,} requests were not followed"
    )


def require_alone(chosen: options.Options) -> None:
    """Raises `UnsupportedError` for what a shadow cannot follow."""
    if chosen.host_tokens:
        raise UnsupportedError(
            "PENELOPE_SHADOW follows one tier: leave out PENELOPE_HOST_TOKENS with it"
        )
    if chosen.queue_in_view:
        raise UnsupportedError(
            "PENELOPE_SHADOW does not see the queue: set PENELOPE_QUEUE_IN_VIEW=0 with it"
        )


def _follower(tree_cache: Any) -> Follower | None:
    found: Follower | None = getattr(tree_cache, SWITCH, None)
    return found


# Hooks


def refuse_early(_result: None, server_args: Any) -> None:
    """AFTER `check_server_args`."""
    from sglang.srt.arg_groups.overrides import resolving_view

    chosen = options.read()
    if not chosen.shadow:
        return
    if resolving_view(server_args).radix_cache_backend == options.BACKEND_NAME:
        raise UnsupportedError(
            "PENELOPE_SHADOW follows SGLang's own cache, and Penelope's is chosen: leave out one "
            "of the two"
        )
    require_alone(chosen)


def begin(_result: None, scheduler: Any) -> None:
    """AFTER `Scheduler.init_schedule_policy`: the cache is there, its size is known."""
    chosen = options.read()
    if is_chosen() or not chosen.shadow:
        return
    if not scheduler.metrics_reporter.is_stats_logging_rank:
        return
    tree_cache = scheduler.tree_cache
    try:
        compat.require_supported(chosen)
        compat.require_hooks([hook.target for hook in HOOKS])
        cost = _cost(scheduler.model_config)
        linear = round(cost.linear) if cost else 0
        config = chosen.config(
            scheduler.token_to_kv_pool_allocator.size, scheduler.page_size, linear
        )
        collector = getattr(tree_cache, "metrics_collector", None)
        follower = Follower(
            lambda: Shadow(config, cost), None if collector is None else collector.labels
        )
        follower.switch(on=True)
    except PenelopeError as error:
        logger.warning("Penelope's shadow is off: %s", error)
        return
    setattr(tree_cache, SWITCH, follower)
    logger.info(
        "Penelope's shadow follows %s over %d tokens: %s, blocks of %d tokens",
        type(tree_cache).__name__,
        config.device_capacity,
        config.position.value,
        config.block_size,
    )


def _cost(model: Any) -> CostModel | None:
    """None where the configuration does not tell: tokens are counted all the same."""
    try:
        return from_hf_config(model.hf_text_config.to_dict())
    except (CostError, ModelConfigError) as error:
        logger.warning("Penelope's shadow counts tokens and no cost: %s", error)
        return None


def follow_batch(_result: None, batch: ScheduleBatch) -> None:
    """AFTER `ScheduleBatch.prepare_for_extend`."""
    if follower := _follower(batch.tree_cache):
        follower.batch(batch)


def follow_release(
    original: Callable[..., None], req: Req, tree_cache: Any, *, checkpoint: bool
) -> None:
    """AROUND `release_kv_cache`, which forgets how much of a request is computed."""
    follower = _follower(tree_cache)
    if follower is None or not req.kv.holds_kv:
        original(req, tree_cache, checkpoint=checkpoint)
        return
    kept = req.owned_kv_len() if checkpoint and not req.skip_radix_cache_insert else None
    original(req, tree_cache, checkpoint=checkpoint)
    follower.ended(req, kept)


def follow_flush(flushed: bool, scheduler: Any, *_: Any, **__: Any) -> None:
    """AFTER `Scheduler.flush_cache`."""
    if flushed and (follower := _follower(scheduler.tree_cache)):
        follower.flushed()


def offer_switch(handlers: dict[str, Any], controller: Any) -> dict[str, Any]:
    """AFTER `SchedulerInternalStateController._update_handlers`: `/set_internal_state` knows it."""
    from sglang.srt.managers.scheduler_components import internal_state

    if is_chosen() or not options.read().shadow:
        return handlers
    follower = _follower(controller.scheduler.tree_cache)

    def validate(key: str, value: Any) -> None:
        if value not in (0, 1):
            raise internal_state.UpdateRejected(f"{key} is {value}: give 1 for on or 0 for off")

    def apply(_key: str, value: Any) -> None:
        if follower is not None:  # the others of a group have nothing to switch
            follower.switch(on=bool(value))
            logger.info("Penelope's shadow is %s", "on" if value else "off")

    return {**handlers, SWITCH: internal_state._UpdateHandler(validate, apply)}


_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"

HOOKS = (
    Hook("sglang.srt.arg_groups.validation_hook.check_server_args", refuse_early, HookType.AFTER),
    Hook(f"{_SCHEDULER}.init_schedule_policy", begin, HookType.AFTER),
    Hook(
        "sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_extend",
        follow_batch,
        HookType.AFTER,
    ),
    Hook("sglang.srt.mem_cache.common.release_kv_cache", follow_release, HookType.AROUND),
    Hook(f"{_SCHEDULER}.flush_cache", follow_flush, HookType.AFTER),
    Hook(
        "sglang.srt.managers.scheduler_components.internal_state"
        ".SchedulerInternalStateController._update_handlers",
        offer_switch,
        HookType.AFTER,
    ),
)
"""Registered where a shadow was asked for, and nowhere else."""
