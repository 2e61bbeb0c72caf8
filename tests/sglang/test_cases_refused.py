"""Faults from the field on the adapter: what is refused, because KV would not be what it seems."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from penelope.sglang_adapter import compat, refusals
from tests.sglang.steps import Steps

pytestmark = [pytest.mark.sglang, pytest.mark.smoke]


def scheduler(**changes: Any) -> SimpleNamespace:
    """As much of a scheduler as the check at start-up looks at, with a plain model."""
    model = {"is_multimodal": False, "is_encoder_decoder": False}
    plain: dict[str, Any] = {
        "is_hybrid_swa": False,
        "is_hybrid_ssm": False,
        "is_generation": True,
        "tp_worker": SimpleNamespace(
            model_runner=SimpleNamespace(prefill_attention_backend_str="fa3")
        ),
    }
    for name, value in changes.items():
        (model if name in model else plain)[name] = value
    return SimpleNamespace(**plain, model_config=SimpleNamespace(**model))


def test_case_5_models_whose_layers_forget_are_refused_at_start() -> None:
    """Ours: where a window's KV is given back, or a state stands for it, there are no holes at all.

    Where SGLang keeps all KV of a layer with a window, a hole is a hole like any other.
    """
    refusals.require_supported_scheduler(scheduler())
    for name, reason in (("is_hybrid_swa", "sliding-window"), ("is_hybrid_ssm", "recurrent")):
        with pytest.raises(compat.UnsupportedError, match=f"this model: it has {reason}"):
            refusals.require_supported_scheduler(scheduler(**{name: True}))


def test_case_5_the_window_of_a_layer_is_looked_for_where_the_model_is_known() -> None:
    """The names that the check reads are SGLang's own: a renamed one would let everything pass."""
    import inspect

    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.managers.scheduler import Scheduler

    source = inspect.getsource(Scheduler)
    for name in ("is_hybrid_swa", "is_hybrid_ssm", "is_generation"):
        assert f"self.{name} = " in source, name
    source = inspect.getsource(ModelConfig)
    for name in ("is_multimodal", "is_encoder_decoder"):
        assert f"self.{name} = " in source, name


@pytest.mark.parametrize("kind", ["is_multimodal", "is_encoder_decoder"])
def test_case_79_models_whose_kv_depends_on_more_than_tokens_are_refused_at_start(
    kind: str,
) -> None:
    """Placeholders of two images are the same tokens: without images there is nothing to mix up."""
    with pytest.raises(compat.UnsupportedError, match="more than token ids and positions"):
        refusals.require_supported_scheduler(scheduler(**{kind: True}))


def test_case_29_the_smallest_prefix_that_can_be_reused_is_told_at_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is reused of prompts at the boundaries: `test_prompts_at_the_boundaries`."""
    from penelope.sglang_adapter import hooks

    monkeypatch.setattr(compat, "require_hooks", lambda _targets: None)
    cache = Steps(pool=64, page=4, block=8, host=32, swap=8).cache
    with caplog.at_level(logging.INFO):
        hooks.handshake(None, scheduler(tree_cache=cache, forward_stream=None))
    assert "private-head, blocks of 8 tokens" in caplog.text
    assert "whole pages of 4 tokens" in caplog.text
    assert "64 tokens fits the device, of 32 the host" in caplog.text
