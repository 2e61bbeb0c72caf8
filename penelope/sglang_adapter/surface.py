"""All that SGLang keeps of a request, and what a phantom has of it.

SGLang reads attributes of every row of a batch, also of rows that have not asked for anything, and
sets some on a request after it was made.  Each name has a fate here, a test holds the list against
the installed source and a phantom against the list, and a scheduler does not start with an SGLang
whose requests have an attribute that is not listed.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from enum import Enum

from penelope.sglang_adapter.errors import UnsupportedError


class Fate(Enum):
    """What a phantom has in an attribute."""

    OWN = "its span, its locks, its name: what makes it a phantom"
    SERVED = "what the request that it serves has"
    PLAIN = "what SGLang's constructor puts there for who asks for nothing"


_GROUPS: Mapping[Fate, str] = {
    Fate.OWN: """
        rid cache_request_handle sampling_params kv lock last_node last_host_node best_match_node
        prefix_len extend_end logprob_start_len skip_radix_cache_insert retracted_stain
        finished_reason finished_output time_stats origin_input_ids_unpadded
    """,
    # `origin_input_ids` and `full_untruncated_fill_ids` are the served request's tokens so far.
    Fate.SERVED: """
        tokenizer eos_token_ids vocab_size priority lora_id extra_key cache_salt
        full_untruncated_fill_ids
    """,
    Fate.PLAIN: """
        output_ids session _session_mm_items session_id session_generation input_embeds
        positional_embed_overrides multi_item_delimiter_indices token_indices_to_pool
        decision_layout swa_branching_seqlen token_type_ids extend_batch_idx decode_batch_idx
        http_worker_ipc require_reasoning _is_reasoning_over reasoning_tokens _think_end_matcher
        _think_end_match_len _think_start_match_len custom_logit_processor return_hidden_states
        return_hidden_states_mode routing_key mamba_lazy_checkpoint finished_len to_finish stream
        surr_offset read_offset decoded_text multimodal_inputs mm_image_tokens mm_audio_tokens
        mm_video_tokens mm_token_counts_ready host_hit_length swa_host_hit_length
        mamba_host_hit_length mamba_branching_seqlen num_matched_prefix_tokens storage_hit_length
        storage_hit_start host_loaded_length host_hit_is_storage storage_prefetch_retry_attempts
        staged_prefetch_plan storage_prefetch_last_match_len kv_rotation_base
        inflight_middle_chunks is_retracted weight_version_events send_token_offset
        send_decode_id_offset send_output_token_logprobs_offset return_logprob logprob
        temp_scaled_logprobs top_p_normalized_logprobs return_sampling_mask sampling_logprobs_mode
        return_flat_raw_top_logprobs input_logprob_sent input_token_logprobs
        temp_input_top_logprobs_val temp_input_top_logprobs_idx temp_input_token_ids_logprobs_val
        temp_input_token_ids_logprobs_idx sampling_mask_rows hidden_states hidden_states_tensor
        output_topk_p output_topk_index output_dsa_topk_indices return_routed_experts
        routed_experts_start_len routed_experts return_indexer_topk indexer_topk customized_info
        embedding grammar_key grammar grammar_wait_ct cached_tokens already_computed
        cached_tokens_device cached_tokens_host cached_tokens_storage _cache_breakdown_computed
        spec_verify_ct spec_num_correct_drafts spec_num_block_accept_tokens spec_num_cap_tokens
        spec_correct_drafts_histogram spec_cap_lens_histogram retraction_count retraction_mb_id
        metrics_collector has_log_time_stats bootstrap_host bootstrap_port bootstrap_room
        pd_rebootstrap_forced_output_id discard_output_reason disagg_kv_sender routed_dp_rank
        disagg_prefill_dp_rank kv_hints start_send_idx disagg_decode_prefix_len tmp_end_idx
        early_send_prefix_end metadata_buffer_index expected_kv_checksum pending_bootstrap
        prefill_attempt_count dimensions beam_group return_pooled_hidden_states
        pooled_hidden_state hisparse_staging arrival_processed_tokens dllm_initialized dllm_phase
        dllm_incomplete_ids dllm_algo_state dllm_block_offset dllm_config dllm_has_literal_mask
    """,
}

ATTRIBUTES: Mapping[str, Fate] = {
    name: fate for fate, names in _GROUPS.items() for name in names.split()
} | {"origin_input_ids": Fate.OWN}
"""Every attribute of SGLang's `Req`, also those that SGLang sets later."""

