"""What one user asks of sampling ends nobody else's requests: refused, or settled in the batch."""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import Any

import pytest

from penelope.sglang_adapter import sampling
from tests.fuzz.server import models as fuzzed
from tests.sglang.conftest import Engines
from tests.sglang.harness import Engine

pytestmark = [pytest.mark.sglang, pytest.mark.smoke, pytest.mark.timeout(600)]

VOCABULARY = 512
PROCESSOR = "sglang.srt.sampling.custom_logit_processor.DisallowedTokensLogitsProcessor"


def params(**asked: Any) -> Any:
    """As the engine has them when it has normalized a request."""
    from sglang.srt.sampling.sampling_params import SamplingParams

    found = SamplingParams(**asked)
    found.stop = found.stop_regex = None
    found.stop_regex_strs = asked.get("stop_regex", [])
    return found


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 2, "top_k": 2**31 - 1, "min_p": 0.5, "n": 3},
        {"logit_bias": {"3": -100, "4": 1e30}, "stop_token_ids": [0, 511]},
        {"stop_regex": ["a+", "(?<=ab)c"], "max_new_tokens": None},
        {"max_new_tokens": 2**40},
        {"custom_params": {"a": {"b": [{"c": object}]}}},
    ],
)
def test_what_tensors_and_patterns_can_hold_is_not_refused(asked: dict[str, Any]) -> None:
    assert sampling.fault(params(**asked), VOCABULARY) is None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"temperature": 1e31}, "temperature is 1e+31: it must be a number"),
        ({"repetition_penalty": math.nan}, "repetition_penalty is nan"),
        ({"top_p": "x"}, "top_p is of the wrong type: Expected `float`, got `str`."),
        ({"top_k": 2**31}, "top_k is 2147483648: it must be an integer below 2**31."),
        ({"top_k": 1.5}, "top_k is of the wrong type: Expected `int`"),
        ({"ignore_eos": "yes"}, "ignore_eos is of the wrong type"),
        ({"stop_token_ids": [2**70]}, "a sampling parameter is of the wrong type: "),
        ({"min_new_tokens": 2**40}, "min_new_tokens is 1099511627776"),
        ({"max_new_tokens": 1.5}, "wrong type"),
        ({"n": True}, "wrong type"),
        ({"stream_interval": 2**31}, "stream_interval is 2147483648"),
        ({"stop_token_ids": [512]}, "stop_token_ids has the id 512"),
        ({"stop_token_ids": [-1]}, "stop_token_ids has the id -1"),
        ({"logit_bias": {"5": math.inf}}, "logit_bias of token '5' is inf"),
        ({"logit_bias": {"5": None}}, "logit_bias is of the wrong type: "),
        ({"logit_bias": {"5": 1e31}}, "logit_bias of token '5' is 1e+31"),
        ({"stop_regex": ["["]}, "stop_regex '[' does not compile: unterminated"),
        ({"stop_regex": ["(?<=a+)b"]}, "does not compile: look-behind"),
    ],
)
def test_what_they_cannot_hold_is_refused_in_one_line(asked: dict[str, Any], said: str) -> None:
    found = sampling.fault(params(**asked), VOCABULARY)
    assert found is not None
    assert said in found
    assert "\n" not in found


@pytest.mark.parametrize(
    "error", [TypeError("a\nb"), OverflowError("big"), KeyError("x"), re.error("bad"), IndexError()]
)
def test_a_request_that_cannot_be_read_is_its_senders_mistake(error: Exception) -> None:
    def reading(number: int) -> int:
        if number:
            raise error
        return number

    assert sampling.read(reading, 0) == 0
    with pytest.raises(ValueError, match=r"^The request cannot be read: [A-Za-z]+: .+$") as found:
        sampling.read(reading, 1)
    assert "\n" not in str(found.value)
    with pytest.raises(RuntimeError):  # anything else is not blamed on it
        sampling.read(lambda: (_ for _ in ()).throw(RuntimeError("ours")).__next__())


