"""The kernel-free benchmark's own numerics, at toy size: these run on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

import torch

from benchmarks import single_request
from benchmarks.kernel_free import checking, timing
from benchmarks.kernel_free.attention import choose, plain
from benchmarks.kernel_free.model import Model, Piece, Shape, steps
from penelope.cost import preset

CPU = torch.device("cpu")
TINY = Shape(**single_request.TINY)
HEADS = (TINY.heads, TINY.kv_heads, TINY.head_dim)


def checked(dtype: torch.dtype, name: str | None = None) -> checking.Check:
    with torch.inference_mode():
        attention, _ = choose(CPU, dtype, HEADS, wanted=name)
        return checking.check(Model(TINY, attention, CPU, dtype), 512, (128, 281), 32, 384)


def test_the_default_shape_is_qwen3_8b() -> None:
    cost, published = Shape().cost(), preset("qwen3-8b")
    assert cost.linear == published.linear == 23_552
    assert (cost.layers, cost.heads, cost.head_dim) == (
        published.layers, published.heads, published.head_dim,
    )  # fmt: skip
    assert Shape().weight_bytes(torch.bfloat16) == pytest.approx(2 * 8.19e9, rel=0.001)


def test_steps_keep_every_row_once_and_in_order() -> None:
    tokens = torch.arange(100)
    pieces = [Piece(0, 10, tokens[:37]), Piece(0, 90, tokens[37:50])]
    for rows in (1, 8, 37, 50, 64):
        batches = steps(pieces, rows)
        cut = [p for batch in batches for p in batch]
        assert all(sum(len(p.tokens) for p in batch) <= rows for batch in batches)
        assert torch.cat([p.tokens for p in cut]).tolist() == list(range(50))
        positions = [i for p in cut for i in range(p.start, p.end)]
        assert positions == [*range(10, 47), *range(90, 103)]


@pytest.mark.parametrize("name", ["cpu-split", "plain"])
def test_attention_equals_pytorchs_own_on_an_oblong_mask(name: str) -> None:
    """The plain formula, by which all others are judged, is judged by PyTorch's."""
    attention, _ = choose(CPU, torch.float64, HEADS, wanted=name)
    source = torch.Generator().manual_seed(1)
    for rows, keys in ((5, 5), (5, 64), (130, 300)):
        q = torch.randn(rows, 4, 16, dtype=torch.float64, generator=source)
        k, v = torch.randn(2, keys, 2, 16, dtype=torch.float64, generator=source)
        mask = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
        expected = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), mask, enable_gqa=True
        ).transpose(0, 1)
        assert (attention(q, k, v) - expected).abs().max() < 1e-14


def test_a_mask_at_the_wrong_corner_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another kernel might mean by `causal`: aligned to the first key."""

    def upper_left(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return plain(q, k[: len(q)], v[: len(q)])

    from benchmarks.kernel_free import attention

    candidates = {"wrong": upper_left, "plain": plain}
    monkeypatch.setitem(attention.CANDIDATES, "cpu", candidates)
    chosen, trials = choose(CPU, torch.float32, HEADS)
    assert chosen is plain
    assert "differs from the plain formula" in trials[0].reason


@pytest.mark.parametrize("name", ["cpu-split", "plain"])
def test_a_refill_beside_its_request_equals_a_full_prefill(name: str) -> None:
    """In double precision the difference shrinks with the rounding: there is no other part to it.

    float32 carries 2**29 times the rounding of float64.  Equality up to rounding is what remains
    when products are summed in another order; the broken variant's error stays what it is.
    """
    narrow, wide = checked(torch.float32, name), checked(torch.float64, name)
    for check in (narrow, wide):
        assert check.equal
        assert check.caught
    assert max(narrow.co_batched.rms) < 1e-6
    assert max(wide.co_batched.rms) < 1e-14
    assert wide.co_batched.appended_max < 1e-13
    assert wide.broken.appended_rms > 0.01
    assert wide.broken.logits_rms > 0.01


def test_the_broken_variant_refills_the_hole_all_the_same() -> None:
    """It is wrong where the request misses what its phantom computes, and nowhere else."""
    check = checked(torch.float64)
    assert check.broken.refilled_rms == pytest.approx(check.co_batched.refilled_rms, abs=1e-14)


def test_bfloat16_is_within_its_rounding() -> None:
    check = checked(torch.bfloat16)
    assert check.equal
    assert check.broken.appended_rms > 2 * check.co_batched.appended_rms


def test_alternating_measures_every_case_in_turn() -> None:
    order: list[str] = []
    found = timing.alternate(
        CPU, {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 4, 60
    )
    assert found is not None
    assert {name: len(times.seconds) for name, times in found.items()} == {"a": 4, "b": 4}
    assert "".join(order) == "ab" + "abbaabba"
    assert timing.alternate(CPU, {"a": lambda: None}, 4, -1) is None


def test_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.json"
    small = "--device cpu --tiny --contexts 512 --repeats 3".split()
    assert single_request.main([*small, "--json", str(target)]) == 0
    found = json.loads(target.read_text())
    assert [s["context"] for s in found["single_request"]] == [512]
    assert found["single_request"][0]["predicted"] == pytest.approx(1.35, abs=0.01)
    assert found["co_batching"][0]["refilled"] == 153
    assert [c["caught"] for c in found["checks"]] == [True, True]
    assert "predicted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--device tpu", "--device tpu is unknown"),
        ("--device cpu --tiny --dtype int8", "--dtype int8 is not one"),
        ("--device cpu --tiny --attention flash", "attention 'flash' is not usable here"),
        ("--device cpu --tiny --start 5000", "do not fit"),
        ("--device cpu --tiny --chunk 100", "does not hold the refill"),
        ("--device cpu --tiny --json /nowhere/at/all.json", "/nowhere/at is no folder"),
    ],
)
def test_refusals_are_one_line(
    options: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert single_request.main(options.split()) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1
