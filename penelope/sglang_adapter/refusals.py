"""Combinations that Penelope refuses at start-up, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from penelope.sglang_adapter import models
from penelope.sglang_adapter.errors import UnsupportedError

# These write a layer's K and V before its attention reads them, for every row of
# a batch.  Backends that were not looked at are refused as well.
WRITE_FIRST_BACKENDS = frozenset({"triton", "fa3", "torch_native", "penelope_rows"})


class Refusal(NamedTuple):
    when: Callable[[Any], bool]
    flag: str
    reason: str


def _on(name: str) -> Callable[[Any], bool]:
    return lambda settings: bool(getattr(settings, name))


def _above_one(name: str) -> Callable[[Any], bool]:
    return lambda settings: (getattr(settings, name) or 1) > 1


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        _on("disable_radix_cache"), "--disable-radix-cache", "there is no cache without the tree"
    ),
    Refusal(
        _on("enable_two_batch_overlap"),
        "--enable-two-batch-overlap",
        "a request and its phantom may land in different micro-batches",
    ),
    Refusal(
        _on("enable_pdmux"),
        "--enable-pdmux",
        "a request and its phantom may land in different micro-batches",
    ),
    Refusal(
        _above_one("pp_size"),
        "--pp-size",
        "with pipeline stages a request is scheduled before its predecessor's batch has run",
    ),
    Refusal(
        _above_one("attn_cp_size"),
        "--attn-cp-size",
        "context parallelism splits a sequence that has holes",
    ),
    Refusal(
        _above_one("dcp_size"),
        "--dcp-size",
        "context parallelism splits a sequence that has holes",
    ),
    Refusal(
        _on("enable_dp_attention"),
        "--enable-dp-attention",
        "it has not been tried: ranks must agree on batches that phantoms enlarge",
    ),
    Refusal(
        _on("enable_prefill_delayer"),
        "--enable-prefill-delayer",
        "it would delay the steps of a refill that is under way",
    ),
    Refusal(
        lambda s: s.disaggregation_mode not in (None, "null"),
        "--disaggregation-mode",
        "a retained span cannot be handed over before the hole in front of it is refilled",
    ),
    Refusal(
        lambda s: s.speculative_algorithm is not None,
        "--speculative-algorithm",
        "phantoms do not run through the draft model, and bigram keys are not matched",
    ),
    Refusal(
        _on("enable_hierarchical_cache"),
        "--enable-hierarchical-cache",
        "it is another second tier for the same KV",
    ),
    Refusal(_on("enable_lmcache"), "--enable-lmcache", "it is another tier for the same KV"),
    Refusal(_on("enable_flexkv"), "--enable-flexkv", "it is another tier for the same KV"),
    Refusal(
        _on("enable_unified_cache_external_linker"),
        "--enable-unified-cache-external-linker",
        "it is another tier for the same KV",
    ),
    Refusal(
        _on("enable_streaming_session"),
        "--enable-streaming-session",
        "a session keeps a row that never meets the tree",
    ),
    Refusal(
        _on("enable_session_radix_cache"),
        "--enable-session-radix-cache",
        "it needs SGLang's own tree",
    ),
    Refusal(_on("is_embedding"), "--is-embedding", "a phantom would be answered as an embedding"),
    Refusal(
        lambda s: s.dllm_algorithm is not None,
        "--dllm-algorithm",
        "its attention is not causal, so KV depends on later tokens",
    ),
    Refusal(
        _on("strip_thinking_cache"),
        "--strip-thinking-cache",
        "it gives back slots that the tree may own already",
    ),
    Refusal(
        lambda s: s.radix_eviction_policy != "lru",
        "--radix-eviction-policy",
        "PENELOPE_ORDER says whose KV goes first",
    ),
    Refusal(_on("enable_hisparse"), "--enable-hisparse", "it moves KV that the tree owns"),
    Refusal(
        _on("enable_kv_cache_sharding"),
        "--enable-kv-cache-sharding",
        "owners of pages rotate along a history and a hole breaks the rotation",
    ),
    Refusal(
        lambda s: s.kv_canary not in (None, "none"),
        "--kv-canary",
        "it keeps a check of every KV slot by SGLang's own tree",
    ),
)

HOST_REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        _on("enable_return_routed_experts"),
        "--enable-return-routed-experts",
        "it is kept by the KV slot, which changes when KV comes back from the host",
    ),
    Refusal(
        _on("enable_return_indexer_topk"),
        "--enable-return-indexer-topk",
        "it is kept by the KV slot, which changes when KV comes back from the host",
    ),
)
"""Refused with a host tier only: `PENELOPE_HOST_TOKENS`."""


def require_supported_settings(settings: Any, *, host_tier: bool = False) -> None:
    """Raises `UnsupportedError` with the flag and the reason."""
    for refusal in REFUSALS:
        if refusal.when(settings):
            raise UnsupportedError(f"Penelope does not work with {refusal.flag}: {refusal.reason}")
    for refusal in HOST_REFUSALS if host_tier else ():
        if refusal.when(settings):
            raise UnsupportedError(
                f"Penelope's host tier (PENELOPE_HOST_TOKENS) does not work with {refusal.flag}: "
                f"{refusal.reason}"
            )
    for flag, name in _ATTENTION_FLAGS.items():
        backend = getattr(settings, name)
        if backend is not None and backend not in WRITE_FIRST_BACKENDS:
            _refuse_backend(flag, backend)


_ATTENTION_FLAGS: Mapping[str, str] = {
    "--attention-backend": "attention_backend",
    "--prefill-attention-backend": "prefill_attention_backend",
}


class _Given:
    """Flags as they stand on a command line, of which no other was given."""

    radix_eviction_policy = "lru"  # the only default that is looked at and not "off"

    def __init__(self, arguments: Sequence[str]) -> None:
        for index, argument in enumerate(arguments):
            if not argument.startswith("--"):
                continue
            flag, equals, text = argument.partition("=")
            following = arguments[index + 1] if index + 1 < len(arguments) else "--"
            value: Any = text
            if not equals:
                value = True if following.startswith("-") else following
            setattr(self, flag[2:].replace("-", "_"), _number(value))

    def __getattr__(self, name: str) -> None:
        return None


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def require_supported_arguments(arguments: Sequence[str], *, host_tier: bool) -> None:
    """What can be told of a command line before SGLang, which parses it, is imported.

    Raises `UnsupportedError`.  What this does not see is refused later, by the parsed settings.
    """
    given: Any = _Given(arguments)
    with suppress(TypeError):  # A value that is none: the parser will say so.
        require_supported_settings(given, host_tier=host_tier)
    for name in ("model_path", "model"):
        if isinstance(folder := getattr(given, name), str):
            models.require_supported_folder(folder)


def _refuse_backend(flag: str, backend: str) -> None:
    raise UnsupportedError(
        f"Penelope does not work with {flag} {backend}: K and V must be written before attention "
        f"reads them, so choose one of {', '.join(sorted(WRITE_FIRST_BACKENDS))}"
    )


def require_supported_scheduler(scheduler: Any) -> None:
    """What is known only once the model is loaded.  Raises `UnsupportedError`."""
    model = scheduler.model_config
    for wrong, reason in (
        (scheduler.is_hybrid_swa, "it has sliding-window layers, where a hole is not cheap"),
        (scheduler.is_hybrid_ssm, "it has recurrent or linear-attention layers"),
        (model.is_multimodal, "its KV depends on more than token ids and positions"),
        (model.is_encoder_decoder, "its KV depends on more than token ids and positions"),
        (not scheduler.is_generation, "it generates no text"),
    ):
        if wrong:
            models.refuse(reason)
    backend = scheduler.tp_worker.model_runner.prefill_attention_backend_str
    if backend not in WRITE_FIRST_BACKENDS:
        _refuse_backend("--attention-backend", backend)
