"""What was seen of one operation and of one run, as plain data: what the judge compares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

HUNG = 0
"""The status of a request whose client gave up waiting."""
CUT = 599
"""The status of a stream that ended in the middle of an event."""
LEFT = -1
"""The status of a request whose client left on purpose."""


@dataclass(frozen=True)
class Output:
    tokens: tuple[int, ...] | None
    """None where the protocol gives text alone."""
    text: str
    logprobs: tuple[Any, ...]
    """One entry an output token; empty if it was not asked for."""
    finish: str
    prompt_tokens: int
    exact: dict[str, Any] = field(default_factory=dict)
    """Whatever else a finished request was told and must be told again."""


@dataclass(frozen=True)
class Answer:
    status: int
    message: str = ""
    outputs: tuple[Output, ...] = ()

    @property
    def finished(self) -> bool:
        return self.status == 200 and all(o.finish in ("length", "stop") for o in self.outputs)

    @property
    def cut_off(self) -> bool:
        """Ended by an abort, which goes before whatever else the request would have been told."""
        return self.status == 200 and {o.finish for o in self.outputs} == {"abort"}


Place = tuple[int, int]


@dataclass
class Run:
    """One episode on one engine."""

    answers: dict[Place, Answer] = field(default_factory=dict)
    died: str = ""
    """The end of the log, if the server died."""
    leaks: list[str] = field(default_factory=list)
    log: str = ""
    kv: dict[bytes, bytes] = field(default_factory=dict)
    """History up to a position -> digest of K and V there, in either tier."""
    statistics: dict[str, int] = field(default_factory=dict)
    limit: int = 0
    """Tokens of KV that the device holds."""


# From what the protocols answer


def from_native(status: int, body: Any) -> Answer:
    """An answer of `/generate` or of the engine: one object, or a list for several outputs."""
    if status != 200:
        return Answer(status, message_of(body))
    items = body if isinstance(body, list) else [body]
    if any("error" in item for item in items):
        error = next(item["error"] for item in items if "error" in item)
        return Answer(int(error.get("code", 500)), str(error.get("message", "")))
    outputs = tuple(_native(item) for item in items)
    for item in items:
        reason = item["meta_info"].get("finish_reason") or {}
        if reason.get("type") == "abort" and reason.get("status_code"):
            return Answer(int(reason["status_code"]), str(reason.get("message", "")), outputs)
    return Answer(200, "", outputs)


def _native(item: dict[str, Any]) -> Output:
    meta = item["meta_info"]
    exact = {
        name: _plain(meta[name])
        for name in (
            "input_token_logprobs",
            "input_top_logprobs",
            "output_top_logprobs",
            "input_token_ids_logprobs",
            "output_token_ids_logprobs",
        )
        if meta.get(name)
    }
    hidden = meta.get("hidden_states")
    if hidden:
        # The first entry is the prompt's, from wherever nothing was cached.
        exact["hidden_states"] = [_last_row(entry) for entry in _plain(hidden[1:])]
    reason = meta.get("finish_reason") or {}
    tokens = item.get("output_ids")
    return Output(
        None if tokens is None else tuple(tokens),
        item.get("text") or "",
        tuple(_plain(meta.get("output_token_logprobs") or ())),
        str(reason.get("type", "none")),
        int(meta.get("prompt_tokens", 0)),
        exact,
    )


def _last_row(entry: list[Any]) -> list[Any]:
    """Of a request that was retracted SGLang computes, and tells, several rows at once again."""
    return entry[-1] if entry and isinstance(entry[0], list) else entry


def from_openai(status: int, body: Any) -> Answer:
    """An answer of `/v1/completions` or `/v1/chat/completions`."""
    if status != 200:
        return Answer(status, message_of(body))
    if "choices" not in body:
        return Answer(int(body.get("error", body).get("code", 500)), message_of(body))
    prompt = int((body.get("usage") or {}).get("prompt_tokens", 0))
    return Answer(200, "", tuple(_choice(choice, prompt) for choice in body["choices"]))


def _choice(choice: dict[str, Any], prompt: int) -> Output:
    text = choice.get("text")
    if text is None:
        text = (choice.get("message") or {}).get("content") or ""
    told = choice.get("logprobs") or {}
    values = told.get("token_logprobs") or [c["logprob"] for c in told.get("content") or ()]
    hidden = choice.get("hidden_states")
    exact = {"hidden_states": _plain(hidden)} if hidden else {}
    return Output(
        None, text, tuple(values), str(choice.get("finish_reason") or "none"), prompt, exact
    )


def message_of(body: Any) -> str:
    """The sentence in an error's body, wherever the protocol has it."""
    if isinstance(body, dict):
        error = body.get("error", body)
        if isinstance(error, dict):
            return str(
                error.get("message") or error.get("error_message") or error.get("detail", "")
            )
        return str(error)
    return str(body)


def _plain(value: Any) -> Any:
    """Tuples and lists alike, so that what came over HTTP equals what came over the engine API."""
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value