def test_a_processor_is_tried_before_anybody_depends_on_it() -> None:
    import torch

    logits = torch.zeros((1, VOCABULARY))
    asked = params(custom_params={"token_ids": [1]})

    def tried(processor: Any, given: Any = asked) -> str | None:
        return sampling.processor_fault(lambda: processor, given, logits)

    def spoils(rows: Any, custom: list[dict[str, Any]]) -> Any:
        custom[0]["token_ids"] = None
        return rows.fill_(-math.inf)

    assert tried(spoils) is None
    assert asked.custom_params == {"token_ids": [1]}
    assert not logits.any(), "the trial leaves nothing behind"
    assert "KeyError: 'other'" in str(tried(lambda rows, custom: custom[0]["other"]))
    assert "shape" in str(tried(lambda rows, custom: rows[:, :5]))
    assert "AttributeError" in str(tried(lambda rows, custom: None))
    assert "not callable" in str(tried(5))
    assert "fails" in str(tried(spoils, params()))
    refused = sampling.processor_fault(lambda: json.loads("x"), asked, logits)
    assert str(refused).startswith("custom_logit_processor cannot be loaded: JSONDecodeError")


def test_rows_without_a_token_are_given_one_and_others_stay_as_they_are() -> None:
    import torch

    inf = math.inf
    rows = torch.tensor(
        [
            [0.5, -inf, 2.0, -inf],
            [-inf, -inf, -inf, -inf],
            [0.0, math.nan, 1.0, 2.0],
            [0.0, inf, 1.0, 2.0],
            [-1e38, -1e38, -1e38, -1e38],
            [0.0, 3e38, 1.0, 2.0],
            [-inf, -inf, -inf, 5.0],
        ]
    )
    alike = rows.clone()
    sampling.leave_something(alike, None)
    for settled in (0, 6):
        assert torch.equal(alike[settled], rows[settled])
    assert not alike[1:6].any()
    torch.multinomial(torch.softmax(alike / 1e-6, dim=-1), num_samples=1)
    with pytest.raises(RuntimeError):
        torch.multinomial(torch.softmax(rows / 1e-6, dim=-1), num_samples=1)

    def allow(logits: torch.Tensor) -> None:
        """Row 1: the last token; row 2: everything; row 3: nothing at all."""
        logits[1, :3] = -inf
        logits[3, :] = -inf

    by_grammar = rows.clone()
    sampling.leave_something(by_grammar, allow)
    assert by_grammar[1].tolist() == [-inf, -inf, -inf, 0.0]
    assert torch.equal(by_grammar[[0, 6]], rows[[0, 6]])
    assert not by_grammar[2:6].any()


# In the engine


