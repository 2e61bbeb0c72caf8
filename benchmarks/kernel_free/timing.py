"""The two measurements: one request after an eviction, and a refill beside its request."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

import torch

from benchmarks.kernel_free.attention import synchronize
from benchmarks.kernel_free.model import Model, Piece, steps
from penelope.cost import predict

FRACTION = 0.3
# Speed-ups that the paper measured on an H100 (Rethinking KV Cache Eviction, section 2.2).
PAPER: Mapping[int, float] = {8192: 1.14, 131_072: 2.93}


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of every repetition, in order; warm-up left out."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """From the fastest to the slowest, as a share of the median."""
        return (max(self.seconds) - min(self.seconds)) / self.median


@dataclass(frozen=True, slots=True)
class SingleRequest:
    """`evicted` of `context` cached tokens gone, `append` new ones: the next prefill's time."""

    context: int
    start: int
    evicted: int
    append: int
    tail: Times
    head: Times
    predicted: float
    tail_units: float
    head_units: float
    paper: float | None

    @property
    def speedup(self) -> float:
        """Of evicting from `start` on over evicting the tail."""
        return self.tail.median / self.head.median


@dataclass(frozen=True, slots=True)
class CoBatching:
    """A phantom and its request in one batch, and the same two pieces as strangers."""

    context: int
    refilled: int
    append: int
    together: Times
    strangers: Times
    apart: Times
    """The phantom through the whole model first, then the request."""
    ratios: tuple[float, ...] = field(repr=False, default=())
    """Together over strangers, for each pair of neighbouring measurements."""

    @property
    def overhead(self) -> float:
        return statistics.median(self.ratios) - 1


@dataclass(slots=True)
class Plan:
    """What to measure, and for how long at most."""

    contexts: Sequence[int]
    start: int
    append: int
    chunk: int
    repeats: int
    seconds: float
    began: float = field(default_factory=perf_counter)
    skipped: list[str] = field(default_factory=list)

    @property
    def left(self) -> float:
        return self.seconds - (perf_counter() - self.began)


def alternate(
    device: torch.device, cases: Mapping[str, Callable[[], object]], repeats: int, seconds: float
) -> dict[str, Times] | None:
    """Each case once as a warm-up, then all in turn, every other round in reverse.

    Stops early, after at least three rounds, when `seconds` are over.  None if not even three fit,
    judged by the warm-up.
    """
    began = perf_counter()
    for case in cases.values():
        case()
    synchronize(device)
    if 3 * (perf_counter() - began) > seconds - (perf_counter() - began):
        return None
    taken: dict[str, list[float]] = {name: [] for name in cases}
    gc.collect()
    for turn in range(repeats):
        if turn >= 3 and perf_counter() - began > seconds:
            break
        names = list(cases) if turn % 2 == 0 else list(cases)[::-1]
        for name in names:
            synchronize(device)
            start = perf_counter()
            cases[name]()
            synchronize(device)
            taken[name].append(perf_counter() - start)
    return {name: Times(tuple(times)) for name, times in taken.items()}


def measure(model: Model, plan: Plan) -> Iterator[SingleRequest | CoBatching]:
    """Both measurements at each context, shortest first, as long as there is time.

    own   |0 ... start|~~hole~~|... retained ...|context|+append+|
    other |0 ... start|~~hole~~|                                    a stranger's, for its hole
    """
    longest = max(plan.contexts)
    own, other = 0, longest + plan.append
    most = plan.start + _evicted(longest)
    kv = model.buffer(other + most)
    tokens = model.random_tokens(longest + plan.append)
    strange = model.random_tokens(most)
    run_all(model, kv, [Piece(other, 0, strange)], plan.chunk)
    cached = 0
    for context in sorted(plan.contexts):
        # What a shorter context's request appended is overwritten here.
        run_all(model, kv, [Piece(own, cached, tokens[cached:context])], plan.chunk)
        cached = context
        found = _single_request(model, kv, tokens, context, plan)
        if found is None:
            plan.skipped.append(f"single request at {context}: no time left")
            continue
        yield found
        pair = _co_batching(model, kv, tokens, (other, strange), context, plan)
        if pair is None:
            plan.skipped.append(f"co-batching at {context}: no time left")
            continue
        yield pair


def run_all(model: Model, kv: torch.Tensor, pieces: Sequence[Piece], chunk: int) -> None:
    """A chunked prefill."""
    for batch in steps(pieces, chunk):
        model.prefill(batch, kv)


def _evicted(context: int) -> int:
    return int(FRACTION * context)


def _single_request(
    model: Model, kv: torch.Tensor, tokens: torch.Tensor, context: int, plan: Plan
) -> SingleRequest | None:
    evicted, end = _evicted(context), context + plan.append
    tail = [Piece(0, context - evicted, tokens[context - evicted : end])]
    head = [
        Piece(0, plan.start, tokens[plan.start : plan.start + evicted]),
        Piece(0, context, tokens[context:end]),
    ]
    found = alternate(
        model.device,
        {
            "tail": lambda: run_all(model, kv, tail, plan.chunk),
            "head": lambda: run_all(model, kv, head, plan.chunk),
        },
        plan.repeats,
        plan.left,
    )
    if found is None:
        return None
    units = predict(model.shape.cost(), context, FRACTION, plan.start, plan.append)
    assert units.evicted == evicted
    return SingleRequest(
        context, plan.start, evicted, plan.append, found["tail"], found["head"],
        units.speedup, float(units.tail), float(units.start), PAPER.get(context),
    )  # fmt: skip


def _co_batching(
    model: Model,
    kv: torch.Tensor,
    tokens: torch.Tensor,
    stranger: tuple[int, torch.Tensor],
    context: int,
    plan: Plan,
) -> CoBatching | None:
    # One forward pass holds both.
    refilled = min(_evicted(context), plan.chunk - plan.append)
    first, last = plan.start, plan.start + refilled
    base, strange = stranger
    phantom = Piece(0, first, tokens[first:last])
    foreign = Piece(base, first, strange[first:last])
    real = Piece(0, context, tokens[context : context + plan.append])

    def apart() -> None:
        model.prefill([phantom], kv)
        model.prefill([real], kv)

    found = alternate(
        model.device,
        {
            "together": lambda: model.prefill([phantom, real], kv),
            "strangers": lambda: model.prefill([foreign, real], kv),
            "apart": apart,
        },
        2 * plan.repeats,
        plan.left,
    )
    if found is None:
        return None
    together, strangers = found["together"], found["strangers"]
    ratios = tuple(t / s for t, s in zip(together.seconds, strangers.seconds, strict=True))
    return CoBatching(context, refilled, plan.append, together, strangers, found["apart"], ratios)


def row(found: SingleRequest | CoBatching, model: Model) -> dict[str, Any]:
    """A measurement as JSON, with what follows from it."""
    fields: dict[str, Any] = asdict(found)
    for name, value in list(fields.items()):
        if isinstance(value, dict) and "seconds" in value:
            times = getattr(found, name)
            fields[name] |= {"median": times.median, "spread": times.spread}
    if isinstance(found, SingleRequest):
        flops = model.shape.cost().flops_per_unit
        fields["speedup"] = found.speedup
        # Of the useful arithmetic alone: what attention and the linear layers reach together.
        fields["tail_tflops"] = found.tail_units * flops / found.tail.median / 1e12
        fields["head_tflops"] = found.head_units * flops / found.head.median / 1e12
    else:
        fields["overhead"] = found.overhead
    return fields