ATTACHED: Mapping[str, str] = {
    "tokenizer": "set by the scheduler; the penalizer of `min_new_tokens` reads it of every row",
    "pd_rebootstrap_in_progress": "set and read where `--disaggregation-mode` is in force: refused",
    "kv_receiver": "set and read where `--disaggregation-mode` is in force: refused",
}
"""What is not made by the constructor, or made empty and filled by the scheduler: who reads it."""

SLOT_TABLES: Mapping[str, str] = {
    "mem_cache/memory_pool.py": "K and V: written by a phantom like by any request, copied in full "
    "with a host tier; pools that keep more by the slot are refused there",
    "mem_cache/allocation.py": "the rows of requests: patched when a phantom's slots are adopted",
    "state_capturer/base.py": "routed experts and index choices by the slot: a phantom's batch "
    "writes them; --enable-return-routed-experts and --enable-return-indexer-topk are refused with "
    "a host tier",
    "kv_canary": "--kv-canary is refused",
    "layers/quantization/fp4_kv_cache_quant_method.py": "scales of a quantised pool: refused with "
    "a host tier, as every pool but MHA and MLA",
    "mem_cache/qsa_kv_pool.py": "an index beside K and V: the same, and its backend is refused",
    "mem_cache/dsa_cache_layer_split.py": "an index beside K and V: the same",
    "mem_cache/deepseek_v4_compress_state.py": "compressed state: its backend is refused",
    "mem_cache/deepseek_v4_memory_pool.py": "compressed state: its backend is refused",
    "mem_cache/dsv41_request_window.py": "a window by the row: its backend is refused",
    "mem_cache/allocator/swa.py": "sliding windows: such models are refused",
    "mem_cache/hybrid_cache/hybrid_pool_assembler.py": "recurrent layers: such models are refused",
    "mem_cache/unified_memory_pool.py": "shared with recurrent layers: such models are refused",
    "managers/hisparse_coordinator.py": "--enable-hisparse is refused",
    "mem_cache/allocator/hisparse.py": "--enable-hisparse is refused",
    "mem_cache/pool_host/hisparse.py": "--enable-hisparse is refused",
    "batch_overlap/two_batch_overlap.py": "--enable-two-batch-overlap is refused",
    "layers/cp/interleave.py": "--attn-cp-size is refused",
    "layers/dcp/comm.py": "--dcp-size is refused",
    "layers/dcp/planner.py": "--dcp-size is refused",
    "layers/attention/flashattention_backend.py": "page tables of one batch, made anew for each",
    "layers/attention/triton_backend.py": "page tables of one batch, made anew for each",
    "layers/attention/local_attention.py": "page tables of one batch, made anew for each",
    "layers/attention/minicpm/cache.py": "its backend is refused",
    "layers/attention/qsa/mqa.py": "its backend is refused",
    "layers/attention/wave_backend.py": "this backend is refused",
    "layers/attention/xpu_backend.py": "this backend is refused",
    "layers/multi_gate.py": "gates of one batch",
}
"""Modules of `sglang/srt` that keep something by KV slot or by row: why none goes stale."""


def require_known() -> None:
    """Raises `UnsupportedError` if SGLang's requests have an attribute without a fate."""
    unknown = sorted(constructed() - ATTRIBUTES.keys())
    if unknown:
        raise UnsupportedError(
            f"requests of this SGLang have '{unknown[0]}', which Penelope's phantoms do not know"
        )


def constructed() -> set[str]:
    """Attributes that SGLang's constructor gives to a request, by its source."""
    from sglang.srt.managers.schedule_batch import Req

    return {
        node.attr
        for function in (Req.__init__, Req.init_diffusion_llm)
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