@pytest.fixture(scope="module")
def complete(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """With a tokenizer, grammars, and a token that ends an output, as a grammar needs one."""
    folder = fuzzed.build(tmp_path_factory.mktemp("models"))
    return engines.get(
        model_path=str(folder / "first"),
        skip_tokenizer_init=False,
        enable_custom_logit_processor=True,
        enable_return_hidden_states=True,
        grammar_backend="xgrammar",
    )


def processor(text: str) -> str:
    return json.dumps({"callable": text})


def module_member(path: str) -> str:
    module, _, name = path.rpartition(".")
    return processor(f"c{module}\n{name}\n.".encode().hex())


ALL = {str(token): -100.0 for token in range(VOCABULARY)}
REFUSED: dict[str, dict[str, Any]] = {
    "a pattern that is none": {"sampling": {"stop_regex": "["}},
    "a pattern that only compiling refuses": {"sampling": {"stop_regex": "(?<=a+)b"}},
    "a processor that is no JSON": {"custom_logit_processor": "["},
    "a processor of another JSON": {"custom_logit_processor": "{}"},
    "a processor that is not in hexadecimal": {"custom_logit_processor": processor("zz")},
    "a processor that is no pickle": {"custom_logit_processor": processor("00")},
    "a processor from nowhere": {"custom_logit_processor": module_member("nowhere.Nothing")},
    "a processor that is none": {"custom_logit_processor": module_member("builtins.dict")},
    "a processor without its parameters": {"custom_logit_processor": module_member(PROCESSOR)},
    "a processor of foreign tokens": {
        "custom_logit_processor": module_member(PROCESSOR),
        "sampling": {"custom_params": {"token_ids": [10**6]}},
    },
    "a token beyond 64 bits": {"tokens": [1, 2**63]},
    "a token that is text": {"tokens": [1, "2"]},
    "more choices than 32 bits hold": {"sampling": {"top_k": 2**40, "temperature": 1}},
    "choices that are not whole": {"sampling": {"top_k": 1.5, "temperature": 1}},
    "a least length beyond 32 bits": {
        "sampling": {"min_new_tokens": 2**40, "max_new_tokens": 2**41}
    },
    "a bias beyond numbers": {"sampling": {"logit_bias": {"5": 1e39}}},
    "a bias that is no number": {"sampling": {"logit_bias": {"5": "x"}}},
    "a stop token beyond the vocabulary": {"sampling": {"stop_token_ids": [10**6]}},
    "more outputs than anybody reads": {"sampling": {"n": 10**5}},
    "embeddings that are none": {"positional_embed_overrides": {"embeds": [], "positions": []}},
    "a name that is a list": {"rid": ["a"]},
    "a flag that is text": {"sampling": {"ignore_eos": "yes"}},
    "a key that is a number": {"extra_key": 5},
    "a bias beyond the vocabulary": {"sampling": {"logit_bias": {"512": 1}}},
    "a sampling parameter unheard of": {"sampling": {"unheard_of": 1}},
}


@pytest.mark.parametrize("asked", REFUSED)
def test_what_would_end_the_engine_is_refused(complete: Engine, asked: str) -> None:
    own = {k: dict(v) if isinstance(v, dict) else v for k, v in REFUSED[asked].items()}
    given: dict[str, Any] = {"tokens": [3, 4, 5], "rid": asked, "new": 4, **own}

    async def play() -> Any:
        beside = asyncio.ensure_future(complete.generate([7, 8, 9], f"{asked} beside", 12))
        with pytest.raises(RuntimeError, match=r"^ValueError: [^\n]+$"):
            await complete.generate(**given)
        return await beside

    assert len(complete.run(play())["output_ids"]) == 12
    complete.check_alive()


@pytest.mark.parametrize(
    "wrong",
    [
        {"return_logprob": True, "top_logprobs_num": VOCABULARY + 1},
        {"custom_logit_processor": "["},
        {"custom_logit_processor": "[", "tokens": [10**6]},
    ],
)
def test_what_is_refused_asks_for_nothing_in_the_batch_of_others(
    complete: Engine, wrong: dict[str, Any]
) -> None:
    """SGLang still runs a refused request as a prompt of one token, beside the others."""
    given: dict[str, Any] = {"tokens": [3, 4, 5], "rid": "wrong", "new": 4, **wrong}

    async def play() -> Any:
        await complete.hold()
        tasks = [
            asyncio.ensure_future(complete.generate([7, 8, 9], "right", 4, return_logprob=True)),
            asyncio.ensure_future(complete.generate(**given)),
        ]
        await complete.until(lambda found: len(found["queued"]) == 2)
        await complete.go()
        return await asyncio.gather(*tasks, return_exceptions=True)

    right, refused = complete.run(play())
    assert len(right["meta_info"]["output_token_logprobs"]) == 4
    assert str(refused).startswith("ValueError: ")
    complete.check_alive()


NOTHING_LEFT: dict[str, dict[str, Any]] = {
    "a grammar that ends too early": {"ebnf": 'root ::= "a" | "b"', "min_new_tokens": 5},
    "the end is all that may follow": {"regex": "a?", "min_new_tokens": 3},
    "every token biased away": {"logit_bias": dict.fromkeys(ALL, -1e30)},
    "every token a stop token": {"stop_token_ids": list(range(VOCABULARY)), "min_new_tokens": 2},
    "a penalty that turns logits into infinity": {"repetition_penalty": 1e-40},
    "a grammar against biases": {"ebnf": 'root ::= "a"', "logit_bias": dict.fromkeys(ALL, -1e30)},
}


@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("asked", NOTHING_LEFT)
def test_a_request_without_a_token_to_sample_ends_alone(
    complete: Engine, asked: str, temperature: float
) -> None:
    """A grammar that has nothing more to say ends its request; the neighbours notice nothing."""
    own = {**NOTHING_LEFT[asked], "temperature": temperature, "ignore_eos": False}

    async def play() -> tuple[Any, Any, Any]:
        alone = await complete.generate([7, 8, 9], "alone", 12)
        beside = asyncio.ensure_future(complete.generate([7, 8, 9], "beside", 12))
        asker = await complete.generate([3, 4, 5], "asker", 8, sampling=dict(own))
        return asker, await beside, alone

    asker, beside, alone = complete.run(play())
    assert beside["output_ids"] == alone["output_ids"]
    assert asker["meta_info"]["finish_reason"]["type"] in ("stop", "length")
    if "ebnf" in own:
        assert asker["text"] in ("a", "b")
    complete.check_alive()
