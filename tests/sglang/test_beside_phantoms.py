"""Requests that ask for everything, in one batch with a phantom: as if nothing was ever evicted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fuzz.server import models as fuzzed
from tests.sglang import models, workload
from tests.sglang.conftest import DEFAULTS, Engines
from tests.sglang.harness import Engine

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

SMALL = 1024
GRAMMARS = ("regex", "json_schema")


@pytest.fixture(scope="module")
def complete(engines: Engines) -> Engine:
    """With a tokenizer, grammars and everything that requests can ask for."""
    return engines.get(
        skip_tokenizer_init=False,
        enable_custom_logit_processor=True,
        enable_return_hidden_states=True,
        grammar_backend="xgrammar",
    )


Asked = dict[str, Any]


async def scene(
    engine: Engine, back: Asked, beside: list[Asked], history: dict[str, Any]
) -> list[Any]:
    """A history loses its head and comes back in one batch with other requests."""
    opening = workload.text("history", 600)
    first = await engine.generate(opening, "first", 8, **history)
    for index in range(3):
        await engine.generate(workload.text(("press", index), 300), f"press{index}", 1)
    grown = opening + list(first["output_ids"]) + workload.text("tool", 20)
    for asked in (back, *beside):
        if any(name in GRAMMARS for name in asked.get("sampling", ())):
            # Compiled beforehand: a request whose grammar is not ready does not wait in the queue.
            await engine.generate([1, 2], "compiles", 1, **_copy(asked))
    await engine.hold()
    tasks = [asyncio.ensure_future(engine.generate(grown, "back", 6, **_copy(back), **history))]
    for index, asked in enumerate(beside):
        prompt = workload.text(("beside", index), 24)
        tasks.append(
            asyncio.ensure_future(engine.generate(prompt, f"beside{index}", 6, **_copy(asked)))
        )
    await engine.until(lambda found: len(found["queued"]) >= len(tasks))
    await engine.go()
    return [first, *await asyncio.gather(*tasks)]


def _copy(asked: Asked) -> Asked:
    return {k: dict(v) if isinstance(v, dict) else v for k, v in asked.items()}


def compare(engine: Engine, back: Asked, beside: list[Asked], **history: Any) -> list[Any]:
    answers = []
    for pool in (16384, SMALL):
        engine.call("penelope_configure", **{**DEFAULTS, "pool": pool})
        answers.append(engine.run(scene(engine, back, beside, history)))
        engine.check_alive()
        done = engine.dump()["statistics"]
        assert (done["phantoms"] >= 1) == (pool == SMALL)
    for clean, refilled in zip(*answers, strict=True):
        assert _said(clean) == _said(refilled)
    return answers[1]


def _said(answer: Any) -> Any:
    """What a client sees, but for times, names and what was cached."""
    if isinstance(answer, list):
        return [_said(one) for one in answer]
    meta = answer["meta_info"]
    kept = ("finish_reason", "hidden_states", "completion_tokens", "prompt_tokens")
    said = {name: meta.get(name) for name in kept}
    said.update({name: value for name, value in meta.items() if "logprobs" in name})
    return answer["output_ids"], answer.get("text"), said


LOGPROBS = {"return_logprob": True, "logprob_start_len": 20, "top_logprobs_num": 3}


def test_penalties_and_stops(complete: Engine) -> None:
    """`min_new_tokens` asks the tokenizer of every row, also of a phantom's."""
    beside: list[Asked] = [
        {"sampling": {"min_new_tokens": 3, "stop_token_ids": [7]}},
        {"sampling": {"frequency_penalty": 0.5, "presence_penalty": 0.5}},
        {"sampling": {"repetition_penalty": 1.5, "logit_bias": {"3": 5.0, "4": -5.0}}},
        {"sampling": {"stop": ["a", "<300>"], "max_new_tokens": 12}},
        {"sampling": {"temperature": 1.0, "top_k": 1, "top_p": 0.9, "min_p": 0.1}},
    ]
    compare(complete, {"sampling": {"min_new_tokens": 3, "stop_token_ids": [9]}}, beside)
    # Nobody else asks: the phantom's own request does not either.
    compare(complete, {}, beside[:1])


