"""Runs a workload on an engine and compares what two runs computed, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.sglang import workload
from tests.sglang.conftest import DEFAULTS
from tests.sglang.harness import Engine
from tests.sglang.workload import Shape

Digests = dict[bytes, set[bytes]]

CROWD = Shape(conversations=8, opening=640, tool=32, turns=7, concurrency=3, forks=2)
SMALL_POOL = 5248
"""About two thirds of what CROWD's histories need in the end.

With much more room nothing is evicted, with much less whole histories are gone every turn; here
histories lose their heads and come back many times."""


@dataclass(frozen=True)
class Run:
    outputs: dict[str, list[int]]
    logprobs: Digests
    """History up to a position -> digests of the log-probabilities there, over all requests."""
    kv: dict[bytes, bytes]
    """History up to a position -> digest of K and V on the device there."""
    host_kv: dict[bytes, bytes]
    """The same on the host."""
    statistics: dict[str, int]
    phantom_rows: int
    prompt_tokens: int
    cached_tokens: int
    computed_rows: int
    cached_by_tier: dict[str, int]
    """The engine's own account of where cached prompt tokens were."""


def play(engine: Engine, shape: Shape = CROWD, **settings: Any) -> Run:
    engine.call("penelope_configure", **{**DEFAULTS, **settings})
    engine.call("penelope_record", on=True)
    spoken = engine.run(workload.converse(engine, shape))
    engine.check_alive()
    found = engine.dump()
    engine.call("penelope_record", on=False)
    assert found.get("live_receipts", 0) == 0, "a lock is left"
    assert found.get("refilling") is None, "a request is still being refilled"
    answers = [answer for c in spoken for _, _, answer in c.spoken]
    return Run(
        workload.outputs(spoken),
        workload.by_history(found["records"], workload.histories(spoken)),
        found.get("resident", {}),
        found.get("host_resident", {}),
        found.get("statistics", {}),
        found["origins"]["phantom"],
        sum(a["meta_info"]["prompt_tokens"] for a in answers),
        sum(a["meta_info"]["cached_tokens"] for a in answers),
        found["origins"]["real"] + found["origins"]["phantom"],
        _by_tier(answers),
    )


def _by_tier(answers: list[dict[str, Any]]) -> dict[str, int]:
    details = [a["meta_info"].get("cached_tokens_details") or {} for a in answers]
    return {tier: sum(d.get(tier, 0) for d in details) for tier in ("device", "host")}


def differences(run: Run, reference: Run) -> list[str]:
    """In words, what is not the same to the last bit; empty when all is."""
    found = []
    if run.outputs != reference.outputs:
        wrong = [r for r, out in reference.outputs.items() if run.outputs.get(r) != out]
        found.append(f"outputs of {len(wrong)} requests differ, first {wrong[:1]}")
    unsettled = [h for h, digests in run.logprobs.items() if len(digests) != 1]
    if unsettled:
        found.append(f"{len(unsettled)} positions were computed with different log-probabilities")
    wrong_logprobs = [
        h for h, d in run.logprobs.items() if h in reference.logprobs and reference.logprobs[h] != d
    ]
    if wrong_logprobs:
        found.append(f"log-probabilities differ at {len(wrong_logprobs)} positions")
    for kv, where in ((run.kv, ""), (run.host_kv, " on the host")):
        wrong_kv = [h for h, d in kv.items() if h in reference.kv and reference.kv[h] != d]
        if wrong_kv:
            found.append(f"K and V differ at {len(wrong_kv)} positions{where}")
    return found
