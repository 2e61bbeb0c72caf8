"""Requests that must be refused, with a clear 4xx and nothing more."""

from __future__ import annotations

import json
import random
from typing import Any

from penelope.sglang_adapter.random_model import VOCABULARY

IDS: tuple[Any, ...] = (
    -1,
    -VOCABULARY,
    VOCABULARY,
    VOCABULARY + 1,
    2**31 - 1,
    2**31,
    2**32,
    2**32 + 5,
    5 - 2**32,
    -(2**31) - 1,
    2**63 - 1,
    -(2**63),
    2**63,
    2**64 + 5,
    10**30,
)
"""Integers that are no token."""

DISALLOW = json.dumps(
    {
        "callable": (
            b"csglang.srt.sampling.custom_logit_processor\nDisallowedTokensLogitsProcessor\n."
        ).hex()
    }
)
"""SGLang's own logit processor, as a client sends one, but without parameters."""

NOT_IDS: tuple[Any, ...] = (1.5, "7", None, True, [], {}, [[1]], float("1e300"))

SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": -1},
    {"temperature": "hot"},
    {"top_p": 0},
    {"top_p": 1.5},
    {"top_k": 0},
    {"top_k": -7},
    {"min_p": 2},
    {"frequency_penalty": 9},
    {"presence_penalty": -9},
    {"repetition_penalty": 0},
    {"repetition_penalty": -3},
    {"min_new_tokens": -1},
    {"min_new_tokens": 9, "max_new_tokens": 3},
    {"max_new_tokens": -5},
    {"max_new_tokens": "many"},
    {"logit_bias": {str(VOCABULARY): 1.0}},
    {"logit_bias": {"-1": 1.0}},
    {"logit_bias": {"word": 1.0}},
    {"json_schema": "{", "max_new_tokens": 4},
    {"json_schema": '{"type": 5}', "max_new_tokens": 4},
    {"regex": "(", "max_new_tokens": 4},
    {"ebnf": "root ::=", "max_new_tokens": 4},
    {"json_schema": "{}", "regex": "a"},
    {"n": 0},
    {"n": -1},
    {"beam_width": 0},
    {"beam_width": -2},
    {"unheard_of": 1},
    {"max_new_tokens": 2**70},
    {"stop_token_ids": ["x"]},
    # Each of these ends SGLang itself.
    {"stop_regex": "["},
    {"stop_regex": "(?<=a+)b"},
    {"stop_regex": ["a", "*"]},
    {"top_k": 2**40, "temperature": 1},
    {"top_k": 1.5, "temperature": 1},
    {"temperature": 1e300},
    {"min_new_tokens": 2**40, "max_new_tokens": 2**41},
    {"min_new_tokens": 1.5, "max_new_tokens": 4},
    {"max_new_tokens": 1.5},
    {"stream_interval": "x"},
    {"ignore_eos": "yes"},
    {"skip_special_tokens": 5},
    {"logit_bias": {"5": 1e39}},
    {"logit_bias": {"5": "x"}},
    {"logit_bias": {"5": None}},
    {"logit_bias": [1, 2]},
    {"stop_token_ids": [10**6], "min_new_tokens": 2},
    {"stop_token_ids": [-5], "min_new_tokens": 2},
    {"stop_token_ids": [2**70]},
    {"n": 10**5},
    {"stop": [5]},
    {"sampling_seed": 2**63},
    {"structural_tag": "{"},
    {"watermark": "x"},
)

CHAT = {"role": "user", "content": "a"}

