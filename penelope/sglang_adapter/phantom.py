"""Phantom requests: prefill-only requests that recompute the KV of a hole.

A phantom shares the token array of the request it serves, computes positions
``[start, end)`` of it at their original positions, and produces nothing else.
It is *finished from birth*, and SGLang treats it accordingly everywhere: its
sampled token is not committed, it is not streamed, it is filtered out before
the batch becomes a decode batch, it is not collected for retraction or abort.
Only its row and its lock have to be given back when the batch's result is in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req
from sglang.srt.sampling.sampling_params import SamplingParams

from penelope.sglang_adapter.paths import Range

if TYPE_CHECKING:
    from sglang.srt.mem_cache.base_prefix_cache import TreeLock


class Phantom(Req):
    """The request that refills one hole, or one part of it."""

    def __init__(
        self, served: Req, span: Range, ordinal: int, *, lock: TreeLock, refills: TreeLock
    ) -> None:
        super().__init__(
            # No user's abort names it: aborts skip finished requests.
            rid=f"{served.rid}-phantom-{ordinal}",
            origin_input_text="",
            origin_input_ids=served.full_untruncated_fill_ids,
            sampling_params=_greedy(),
            lora_id=None,
            vocab_size=served.vocab_size,
            priority=served.priority,
            eos_token_ids=served.eos_token_ids,
        )
        # SGLang attaches it after construction, and penalizers ask it of every row of a batch.
        self.tokenizer = served.tokenizer
        self.served = served
        self.span = span
        # The served request's lock, which has undertaken the refill.
        self.refills = refills
        # The constructor would glue the adapter's id to the key a second time.
        self.lora_id = served.lora_id
        self.extra_key = served.extra_key
        self.cache_salt = served.cache_salt
        self.full_untruncated_fill_ids = served.full_untruncated_fill_ids
        self.prefix_len, self.extend_end = span
        self.last_node = self.last_host_node = self.best_match_node = lock.node
        # Its own lock: under overlap it may outlive the request that it serves.
        self.lock = lock
        self.logprob_start_len = -1
        self.skip_radix_cache_insert = True
        # Its slots are the tree's from the moment they are allocated: neither the
        # busy check nor the release may count them as the request's own.
        self.kv.cache_protected_len = self.extend_end
        # Reported as no cached tokens of a user's request.
        self.retracted_stain = True
        self.finished_reason = FINISH_LENGTH(length=0)
        self.finished_output = True


def _greedy() -> SamplingParams:
    params = SamplingParams(max_new_tokens=0, temperature=0.0)
    params.normalize(None)
    return params
