"""What the GPU tests are made of, without a GPU: these run anywhere that PyTorch is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

import torch

from benchmarks.kernel_free.model import HEAD_GAIN, Shape
from tests.gpu import stage as stages
from tests.gpu.judging import Answer, Run, agreeing, differences, judge, largest_gap
from tests.gpu.scenes import BLOCK, Scene

ANSWER = Answer(
    "c0", (1, 2, 3), (7, 8), (-0.5, -0.25), (((-0.5, 7), (-1.5, 9)), ((-0.25, 8), (-0.3, 4)))
)


def run(**changes: object) -> Run:
    answer = replace(ANSWER, **changes)  # type: ignore[arg-type]
    answers = {"c0.0": answer, "c1.0": replace(ANSWER, conversation="c1")}
    return Run(answers, {b"h": 1, b"i": 2}, {}, {})


def test_equal_runs_do_not_differ() -> None:
    assert differences(run(), run()) == []
    found = judge(run(), run(), 0.1)
    assert (found.compared, found.requests, found.gap, found.ties, found.wrong) == (2, 2, 0, 0, ())


def test_the_smallest_difference_is_named() -> None:
    off = (-0.5, -0.25 - 1e-7)
    found = differences(run(logprobs=off), run())
    assert "logprobs of 1 of 2 requests differ, first c0.0" in found
    assert any("1.00e-07" in text for text in found)
    other = replace(run(), kv={b"h": 1, b"i": 3})
    assert differences(other, run()) == ["K and V differ at 1 of 2 positions on the device"]
    missing = replace(run(), answers={"c0.0": ANSWER})
    assert "output of 1 of 2 requests differ, first c1.0" in differences(missing, run())


def test_another_way_is_a_tie_only_where_two_tokens_are_close() -> None:
    at_a_tie = run(output=(7, 4), logprobs=(-0.5, -0.3))
    assert judge(at_a_tie, run(), 0.1).ties == 1
    assert judge(at_a_tie, run(), 0.1).wrong == ()
    elsewhere = run(output=(9, 8), logprobs=(-1.5, -0.25))
    assert judge(elsewhere, run(), 0.1).wrong == ("c0.0",)
    assert agreeing(elsewhere.answers["c0.0"], ANSWER) == 0


def test_requests_with_other_prompts_are_not_compared() -> None:
    later = run(prompt=(1, 2, 4), logprobs=(-9.0, -9.0))
    assert judge(later, run(), 0.1).compared == 1
    assert largest_gap(later, run()) == 0


def test_a_configuration_is_read_as_it_was_written(tmp_path: Path) -> None:
    for shape in (stages.TOY, Shape()):
        folder = stages.write_config(tmp_path / str(shape.layers), shape, "float32")
        assert stages.shape_of(folder) == shape
        assert stages.cached(str(folder)) == folder


def test_a_model_that_is_not_cached_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    assert stages.cached("nobody/has-this-model") is None


def test_pools_fit_the_gpu() -> None:
    model = stages.Model(Path("x"), True, Shape())
    for memory, engines, at_least, at_most in (
        (80, 1, 262_144, 262_144), (80, 2, 100_000, 120_000), (141, 2, 262_144, 262_144),
        (24, 2, -200_000, 0),
    ):  # fmt: skip
        found = stages.Stage(model, {}, False, memory).pool(engines)
        assert at_least <= found <= at_most
        assert found % 1024 == 0


def test_nvidia_smi_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert stages.gpu() is None
    program.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559, 570.86.15'\n")
    program.chmod(0o755)
    assert stages.gpu() == {
        "gpu": "NVIDIA H100 80GB HBM3", "gpu_gb": 85.5, "driver": "570.86.15",
    }  # fmt: skip
    program.write_text("#!/bin/sh\necho 'no devices were found' >&2\nexit 9\n")
    assert stages.gpu() is None


def test_a_question_goes_on_from_its_history() -> None:
    scene = Scene(4 * BLOCK, BLOCK, BLOCK, 10, 8192)
    assert scene.question()[: scene.context] == scene.history()
    assert len(scene.question()) == scene.context + scene.append
    assert Scene(4 * BLOCK, BLOCK, BLOCK, 10, 8192, seed=1).history() != scene.history()


@pytest.mark.slow  # imports the engine
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fingerprints_show_one_changed_bit(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sglang", reason="SGLang is not installed: pip install '.[sglang]'")
    monkeypatch.setenv("PENELOPE_TEST_RPC", "1")
    from tests.gpu.gpu_rpc import fingerprints

    source = torch.Generator().manual_seed(5)
    kv = torch.randn(2, 2, 9, 2, 8, generator=source).to(dtype)
    slots = torch.tensor([3, 1, 8, 4])
    before = fingerprints(list(kv.flatten(0, 1)), slots)
    assert len(set(before)) == 4
    assert before == fingerprints(list(kv.clone().flatten(0, 1)), slots)
    words = kv.view(torch.int16)
    words[1, 1, 8, 1, -1] ^= 1
    after = fingerprints(list(kv.flatten(0, 1)), slots)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False, True]


@pytest.mark.slow
def test_random_weights_follow_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sglang", reason="SGLang is not installed: pip install '.[sglang]'")
    monkeypatch.setenv("PENELOPE_TEST_RPC", "1")
    from tests.gpu.gpu_rpc import random_weights

    names = {
        "model.embed_tokens.weight": (512, 64), "model.layers.0.self_attn.q_norm.weight": (16,),
        "model.layers.1.self_attn.o_proj.weight": (64, 64), "model.norm.weight": (64,),
        "model.layers.1.mlp.gate_up_proj.weight": (256, 64), "lm_head.weight": (512, 64),
    }  # fmt: skip
    weights = {name: torch.zeros(size) for name, size in names.items()}

    class Fake:
        def state_dict(self) -> dict[str, torch.Tensor]:
            return weights

    random_weights(Fake())
    assert bool((weights["model.norm.weight"] == 1).all())
    assert bool(
        (weights["model.layers.0.self_attn.q_norm.weight"] == torch.tensor(HEAD_GAIN)).all()
    )
    deviations = {name: float(w.std()) for name, w in weights.items() if w.dim() == 2}
    assert deviations["model.embed_tokens.weight"] == pytest.approx(1, rel=0.05)
    assert deviations["lm_head.weight"] == pytest.approx(1 / 8, rel=0.05)
    # Two layers: what four sublayers add is half as large each.
    assert deviations["model.layers.1.self_attn.o_proj.weight"] == pytest.approx(1 / 16, rel=0.1)
    again = {name: w.clone() for name, w in weights.items()}
    random_weights(Fake())
    assert all(torch.equal(w, again[name]) for name, w in weights.items())


def test_the_page_describes_every_test() -> None:
    """docs/gpu.md names each test of this folder, and no other."""
    page = (stages.ROOT / "docs" / "gpu.md").read_text()
    for module in sorted(stages.HERE.glob("test_*.py")):
        assert f"`tests/gpu/{module.name}`" in page, f"docs/gpu.md says nothing of {module.name}"
        if "pytest.mark.gpu" in module.read_text() and module.name != Path(__file__).name:
            for name in re.findall(r"^def (test_\w+)", module.read_text(), re.MULTILINE):
                assert f"`{name}`" in page, f"docs/gpu.md says nothing of {name}"