BODIES: tuple[tuple[str, Any], ...] = (
    ("/generate", {}),
    ("/generate", {"text": ""}),
    ("/generate", {"input_ids": []}),
    ("/generate", {"input_ids": [[]]}),
    ("/generate", {"input_ids": [[1, 2], []]}),
    ("/generate", {"text": 5}),
    ("/generate", {"text": "a", "input_ids": [1]}),
    ("/generate", {"input_ids": 7}),
    ("/generate", {"input_ids": {"a": 1}}),
    ("/generate", {"input_ids": [1, 2], "sampling_params": 5}),
    ("/generate", {"input_ids": [1, 2], "lora_path": "nobody"}),
    ("/generate", {"input_ids": [1, 2], "return_logprob": True, "token_ids_logprob": [VOCABULARY]}),
    ("/generate", {"input_ids": [1, 2], "return_logprob": True, "token_ids_logprob": [-1]}),
    ("/generate", {"input_ids": [1, 2], "return_logprob": True, "logprob_start_len": 9}),
    ("/generate", {"input_ids": [1, 2], "return_logprob": True, "top_logprobs_num": -3}),
    ("/generate", []),
    ("/generate", 5),
    ("/v1/completions", {}),
    ("/v1/completions", {"model": "tiny", "prompt": []}),
    ("/v1/completions", {"model": "tiny", "prompt": [1, 2], "max_tokens": -1}),
    ("/v1/completions", {"model": "tiny", "prompt": [1, 2], "logprobs": -1}),
    ("/v1/completions", {"model": "tiny", "prompt": [1, 2], "n": 0}),
    ("/v1/completions", {"model": "tiny", "prompt": {"a": 1}}),
    ("/v1/chat/completions", {}),
    ("/v1/chat/completions", {"model": "tiny", "messages": []}),
    ("/v1/chat/completions", {"model": "tiny", "messages": "hello"}),
    ("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user"}]}),
    ("/v1/chat/completions", {"model": "tiny", "messages": [{"role": 5, "content": "a"}]}),
    (
        "/v1/chat/completions",
        {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": -4},
    ),
    ("/load_lora_adapter", {"lora_name": "nobody", "lora_path": "/nowhere"}),
    ("/unload_lora_adapter", {"lora_name": "nobody"}),
    ("/update_weights_from_disk", {"model_path": "/nowhere"}),
    ("/pause_generation", {"mode": "sideways"}),
    ("/abort_request", {"rid": 5}),
    ("/generate", {"input_ids": [[1], [2]], "sampling_params": [{"max_new_tokens": 2}]}),
    ("/generate", {"input_ids": [[1], [2]], "return_logprob": [True]}),
    ("/v1/chat/completions", {"model": "tiny", "messages": [CHAT], "n": 10**5}),
    ("/v1/completions", {"model": "tiny", "prompt": [[1, 2], [2**63]]}),
    ("/v1/completions", {"model": "tiny", "prompt": [1, 2], "stop_regex": "["}),
    ("/v1/completions", {"model": "tiny", "prompt": [1, 2], "top_k": 2**40}),
    ("/v1/completions", {"model": "tiny", "prompt": [1, 2], "logit_bias": {"5": "nan"}}),
    *(
        ("/generate", {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 3}, **asked})
        for asked in (
            {"custom_logit_processor": "["},
            {"custom_logit_processor": "{}"},
            {"custom_logit_processor": '{"callable": "zz"}'},
            {"custom_logit_processor": '{"callable": "00"}'},
            {"custom_logit_processor": DISALLOW},
            {"return_logprob": True, "top_logprobs_num": VOCABULARY + 1},
            {"return_logprob": True, "top_logprobs_num": 2**40},
            {"return_logprob": True, "token_ids_logprob": [[1]]},
            {"session_params": {"id": "nobody"}},
            {"session_params": {"what": 1}},
            {"session_params": {"id": "nobody", "replace": True}},
            {"extra_key": ["x"]},
            {"image_data": "x"},
            {"priority": 2**70},
            {"bootstrap_room": 2**70},
            {"routed_dp_rank": 5},
            {"return_routed_experts": True, "routed_experts_start_len": 99},
            {"rid": ["x"]},
            {"custom_labels": {"a": "b"}},
            {"positional_embed_overrides": {"embeds": [[1.0]], "positions": [0]}},
        )
    ),
)

TEXTS: tuple[tuple[str, str], ...] = (
    ("/generate", "{"),
    ("/generate", ""),
    ("/generate", '{"input_ids": [1, 2'),
    ("/generate", '{"input_ids": [1, NaN]}'),
    ("/generate", '{"text": "\\ud800"}'),
    ("/v1/completions", "no json"),
    ("/v1/chat/completions", '{"messages": '),
)
"""Bodies that are no JSON, or no text."""


def fields(source: random.Random) -> dict[str, Any]:
    """One request that must be refused: `path`, and `body` or `text`."""
    choice = source.random()
    if choice < 0.3:
        tokens: list[Any] = [source.randrange(VOCABULARY) for _ in range(source.randrange(1, 40))]
        tokens[source.randrange(len(tokens))] = source.choice(IDS + NOT_IDS)
        path, name = source.choice(
            [("/generate", "input_ids"), ("/generate", "input_ids"), ("/v1/completions", "prompt")]
        )
        return {
            "path": path,
            "body": {name: tokens, "model": "tiny"}
            if path[1] == "v"
            else {name: tokens, "sampling_params": {"max_new_tokens": 3}},
        }
    if choice < 0.6:
        sampling = source.choice(SAMPLING)
        return {
            "path": "/generate",
            "body": {"input_ids": [3, 4, 5], "sampling_params": sampling},
        }
    if choice < 0.92:
        path, body = source.choice(BODIES)
        return {"path": path, "body": body}
    path, text = source.choice(TEXTS)
    return {"path": path, "text": text}
