"""What a prompt must be to get in: short enough to be admitted, and of tokens that exist."""

from __future__ import annotations

from typing import Any

import numpy as np


def longest_prompt(capacity: int, page_size: int) -> int:
    """Tokens of the longest prompt that admission can ever accept, alone on an empty pool.

    SGLang admits a request when its prompt, its output and one page are *less* than what can be
    had (`PrefillAdder.add_one_req`), whatever of the prompt is cached, missing or on the host.
    It refuses prompts *from* its limit on and cuts others *to* it, so the limit itself must fit.
    """
    return max(0, capacity - page_size - 1)


def fault(req: Any) -> str | None:
    """The reason why a request cannot get in, or None.  No token is looked at one by one.

    Stock SGLang looks up the embedding of whatever id it is given: outside the table this stops
    the process, or, where the table is split over GPUs, computes KV of no token at all.
    """
    if getattr(req, "beam_group", None) is not None:
        return "Penelope does not serve beam_width: beams share rows that a refill rewrites."
    tokens = np.frombuffer(req.origin_input_ids, dtype=np.int64)
    if not len(tokens):
        return "The prompt is empty: it must have at least one token."
    lowest, highest = int(tokens.min()), int(tokens.max())
    if lowest < 0 or highest >= req.vocab_size:
        wrong = lowest if lowest < 0 else highest
        at = int((tokens == wrong).argmax())
        return (
            f"Token {at} of the prompt has the id {wrong}: the model's vocabulary has the ids "
            f"0 to {req.vocab_size - 1}."
        )
    asked = req.logprob.top_logprobs_num if req.return_logprob else 0
    if asked > req.vocab_size:
        return f"top_logprobs_num is {asked}: the model's vocabulary has {req.vocab_size} tokens."
    return None