def test_outputs_of_every_kind(complete: Engine) -> None:
    beside: list[Asked] = [
        LOGPROBS,
        {"return_logprob": True, "token_ids_logprob": [1, 2, 3], "logprob_start_len": 0},
        {"return_hidden_states": True},
        {"sampling": {"n": 2}},
    ]
    back = {"return_logprob": True, "logprob_start_len": 610, "return_hidden_states": True}
    answers = compare(complete, back, beside)
    assert answers[1]["meta_info"]["hidden_states"]
    assert len(answers[1]["meta_info"]["input_token_logprobs"]) == 628 - 610


def test_grammars_and_processors(complete: Engine) -> None:
    from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor

    own = DisallowedTokensLogitsProcessor.to_str()
    beside: list[Asked] = [
        {"sampling": {"regex": "(yes|no|maybe)"}},
        {"sampling": {"json_schema": '{"type": "object", "properties": {"a": {"const": 1}}}'}},
        {
            "custom_logit_processor": own,
            "sampling": {"custom_params": {"token_ids": list(range(500))}},
        },
        LOGPROBS,
    ]
    answers = compare(complete, {"sampling": {"regex": "[a-c]{20}"}}, beside)
    assert min(answers[4]["output_ids"]) >= 500


@pytest.fixture(scope="module")
def experts(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = models.experts_and_yarn(tmp_path_factory.mktemp("experts") / "model")
    return engines.get(
        {"PENELOPE_HOST_TOKENS": "0"},
        model_path=str(folder),
        skip_tokenizer_init=False,
    )


def test_a_mixture_of_experts_with_stretched_positions(experts: Engine) -> None:
    """Experts are chosen by the token, and one rotary table holds for every batch."""
    beside: list[Asked] = [{"sampling": {"min_new_tokens": 2}}, {"return_logprob": True}]
    answers = compare(experts, {"sampling": {"min_new_tokens": 3}}, beside)
    assert len(answers[1]["output_ids"]) == 6


@pytest.fixture(scope="module")
def adapted(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """With two LoRA adapters, which compute the same bits in every batch (`engine_side`)."""
    folder = fuzzed.build(tmp_path_factory.mktemp("adapted"))
    return engines.get(
        model_path=str(folder / "first"),
        plugins=("tests.fuzz.server.engine_side:load",),
        enable_lora=True,
        lora_backend="torch_native",
        lora_paths=[f"{name}={folder / name}" for name in fuzzed.ADAPTERS],
        max_loras_per_batch=3,
        max_lora_rank=fuzzed.RANK,
        lora_target_modules=list(fuzzed.TARGETS),
        skip_tokenizer_init=False,
    )


@pytest.mark.parametrize("adapter", [*fuzzed.ADAPTERS, None])
def test_adapters_beside_phantoms(adapted: Engine, adapter: str | None) -> None:
    """A refill is computed with the adapter of whom it serves, its neighbours with their own."""
    told = {"return_logprob": True, "logprob_start_len": 0}
    beside: list[Asked] = [{"lora_path": name, **told} for name in (*fuzzed.ADAPTERS, None)]
    back = {"return_logprob": True, "logprob_start_len": 610}
    compare(adapted, back, beside, lora_path=adapter)


def test_adapters_are_not_without_effect(adapted: Engine) -> None:
    async def play() -> list[Any]:
        tokens = workload.text("adapted", 40)
        return [
            await adapted.generate(tokens, f"by {name}", 8, lora_path=name, return_logprob=True)
            for name in (*fuzzed.ADAPTERS, None)
        ]

    red, blue, plain = (
        answer["meta_info"]["output_token_logprobs"] for answer in adapted.run(play())
    )
    assert red != blue
    assert plain not in (red, blue)
