"""Plays a workload and says in words how two runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.sglang import workload
from tests.sglang.harness import Engine
from tests.sglang.workload import Shape

DEFAULTS: Mapping[str, Any] = {
    "chunk": 8192, "schedule": "fcfs", "position": "private-head", "granularity": "block",
    "block": 64,
}  # fmt: skip
TOP = 4


@dataclass(frozen=True, slots=True)
class Answer:
    conversation: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the output's tokens."""
    top: tuple[tuple[tuple[float, int], ...], ...]
    """For each, the most likely tokens with their log-probabilities, best first."""


@dataclass(frozen=True, slots=True)
class Run:
    answers: dict[str, Answer]
    kv: dict[bytes, int]
    host_kv: dict[bytes, int]
    statistics: dict[str, int]


def play(engine: Engine, shape: Shape, **settings: Any) -> Run:
    """The workload from an empty cache, on an engine set up like this."""
    engine.call("penelope_configure", **{**DEFAULTS, **settings})
    spoken = engine.run(workload.converse(engine, shape, return_logprob=True, top_logprobs_num=TOP))
    engine.check_alive()
    found = engine.dump()
    assert found.get("live_receipts", 0) == 0, "a lock is left"
    answers = {
        rid: _answer(c.name, history, answer) for c in spoken for rid, history, answer in c.spoken
    }
    return Run(
        answers,
        found.get("resident", {}),
        found.get("host_resident", {}),
        found.get("statistics", {}),
    )


def _answer(conversation: str, history: list[int], answer: dict[str, Any]) -> Answer:
    output = tuple(answer["output_ids"])
    about = answer["meta_info"]
    return Answer(
        conversation,
        tuple(history[: len(history) - len(output)]),
        output,
        tuple(float(entry[0]) for entry in about["output_token_logprobs"]),
        tuple(
            tuple((float(p), int(token)) for p, token, *_ in entries)
            for entries in about["output_top_logprobs"]
        ),
    )


def differences(run: Run, reference: Run) -> list[str]:
    """What is not the same to the last bit; empty when all is."""
    found = []
    both = [(rid, run.answers.get(rid), want) for rid, want in reference.answers.items()]
    for what in ("prompt", "output", "logprobs", "top"):
        wrong = [rid for rid, got, want in both if getattr(got, what, None) != getattr(want, what)]
        if wrong:
            found.append(f"{what} of {len(wrong)} of {len(both)} requests differ, first {wrong[0]}")
    if found:
        found.append(f"log-probabilities differ by up to {largest_gap(run, reference):.2e}")
    for kv, where in ((run.kv, "device"), (run.host_kv, "host")):
        wrong_kv = [h for h, mark in kv.items() if reference.kv.get(h, mark) != mark]
        if wrong_kv:
            found.append(f"K and V differ at {len(wrong_kv)} of {len(kv)} positions on the {where}")
    return found


def largest_gap(run: Run, reference: Run) -> float:
    """Between log-probabilities of requests with equal prompts, up to their first other token."""
    gap = 0.0
    for rid, want in reference.answers.items():
        got = run.answers.get(rid)
        if got is None or got.prompt != want.prompt:
            continue
        same = agreeing(got, want)
        pairs = zip(got.logprobs[:same], want.logprobs[:same], strict=True)
        gap = max([gap, *(abs(a - b) for a, b in pairs)])
    return gap


def agreeing(got: Answer, want: Answer) -> int:
    """Leading output tokens that are equal."""
    pairs = enumerate(zip(got.output, want.output, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(got.output), len(want.output)))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of two runs that may differ by rounding, conversation by conversation.

    Once an output differs, its conversation goes on from another history and is not compared.
    """

    compared: int
    requests: int
    gap: float
    """The largest difference of log-probabilities."""
    ties: int
    """Outputs that went another way where the two best tokens were this close."""
    wrong: tuple[str, ...]
    """Requests that went another way although there was no tie."""


def judge(run: Run, reference: Run, tolerance: float) -> Verdict:
    compared, ties, wrong = 0, 0, []
    for rid, want in reference.answers.items():
        got = run.answers.get(rid)
        if got is None or got.prompt != want.prompt:
            continue
        compared += 1
        same = agreeing(got, want)
        if same == len(want.output):
            continue
        best, second = want.top[same][0][0], want.top[same][1][0]
        if best - second <= 2 * tolerance:
            ties += 1
        else:
            wrong.append(rid)
    return Verdict(
        compared, len(reference.answers), largest_gap(run, reference), ties, tuple(wrong)
    )
