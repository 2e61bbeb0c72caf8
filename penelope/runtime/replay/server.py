"""A model of a serving engine: prefill in steps, decode in the background, the real policy core.

Time comes from the cost model; every decision about the cache comes from `penelope.policy`.
Room for a request's whole output is reserved when it is admitted, so that none is ever retracted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from time import thread_time
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from penelope import policy
from penelope.policy import Config, Key, Plan, Receipt, State
from penelope.policy.cost import CostModel
from penelope.policy.errors import InvalidConfigError
from penelope.runtime.traces import Request

P = ParamSpec("P")
R = TypeVar("R")


class Next(Protocol):
    """What every transition returns."""

    @property
    def state(self) -> State: ...


class Scheduler(Enum):
    """Which waiting request is prefilled next."""

    LPM = "lpm"
    """Longest reusable cached prefix first; first come first served among equals."""
    FCFS = "fcfs"
    """First come, first served."""


LONGEST = 1e6
"""Seconds that one thing may take: with more, sums over a trace would leave what floats hold."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things take.

    A prefill step takes `seconds_per_prefill` plus `seconds_per_unit` for each cost unit that it
    computes.  A running request gets a token every `seconds_per_output_token`, whatever else
    happens.  Raises `InvalidConfigError` for a time that is not from 0 to `LONGEST` seconds or a
    chunk below 1 token.
    """

    seconds_per_unit: float
    seconds_per_prefill: float = 0.02
    seconds_per_output_token: float = 0.02
    chunk_tokens: int = 8192

    def __post_init__(self) -> None:
        for name in ("seconds_per_unit", "seconds_per_prefill", "seconds_per_output_token"):
            # So written that "not a number" is refused too.
            if not 0 <= getattr(self, name) <= LONGEST:
                raise InvalidConfigError(
                    f"{name} is {getattr(self, name)}: give a number from 0 to {LONGEST:.0f}"
                )
        if self.chunk_tokens < 1:
            raise InvalidConfigError(
                f"a chunk of {self.chunk_tokens} tokens computes nothing: give 1 or more"
            )


@dataclass(slots=True, eq=False)
class Job:
    """One request in the server."""

    request: Request
    arrival: float
    ended: Callable[[float], None]
    """Called with the time when the last token of the output is out."""
    receipt: Receipt | None = None
    work: list[tuple[int, int]] = field(default_factory=list)
    """Spans still to compute, in tokens, next one last."""
    holes: list[tuple[int, int]] = field(default_factory=list)
    """Spans to refill, in units, in position order."""


@dataclass(slots=True)
class Counters:
    """What a replay adds up.  Tokens, or cost units as exact multiples of 1 / `CostModel.scale`."""

    requests: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    computed: int = 0
    recomputed: int = 0
    decoded: int = 0
    """What prefilling the outputs would have cost, where no prompt had held them before."""
    evicted_tokens: int = 0
    over_evicted_tokens: int = 0
    holes: int = 0
    nodes_max: int = 0
    policy_seconds: float = 0.0


class Server:
    """One engine with one cache.

    A step prefills, within the chunk budget, the request that the last step left unfinished and
    then waiting requests in the scheduler's order, each with its phantom requests first.
    """

    def __init__(
        self,
        config: Config,
        cost: CostModel,
        timing: Timing,
        scheduler: Scheduler,
        unit_tokens: int,
    ) -> None:
        self._state = policy.empty(config)
        self._cost = cost
        self._timing = timing
        self._scheduler = scheduler
        self._unit = unit_tokens
        self._waiting: list[Job] = []
        self._unfinished: Job | None = None
        self._completing: list[Job] = []
        # Everything that was ever computed: what an unlimited cache would hold.  Nothing is ever
        # evicted from it, so its switches are those that keep the fewest nodes and keys.
        self._ever = policy.empty(Config(2**62, block_size=1))
        self.counters = Counters()

    @property
    def timing(self) -> Timing:
        return self._timing

    @property
    def state(self) -> State:
        return self._state

    @property
    def idle(self) -> bool:
        """Whether nobody waits for a prefill."""
        return not self._waiting and self._unfinished is None

    def submit(self, job: Job) -> None:
        """Queue a request that fits the device when nothing else runs."""
        self._waiting.append(job)
        self.counters.requests += 1
        self.counters.prompt_tokens += job.request.in_tokens

    def start_step(self) -> float | None:
        """Choose what the next step computes: its duration in seconds, None if it must wait."""
        budget = self._timing.chunk_tokens
        units = 0
        if self._unfinished is not None:
            job, self._unfinished = self._unfinished, None
            budget, units = self._compute(job, budget, units)
        if budget and self._waiting:
            for job in self._in_order():
                if not budget:
                    break
                if not self._admit(job):
                    break
                budget, units = self._compute(job, budget, units)
        if budget == self._timing.chunk_tokens:
            return None
        self.counters.computed += units
        seconds = units / self._cost.scale * self._timing.seconds_per_unit
        return self._timing.seconds_per_prefill + seconds

    def end_step(self) -> list[Job]:
        """The requests whose first token is out; the tree has what they computed."""
        for job in self._completing:
            assert job.receipt is not None
            for start, end in job.holes:
                self._do(policy.refill, job.receipt, start, end)
            self._do(policy.checkpoint, job.receipt, job.request.prompt)
        self._note_nodes()
        done, self._completing = self._completing, []
        return done

    def end_request(self, job: Job) -> None:
        """The output is complete: its KV joins the tree, and nothing is locked any more."""
        assert job.receipt is not None
        history = Key(job.request.prompt + job.request.output)
        self._do(policy.checkpoint, job.receipt, history)
        self._do(policy.release, job.receipt)
        inserted = policy.insert(self._ever, history)
        self._ever = inserted.state
        known, end = inserted.resident, inserted.resident + inserted.adopted
        self.counters.decoded += self._cost.scaled_span(known * self._unit, end * self._unit)
        self._note_nodes()

    def _units(self, request: Request) -> int:
        return -(-(request.in_tokens + request.out_tokens) // self._unit)

    def _in_order(self) -> Iterator[Job]:
        """Waiting requests in the scheduler's order, fixed when the step begins."""
        waiting = list(self._waiting)
        if self._scheduler is Scheduler.LPM and len(waiting) > 1:
            reusable = {id(job): self._plan(job).match.reusable for job in waiting}
            waiting.sort(key=lambda job: -reusable[id(job)])
        return iter(waiting)

    def _plan(self, job: Job) -> Plan:
        request = job.request
        units = len(request.prompt) // self._state.config.unit_bytes
        # A prompt that ends within a unit always has a token to compute.
        at_most = units if request.in_tokens > units * self._unit else units - 1
        return self._timed(
            policy.plan,
            request.prompt,
            extra=self._units(request) - units,
            at_most=at_most,
        )

    def _admit(self, job: Job) -> bool:
        plan = self._plan(job)
        if not plan.admissible:
            return False
        admitted = self._timed(policy.admit, plan)
        self._state = admitted.state
        job.receipt = admitted.receipt
        job.holes = list(plan.holes)
        unit, request = self._unit, job.request
        spans = [(a * unit, b * unit) for a, b in plan.holes]
        spans.append((plan.new[0] * unit, request.in_tokens))
        job.work = spans[::-1]
        self._waiting.remove(job)
        self._count(job, plan, admitted.freed, spans)
        return True

    def _count(self, job: Job, plan: Plan, freed: int, spans: list[tuple[int, int]]) -> None:
        """What was computed before, by anyone, is recomputed; the rest is the same whoever evicts.

        It counts as computed from here on, so that the first-time cost does not depend on which
        of two requests in one step comes first.
        """
        counters = self.counters
        inserted = policy.insert(self._ever, job.request.prompt)
        self._ever = inserted.state
        before = inserted.resident * self._unit
        for start, end in spans:
            counters.computed_tokens += end - start
            if start < before:
                counters.recomputed += self._cost.scaled_span(start, min(end, before))
        counters.holes += len(plan.holes)
        counters.evicted_tokens += freed * self._unit
        counters.over_evicted_tokens += (freed - plan.evict) * self._unit

    def _compute(self, job: Job, budget: int, units: int) -> tuple[int, int]:
        """Give a job its share of the step's budget: what is left of it, and the cost so far."""
        while job.work and budget:
            start, end = job.work.pop()
            stop = min(end, start + budget)
            if stop < end:
                job.work.append((stop, end))
            budget -= stop - start
            units += self._cost.scaled_span(start, stop)
        if job.work:
            self._unfinished = job
        else:
            self._completing.append(job)
        return budget, units

    def _do(
        self, transition: Callable[Concatenate[State, P], Next], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        self._state = self._timed(transition, *args, **kwargs).state

    def _timed(
        self, question: Callable[Concatenate[State, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Ask the core something, and count its CPU time."""
        began = thread_time()
        answer = question(self._state, *args, **kwargs)
        self.counters.policy_seconds += thread_time() - began
        return answer

    def _note_nodes(self) -> None:
        self.counters.nodes_max = max(self.counters.nodes_max, len(self._state.nodes))
