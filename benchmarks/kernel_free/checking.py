"""Is a refill beside the request that needs it the same as a full prefill?

1. prefill everything at once, as a reference, and again in other chunks: how far apart two
   correct ways are is what rounding does here
2. give the hole's slots and the new rows' to someone else
3. one forward pass: the phantom recomputes the hole, the request its new rows
4. again with attention that reads before the refill is written: this must be seen
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.kernel_free.attention import relative_rms
from benchmarks.kernel_free.model import Model, Piece, steps

# A correct run may be this many times as far from the reference as another correct run is.
ALLOWED = 2.0
# And the broken one must be at least this many times as far.  In float32 it is a hundred thousand
# times; in bfloat16 the roundings of some tens of layers come within an order of magnitude of it.
CAUGHT = 4.0


@dataclass(frozen=True, slots=True)
class Distance:
    """Between a run and the reference: the largest difference, and the RMS relative to its RMS."""

    refilled_max: float
    refilled_rms: float
    """K and V of the hole."""
    appended_max: float
    appended_rms: float
    """K and V of the request's new rows."""
    logits_max: float
    logits_rms: float

    @property
    def rms(self) -> tuple[float, float, float]:
        return self.refilled_rms, self.appended_rms, self.logits_rms


@dataclass(frozen=True, slots=True)
class Check:
    dtype: str
    layers: int
    context: int
    hole: tuple[int, int]
    append: int
    rounding: Distance
    """Of a full prefill in other chunks."""
    co_batched: Distance
    broken: Distance
    """Of the variant whose attention reads before the refill is written."""

    @property
    def least(self) -> float:
        """One rounding of each number: two correct runs may happen to agree exactly."""
        return float(torch.finfo(getattr(torch, self.dtype)).eps) / 2

    @property
    def equal(self) -> bool:
        """No further from the reference than rounding explains."""
        pairs = zip(self.co_batched.rms, self.rounding.rms, strict=True)
        return all(found <= max(ALLOWED * other, self.least) for found, other in pairs)

    @property
    def caught(self) -> bool:
        """The comparison sees a request that missed its refill."""
        least = max(CAUGHT * self.rounding.appended_rms, CAUGHT * self.least)
        return self.broken.appended_rms >= least

    def row(self) -> dict[str, Any]:
        return {**asdict(self), "equal": self.equal, "caught": self.caught}


def check(model: Model, context: int, hole: tuple[int, int], append: int, chunk: int) -> Check:
    """Run the steps above on a sequence of `context + append` random tokens."""
    end = context + append
    tokens = model.random_tokens(end)
    kv = model.buffer(end)
    whole = Piece(0, 0, tokens)

    def run(pieces: list[list[Piece]], *, write_first: bool = True) -> torch.Tensor:
        logits = None
        for batch in pieces:
            logits = model.prefill(batch, kv, write_first=write_first)
        assert logits is not None
        return logits

    def kept() -> tuple[torch.Tensor, torch.Tensor]:
        return kv[:, :, hole[0] : hole[1]].clone(), kv[:, :, context:end].clone()

    def distance(logits: torch.Tensor) -> Distance:
        values: list[float] = []
        pairs = zip((*kept(), logits), (*reference, reference_logits), strict=True)
        for found, expected in pairs:
            values += [float((found - expected).abs().max()), relative_rms(found, expected)]
        return Distance(*values)

    def evict() -> None:
        # Another request's KV.  The same KV in another order would not do: attention does not
        # care which slot a key is in, and the broken variant would pass.
        kv[:, :, hole[0] : hole[1]], kv[:, :, context:end] = strange

    run(steps([Piece(0, 0, model.random_tokens(end))], chunk))
    strange = kept()
    reference_logits = run(steps([whole], chunk))
    reference = kept()
    # Another cut, and not at the same multiples.
    rounding = distance(run(steps([whole], max(1, chunk * 3 // 5))))
    run(steps([whole], chunk))

    refill = [Piece(0, *_span(tokens, *hole)), Piece(0, *_span(tokens, context, end))]
    evict()
    co_batched = distance(run([refill]))
    evict()
    broken = distance(run([refill], write_first=False))
    dtype = str(model.dtype).removeprefix("torch.")
    return Check(dtype, model.shape.layers, context, hole, append, rounding, co_batched, broken)


def _span(tokens: torch.Tensor, start: int, end: int) -> tuple[int, torch.Tensor]:
    return start, tokens[start:end]
