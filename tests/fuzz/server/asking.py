"""From an operation to what goes over the wire, and what was said so far."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from penelope.sglang_adapter.random_model import VOCABULARY
from tests.fuzz.server import known
from tests.fuzz.server.answers import Answer
from tests.fuzz.server.episode import Fields

OPENAI = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    **{
        name: name
        for name in (
            "temperature top_p top_k min_p frequency_penalty presence_penalty repetition_penalty "
            "logit_bias stop stop_token_ids stop_regex ignore_eos n regex ebnf no_stop_trim "
            "skip_special_tokens"
        ).split()
    },
}
"""Sampling parameters of the native API, as the OpenAI-compatible one names them."""
SHARED_OPTIONS = ("return_hidden_states", "stream", "extra_key", "lora_path", "priority")


@dataclass(frozen=True)
class Request:
    """What one `ask` sends: `body` to `path`, or `body` as the engine's arguments."""

    via: str
    path: str
    body: Fields
    tokens: tuple[int, ...]
    """The prompt, where it is sent as tokens."""


@dataclass
class Said:
    """What the conversations of one episode hold: tokens, and chats beside them."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    chats: dict[int, list[dict[str, str]]] = field(default_factory=dict)

    def request(self, fields: Fields) -> Request:
        via = fields["via"]
        if via == "chat":
            return _chat(fields, self.messages(fields["prompt"]))
        tokens = self.prompt(fields["prompt"])
        if via == "completions":
            body = {"model": "tiny", "prompt": tokens, **_openai(fields)}
            return Request(via, "/v1/completions", body, tuple(tokens))
        options = dict(fields["options"])
        if "custom_logit_processor" in options:
            options |= _processor(options)
        sampling = dict(fields["sampling"])
        if "custom_params" in options:
            sampling["custom_params"] = options.pop("custom_params")
        body = {"input_ids": tokens, "sampling_params": sampling, **options}
        return Request(via, "/generate", body, tuple(tokens))

    def prompt(self, prompt: Fields) -> list[int]:
        seed, length = prompt["fresh"]
        before = self.tokens.get(prompt["history"], opening(prompt))
        if prompt["cut"] is not None:
            before = before[: prompt["cut"]]
        total = prompt.get("total")
        if total is None:
            return before + text(seed, length)
        return (before + text(seed, max(length, total - len(before))))[:total]

    def messages(self, prompt: Fields) -> list[dict[str, str]]:
        seed, length = prompt["fresh"]
        before = self.chats.get(
            prompt["history"], [{"role": "system", "content": "Be brief. " * 5}]
        )
        source = random.Random(f"chat {seed}")
        content = "".join(source.choice("abcdefgh \n") for _ in range(length))
        # The pool ends a token chat's growth, and this a chat's: eight messages.
        return [*before[:1], *before[1:][-6:], {"role": "user", "content": content}]

    def learn(self, fields: Fields, request: Request, answer: Answer) -> None:
        """Continue the conversation with what was answered, if the operation says so."""
        if "keep" not in fields or not answer.finished or not answer.outputs:
            return
        if known.unsettled(fields):
            return
        said = answer.outputs[0]
        if request.via == "chat":
            reply = {"role": "assistant", "content": said.text}
            self.chats[fields["keep"]] = [*request.body["messages"], reply]
        elif said.tokens is not None and said.prompt_tokens == len(request.tokens):
            self.tokens[fields["keep"]] = [*request.tokens, *said.tokens]


def opening(prompt: Fields) -> list[int]:
    """How a conversation begins: what all of them share, and then its own."""
    own = max(0, prompt.get("opening", 40) - 32)
    return text("shared", 32) + text(("own", prompt["history"]), own)


def text(seed: object, length: int) -> list[int]:
    source = random.Random(repr(seed))
    return [source.randrange(VOCABULARY) for _ in range(length)]


def _chat(fields: Fields, messages: list[dict[str, str]]) -> Request:
    body = {"model": "tiny", "messages": messages, **_openai(fields)}
    if "logprobs" in body:
        body["top_logprobs"] = min(body.pop("logprobs"), 20)
        body["logprobs"] = True
    return Request("chat", "/v1/chat/completions", body, ())


def _openai(fields: Fields) -> Fields:
    options = fields["options"]
    body: dict[str, Any] = {
        OPENAI[name]: value for name, value in fields["sampling"].items() if name in OPENAI
    }
    body |= {name: options[name] for name in SHARED_OPTIONS if name in options}
    if body.get("stream"):
        body["stream_options"] = {"include_usage": True}
    if "json_schema" in fields["sampling"]:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": {"type": "object"}},
        }
    if options.get("return_logprob"):
        body["logprobs"] = min(options.get("top_logprobs_num", 1), 20)
    if "custom_logit_processor" in options:
        body |= _processor(options)
    return body


def _processor(options: Fields) -> Fields:
    import json

    return {
        "custom_logit_processor": json.dumps(options["custom_logit_processor"]),
        "custom_params": {"token_ids": [1, 2, 3]},
    }
