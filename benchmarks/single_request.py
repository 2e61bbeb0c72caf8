"""The single-request figure and the co-batching overhead, on one GPU with PyTorch alone.

    python -m benchmarks.single_request --json FILE

A random-weight model of the Qwen3-8B shape prefills over a KV buffer of its own: no engine, no
download.  Measured are the next prefill after 30 % of a cached context were evicted from position
2,048 or from the tail, beside what the cost model predicts, and a hole's refill beside the request
that needs it, against the same two pieces of work as strangers.  Before that, the refill is
compared with a full prefill, and the comparison is shown to fail where it must.

Needs PyTorch and Penelope's only dependency, `immutables`.  `--tiny` runs in seconds on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measuring import Bar, machine, show_bars
from penelope.policy.errors import PenelopeError
from penelope.runtime.outputs import check_writable, write_whole

if TYPE_CHECKING:
    import torch

    from benchmarks.kernel_free.attention import Trial
    from benchmarks.kernel_free.checking import Check
    from benchmarks.kernel_free.model import Model, Shape

GOAL = 0.01
WIDE = ("float32", "float64")
CONTEXTS = (8192, 16384, 32768, 65536, 131072)
TINY = {
    "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate": 128,
    "vocabulary": 512,
}  # fmt: skip
TINY_PLAN = {"contexts": [512, 1024], "start": 128, "append": 32, "chunk": 384}


class Refusal(PenelopeError):
    """What was asked for cannot be measured here."""


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default cuda)")
    parser.add_argument("--dtype", help="default: bfloat16, on a CPU float32")
    parser.add_argument("--tiny", action="store_true", help="a toy model and toy contexts")
    parser.add_argument("--contexts", type=int, nargs="+", metavar="N", help="cached tokens")
    parser.add_argument("--start", type=int, help="evict from this position (default 2048)")
    parser.add_argument("--append", type=int, help="new tokens (default 512)")
    parser.add_argument("--chunk", type=int, help="rows of one forward pass (default 8192)")
    parser.add_argument("--repeats", type=int, default=5, help="after one warm-up (default 5)")
    parser.add_argument(
        "--minutes", type=float, default=8, help="start nothing that would end later (default 8)"
    )
    parser.add_argument("--attention", help="an implementation by name (default: the fastest)")
    for name, size in TINY.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"tiny: {size}")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    given = arguments(argv)
    try:
        if given.json is not None:
            check_writable(given.json)
        document, bars = run(given)
    except (PenelopeError, ValueError) as error:
        print(f"single_request: {error}", file=sys.stderr)
        return 2
    if given.json is not None:
        text = json.dumps(document, indent=2) + "\n"
        write_whole(given.json, lambda beside: _put(beside, text))
    return 0 if all(bar.met for bar in bars if bar.name.startswith("correct")) else 1


def run(given: argparse.Namespace) -> tuple[dict[str, Any], list[Bar]]:
    """Check, measure and print; everything as JSON, and the bars."""
    try:
        import torch
    except ImportError:
        raise Refusal("PyTorch is not installed; pip install torch") from None
    from benchmarks.kernel_free import timing
    from benchmarks.kernel_free.attention import choose
    from benchmarks.kernel_free.model import Model

    device, dtype, shape, plan = _settings(given)
    # Whole products in float32: TF32 would be compared with itself.
    torch.set_float32_matmul_precision("highest")
    found = _machine(device)
    print(", ".join(f"{name} {value}" for name, value in found.items()))
    print(f"{shape}, {str(dtype).removeprefix('torch.')}, c = {shape.cost().linear}", flush=True)
    with torch.inference_mode():
        heads = (shape.heads, shape.kv_heads, shape.head_dim)
        timed = (plan.chunk, 4 * plan.chunk) if device.type == "cuda" else None
        attention, trials = choose(device, dtype, heads, timed, given.attention)
        _show_trials(trials, timed)
        checks = [_check_exactly(shape, device, plan)]
        model = Model(shape, attention, device, dtype)
        checks.append(_check(model, plan))
        singles, pairs = [], []
        for measured in timing.measure(model, plan):
            if isinstance(measured, timing.SingleRequest):
                singles.append(timing.row(measured, model))
                _show_single(singles[-1], first=len(singles) == 1)
            else:
                pairs.append(timing.row(measured, model))
        _show_pairs(pairs)
    for line in plan.skipped:
        print(f"skipped: {line}")
    bars = _bars(checks, singles, pairs, judged=device.type == "cuda")
    if device.type != "cuda":
        print("times on a CPU are not judged")
    show_bars(bars)
    document = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["python", "-m", "benchmarks.single_request", *sys.argv[1:]],
        "machine": found,
        "shape": asdict(shape),
        "dtype": str(dtype).removeprefix("torch."),
        "plan": {
            "start": plan.start, "append": plan.append, "chunk": plan.chunk,
            "repeats": plan.repeats, "fraction": timing.FRACTION,
        },
        "attention": [trial.row() for trial in trials],
        "checks": [checked.row() for checked in checks],
        "single_request": singles,
        "co_batching": pairs,
        "skipped": plan.skipped,
        "bars": [asdict(bar) for bar in bars],
        "seconds": round(plan.seconds - plan.left, 1),
    }  # fmt: skip
    return document, bars


def _check_exactly(shape: Shape, device: torch.device, plan: Any) -> Check:
    """In float32 and by the plain formula: a few layers leave no doubt about what is equal."""
    import torch

    from benchmarks.kernel_free.attention import plain
    from benchmarks.kernel_free.model import Model

    shallow = replace(shape, layers=min(shape.layers, 4))
    checked = _check(Model(shallow, plain, device, torch.float32), plan)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return checked


def _check(model: Model, plan: Any) -> Check:
    from benchmarks.kernel_free.checking import check
    from benchmarks.kernel_free.timing import FRACTION

    shortest = min(plan.contexts)
    hole = (plan.start, plan.start + int(FRACTION * shortest))
    checked = check(model, shortest, hole, plan.append, plan.chunk)
    _show_check(checked)
    return checked


def _settings(given: argparse.Namespace) -> tuple[torch.device, torch.dtype, Shape, Any]:
    import torch

    from benchmarks.kernel_free.attention import CANDIDATES
    from benchmarks.kernel_free.model import Shape
    from benchmarks.kernel_free.timing import FRACTION, Plan

    kind = given.device.partition(":")[0]
    if kind not in CANDIDATES:
        raise Refusal(f"--device {given.device} is unknown; choose one of {', '.join(CANDIDATES)}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise Refusal("no CUDA device here; give --device cpu --tiny to try the program")
    device = torch.device(given.device)
    name = given.dtype or ("bfloat16" if kind == "cuda" else "float32")
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise Refusal(f"--dtype {name} is not one; choose bfloat16, float16, float32 or float64")
    tiny: dict[str, int] = TINY if given.tiny else {}
    sizes = {f.name: getattr(given, f.name) or tiny.get(f.name) for f in fields(Shape)}
    shape = Shape(**{name: size for name, size in sizes.items() if size is not None})
    usual: dict[str, Any] = {"contexts": CONTEXTS, "start": 2048, "append": 512, "chunk": 8192}
    usual |= TINY_PLAN if given.tiny else {}
    chosen = {name: getattr(given, name) or value for name, value in usual.items()}
    plan = Plan(**chosen, repeats=max(3, given.repeats), seconds=60 * given.minutes)
    shortest = min(plan.contexts)
    room = shortest - int(FRACTION * shortest)
    if not 0 < plan.start <= room or min(plan.append, plan.chunk - plan.append) < 1:
        raise Refusal(
            f"context {shortest}, start {plan.start}, append {plan.append}, chunk {plan.chunk} do "
            f"not fit; give 0 < start <= {room} and append < chunk"
        )
    if int(FRACTION * shortest) + plan.append > plan.chunk:
        raise Refusal(
            f"chunk {plan.chunk} does not hold the refill at context {shortest}; give at least "
            f"{int(FRACTION * shortest) + plan.append}"
        )
    if kind == "cuda":
        _require_memory(device, shape, dtype, plan)
    return device, dtype, shape, plan


def _require_memory(device: torch.device, shape: Shape, dtype: torch.dtype, plan: Any) -> None:
    """Raises `Refusal` rather than run out of memory after minutes."""
    import torch

    longest = max(plan.contexts)
    slots = longest + plan.append + plan.start + int(0.3 * longest)
    # A layer's widest activations, a few times over.
    working = 8 * plan.chunk * 2 * shape.intermediate * dtype.itemsize
    need = shape.weight_bytes(dtype) + slots * shape.kv_bytes(dtype) + working
    free = torch.cuda.mem_get_info(device)[0]
    if need > free:
        raise Refusal(
            f"context {longest} needs about {need / 1e9:.0f} GB of GPU memory and "
            f"{free / 1e9:.0f} GB are free; give shorter --contexts or fewer --layers"
        )


def _machine(device: torch.device) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {**machine(), "torch": torch.__version__}
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": about.name,
            "capability": f"{about.major}.{about.minor}",
            "gpu_gb": round(about.total_memory / 1e9, 1),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    else:
        found["threads"] = torch.get_num_threads()
        found["omp"] = os.environ.get("OMP_NUM_THREADS", "unset")
    return found


def _show_trials(trials: list[Trial], timed: tuple[int, int] | None) -> None:
    for trial in trials:
        speed = ""
        if trial.seconds is not None and timed is not None:
            speed = f", {trial.seconds * 1e3:.2f} ms for {timed[0]:,} rows on {timed[1]:,} keys"
        error = "" if trial.error is None else f"error {trial.error:.1e}{speed}"
        print(f"attention {trial.name:12} {trial.reason or error}", flush=True)


def _show_check(checked: Check) -> None:
    print(
        f"\nRefill of {checked.hole} beside {checked.append} new rows at {checked.context:,}, "
        f"against a full prefill ({checked.dtype}, {checked.layers} layers)\n"
        f"{'largest difference, relative RMS':34}"
        f"{'K, V of the hole':>22}{'K, V of new rows':>22}{'logits':>22}"
    )
    named = {
        "full prefill in other chunks": checked.rounding,
        "in one batch": checked.co_batched,
        "broken: read before written": checked.broken,
    }
    for name, d in named.items():
        cells = (
            (d.refilled_max, d.refilled_rms),
            (d.appended_max, d.appended_rms),
            (d.logits_max, d.logits_rms),
        )
        print(f"{name:34}" + "".join(f"{f'{m:.2e}  {r:.2e}':>22}" for m, r in cells), flush=True)


def _show_single(single: dict[str, Any], *, first: bool) -> None:
    if first:
        print(
            f"\nNext prefill after 30 % were evicted, {single['append']} new tokens: seconds, "
            f"median (spread)\n{'context':>9}{'evicted':>9}{'tail':>18}"
            f"{'from ' + str(single['start']):>18}{'speed-up':>10}{'predicted':>11}{'paper':>7}"
            f"{'TFLOP/s':>14}"
        )
    times = [f"{single[n]['median']:.4f} ({single[n]['spread']:.1%})" for n in ("tail", "head")]
    paper = "" if single["paper"] is None else f"{single['paper']:.2f}"
    print(
        f"{single['context']:9,}{single['evicted']:9,}{times[0]:>18}{times[1]:>18}"
        f"{single['speedup']:10.2f}{single['predicted']:11.2f}{paper:>7}"
        f"{single['tail_tflops']:7.0f}{single['head_tflops']:7.0f}",
        flush=True,
    )


def _show_pairs(pairs: list[dict[str, Any]]) -> None:
    print(
        f"\nRefill and its request in one forward pass: seconds, median (spread)\n"
        f"{'context':>9}{'refill':>9}{'together':>18}{'as strangers':>18}{'overhead':>10}"
        f"{'one by one':>18}"
    )
    for pair in pairs:
        names = ("together", "strangers", "apart")
        times = [f"{pair[n]['median']:.4f} ({pair[n]['spread']:.1%})" for n in names]
        print(
            f"{pair['context']:9,}{pair['refilled']:9,}{times[0]:>18}{times[1]:>18}"
            f"{pair['overhead']:10.2%}{times[2]:>18}"
        )


def _bars(
    checks: list[Check], singles: list[dict[str, Any]], pairs: list[dict[str, Any]], *, judged: bool
) -> list[Bar]:
    found = []
    for c in checks:
        where = f"{c.dtype}, {c.layers} layers"
        worst = max(c.co_batched.rms)
        found += [
            Bar(
                f"correct: a refill beside its request equals a full prefill ({where})",
                "within twice what other chunks change",
                f"{worst:.1e} (other chunks {max(c.rounding.rms):.1e})",
                c.equal,
            ),
            Bar(
                # In few bits the roundings of many layers come near: what decides is float32.
                f"{'correct: ' if c.dtype in WIDE else ''}reading before the refill is written "
                f"is seen ({where})",
                "at least four times what other chunks change",
                f"{c.broken.appended_rms:.1e} (other chunks {c.rounding.appended_rms:.1e})",
                c.caught,
            ),
        ]
    for single in singles if judged else []:
        off = single["speedup"] / single["predicted"] - 1
        name = f"speed-up at {single['context']:,} against the cost model"
        found.append(Bar(name, "within 10 %", f"{off:+.1%}", abs(off) <= 0.1))
    if pairs and judged:
        worst = max(pair["overhead"] for pair in pairs)
        found.append(
            Bar("co-batching overhead", f"at most {GOAL:.0%}", f"{worst:.2%}", worst <= GOAL)
        )
    return found


def _put(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
