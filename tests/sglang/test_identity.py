"""What names KV is exact: token ids, namespaces, positions."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from penelope.policy import InvalidKey, pack
from penelope.sglang_adapter import entry, models, paths
from penelope.sglang_adapter.errors import UnsupportedError
from tests.sglang.steps import Steps

pytestmark = [pytest.mark.sglang, pytest.mark.smoke]


def test_a_key_never_narrows_a_token_id() -> None:
    edge = array("q", [0, 1, 2**31, 2**32 - 1])
    assert paths.pack_tokens(edge, 4) == pack(edge)
    for wrong in (2**32, 5 + 2**32, -1, -(2**32), 6 - 2**32, 2**63 - 1, -(2**63)):
        with pytest.raises(InvalidKey, match=f"token 1 has the id {wrong}:"):
            paths.pack_tokens(array("q", [5, wrong, 7]), 3)
        assert paths.pack_tokens(array("q", [5, wrong, 7]), 1) == pack([5])


def test_a_prompt_of_tokens_that_do_not_exist_is_refused_by_name() -> None:
    def fault(*ids: int, top: int = 0) -> str | None:
        asked: dict[str, Any] = {"return_logprob": top > 0}
        asked["logprob"] = SimpleNamespace(top_logprobs_num=top)
        ids_of = array("q", ids)
        return entry.fault(SimpleNamespace(origin_input_ids=ids_of, vocab_size=1000, **asked))

    assert fault(0, 999) is None
    # More of them than there are stop SGLang too.
    assert fault(1, top=1000) is None
    assert "top_logprobs_num is 1001" in str(fault(1, top=1001))
    assert "empty" in str(fault())
    for wrong in (1000, -1, 5 + 2**32, 6 - 2**32, 2**63 - 1):
        message = str(fault(1, 2, wrong, 3))
        assert message.startswith(f"Token 2 of the prompt has the id {wrong}:")
        assert "0 to 999" in message


def test_beams_are_refused_by_name() -> None:
    """They share rows that a refill would rewrite for one of them only."""
    req = SimpleNamespace(origin_input_ids=array("q", [1]), vocab_size=9, beam_group=object())
    assert "beam_width" in str(entry.fault(req))


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("tiers", [{}, {"host": 64, "swap": 16}], ids=["one-tier", "two-tiers"])
@pytest.mark.usefixtures("sglang_settings")
def test_the_longest_prompt_is_admitted_and_the_next_one_never(
    page: int, tiers: dict[str, Any]
) -> None:
    """The limit at entry is the condition of admission, empty, cached or full of others' KV."""
    longest = entry.longest_prompt(64, page)
    mine, others = range(longest - 1), range(500, 532)
    for beforehand in ([], [others], [mine], [mine, others]):
        s = Steps(pool=64, page=page, block=16, rows=24, **tiers)
        for history in beforehand:
            s.serve(list(history))
        assert s.admit(s.request("fits", range(longest), new=0)).can_run_list
        s = Steps(pool=64, page=page, block=16, rows=24, **tiers)
        assert not s.admit(s.request("never", range(longest + 1), new=0)).can_run_list


@pytest.mark.usefixtures("sglang_settings")
def test_a_waiting_request_with_an_adapter_keeps_its_prefix() -> None:
    """A touch goes by the request too; a key alone names no KV."""
    from sglang.srt.mem_cache.radix_cache import RadixKey

    from penelope.sglang_adapter import hooks

    s = Steps(pool=64, page=4, rows=16)
    mine: dict[str, Any] = {"lora_id": "adapter", "extra_key": "e"}
    s.serve(range(100, 116), **mine)
    s.serve(range(200, 216))
    waits = s.request("waits", range(100, 120), **mine)
    original: Any = pytest.fail
    hooks.touch_of_request(original, waits, s.cache)
    s.serve(range(300, 340))
    assert s.show(range(100, 116), **mine) == "GGGG", "it was not the least recent one"
    assert "G" not in s.show(range(200, 216))[:2]
    with pytest.raises(TypeError, match="request"):
        s.cache.touch_prefix(RadixKey(array("q", range(4))))


def model(**changes: Any) -> SimpleNamespace:
    plain: dict[str, Any] = {
        "is_multimodal": False,
        "is_encoder_decoder": False,
        "is_generation": True,
        "use_ngram_embedding": False,
        "use_engram": False,
        "hf_config": SimpleNamespace(**changes.pop("config", {})),
    }
    plain.update(changes)
    return SimpleNamespace(hf_text_config=plain["hf_config"], **plain)


@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn", None])
def test_models_with_one_rotary_table_are_served(kind: str | None) -> None:
    scaling = None if kind is None else {"rope_type": kind, "factor": 2.0}
    models.require_supported(model(config={"rope_parameters": scaling}))
    models.require_fixed_positions({"rope_scaling": scaling})


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}},
        {"rope_scaling": {"type": "su"}},
        {"rope_parameters": {"rope_type": "longrope"}},
        {"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "somethingnew"}},
        {"dual_chunk_attention_config": {"chunk_size": 8192}},
    ],
    ids=lambda config: str(config)[:40],
)
def test_models_whose_positions_depend_on_a_batch_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="does not work with this model"):
        models.require_supported(model(config=config))


@pytest.mark.parametrize(
    "changes",
    [
        {"is_multimodal": True},
        {"is_encoder_decoder": True},
        {"is_generation": False},
        {"use_ngram_embedding": True},
        {"use_engram": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_other_models_are_refused_before_their_weights_are_loaded(changes: dict[str, bool]) -> None:
    import inspect

    from sglang.srt.configs.model_config import ModelConfig

    models.require_supported(model())
    with pytest.raises(UnsupportedError, match="does not work with this model"):
        models.require_supported(model(**changes))
    assert f"self.{next(iter(changes))}" in inspect.getsource(ModelConfig)
