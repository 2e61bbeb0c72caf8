"""Causal attention of new rows over everything before them, by whichever kernel does it best.

Every implementation takes `q` [rows, heads, d] and `k`, `v` [keys, kv heads, d], where the rows
are the last keys, and returns [rows, heads, d]:

        keys  |############ past #############|+ rows +|
        row i  sees all of the past             and rows 0..i

PyTorch's own kernels differ in which corner of an oblong causal mask they mean, whether they take
grouped heads, and how fast they are on which GPU.  So nothing is assumed: `choose` runs each on
small inputs against the plain formula, drops those that fail or disagree, and takes the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Kernel = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, bool], tuple[torch.Tensor, torch.Tensor]
]
"""Heads first, with a batch dimension; is it causal (then square)?  Output and log-sum-exp."""

# The functional form does not return the log-sum-exp.
ATEN = torch.ops.aten

# Scores that the plain formula holds at a time.
TILE_SCORES = 1 << 27


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The formula, in tiles of rows: for any device and type, and slow."""
    rows, heads, dim = q.shape
    keys, kv_heads, _ = k.shape
    grouped = q.reshape(rows, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3)
    keys_last, values = k.permute(1, 2, 0).unsqueeze(1), v.transpose(0, 1).unsqueeze(1)
    tile = max(16, TILE_SCORES // (heads * keys))
    at = torch.arange(keys, device=q.device)
    parts = []
    for first in range(0, rows, tile):
        last = min(first + tile, rows)
        seen = keys - rows + last
        scores = (grouped[:, :, first:last] @ keys_last[..., :seen]) / math.sqrt(dim)
        own = at[keys - rows + first : seen].unsqueeze(1)
        scores = scores.masked_fill(at[:seen] > own, -math.inf)
        weights = scores.softmax(-1, dtype=_at_least_float32(q.dtype)).to(q.dtype)
        parts.append(weights @ values[:, :, :seen])
    joined = torch.cat(parts, dim=2)
    return joined.permute(2, 0, 1, 3).reshape(rows, heads, dim)


def split(kernel: Kernel) -> Attention:
    """Past and new rows by one kernel each, combined by their log-sum-exp.

    For kernels that know only square causal masks: the past needs none.
    """

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        start = len(k) - len(q)
        queries = _heads_first(q)
        new, new_lse = kernel(queries, _heads_first(k[start:]), _heads_first(v[start:]), True)
        if start == 0:
            return new[0].transpose(0, 1)
        past, past_lse = kernel(queries, _heads_first(k[:start]), _heads_first(v[:start]), False)
        # e^new / (e^new + e^past), without overflow.
        share = torch.sigmoid(new_lse - past_lse).reshape(1, q.shape[1], len(q), 1)
        wide = _at_least_float32(q.dtype)
        joined = torch.lerp(past.to(wide), new.to(wide), share.to(wide))
        return joined.to(q.dtype)[0].transpose(0, 1)

    return attend


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """FlashAttention in one call: its causal mask is aligned to the last row and the last key."""
    out: torch.Tensor = _flash_kernel(_heads_first(q), _heads_first(k), _heads_first(v), True)[0]
    return out[0].transpose(0, 1)


def _flash_kernel(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    found = ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)  # noqa: SLF001
    return found[0], found[1]


def _cudnn_kernel(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    found = ATEN._scaled_dot_product_cudnn_attention(  # noqa: SLF001
        q, k, v, None, True, 0.0, causal
    )
    return found[0], found[1]


def _cpu_kernel(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    found = ATEN._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
        q, k, v, 0.0, causal
    )
    return found[0], found[1]


def _heads_first(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1).unsqueeze(0)


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


CANDIDATES: dict[str, dict[str, Attention]] = {
    "cuda": {
        "cudnn-split": split(_cudnn_kernel),
        "flash": flash,
        "flash-split": split(_flash_kernel),
        "plain": plain,
    },
    "cpu": {"cpu-split": split(_cpu_kernel), "plain": plain},
}


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one implementation."""

    name: str
    error: float | None
    """Relative RMS difference from the plain formula in at least float32; None if it raised."""
    seconds: float | None
    """For the rows and keys it was timed with; None if it was not."""
    reason: str
    """Why it is not usable; empty if it is."""

    def row(self) -> dict[str, Any]:
        return asdict(self)


def relative_rms(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The difference's root mean square over the expected values'."""
    wide = _at_least_float32(expected.dtype)
    expected = expected.to(wide)
    return float((found.to(wide) - expected).norm() / expected.norm())


def tolerance(dtype: torch.dtype) -> float:
    """Between two ways to sum the same terms: a few roundings of each output."""
    return 8 * float(torch.finfo(dtype).eps)


def choose(
    device: torch.device,
    dtype: torch.dtype,
    heads: tuple[int, int, int],
    timed: tuple[int, int] | None = None,
    wanted: str | None = None,
) -> tuple[Attention, list[Trial]]:
    """The fastest of those that agree with the plain formula (the first, if not timed).

    `heads` is (query heads, kv heads, head dim), `timed` (rows, keys).  Raises `ValueError` when
    `wanted` names none that is usable.
    """
    candidates = CANDIDATES[device.type]
    trials = [
        _try(name, attend, device, dtype, heads, timed)
        for name, attend in candidates.items()
        if wanted in (None, name)
    ]
    usable = [t for t in trials if not t.reason]
    if not usable:
        known = ", ".join(candidates)
        why = "; ".join(f"{t.name}: {t.reason}" for t in trials) or f"choose one of {known}"
        raise ValueError(f"attention {wanted!r} is not usable here ({why})")
    best = usable[0] if timed is None else min(usable, key=lambda t: t.seconds or math.inf)
    return candidates[best.name], trials


def _try(
    name: str,
    attend: Attention,
    device: torch.device,
    dtype: torch.dtype,
    heads: tuple[int, int, int],
    timed: tuple[int, int] | None,
) -> Trial:
    worst = 0.0
    try:
        for rows, keys in ((192, 192), (192, 1000), (7, 333)):
            q, k, v = _inputs(device, dtype, heads, rows, keys)
            wide = _at_least_float32(dtype)
            expected = plain(q.to(wide), k.to(wide), v.to(wide))
            worst = max(worst, relative_rms(attend(q, k, v), expected))
    except (RuntimeError, TypeError, AttributeError) as error:  # what a missing kernel raises
        return Trial(name, None, None, str(error).strip().splitlines()[0][:200])
    # `not <=`: a NaN is a disagreement too.
    if not worst <= tolerance(dtype):
        return Trial(name, worst, None, f"differs from the plain formula by {worst:.1e}")
    if timed is None or name == "plain":
        return Trial(name, worst, None, "")
    q, k, v = _inputs(device, dtype, heads, *timed)
    times = []
    for _ in range(3):
        synchronize(device)
        began = perf_counter()
        attend(q, k, v)
        synchronize(device)
        times.append(perf_counter() - began)
    return Trial(name, worst, min(times[1:]), "")


def _inputs(
    device: torch.device, dtype: torch.dtype, heads: tuple[int, int, int], rows: int, keys: int
) -> list[torch.Tensor]:
    query_heads, kv_heads, dim = heads
    source = torch.Generator(device).manual_seed(rows * keys)
    sizes = [(rows, query_heads, dim), (keys, kv_heads, dim), (keys, kv_heads, dim)]
    return [torch.randn(s, generator=source, device=device).to(dtype) for s in sizes]


def synchronize(device: torch.device) -> None:
    """Wait until the device has done everything it was asked to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
