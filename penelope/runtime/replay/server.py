"""A model of a serving engine: prefill in steps, decode in the background, the real policy core.

Time comes from the cost model; every decision about the cache comes from the cache under test.
Room for a request's whole output is reserved when it is admitted, so that none is ever retracted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from time import thread_time
from typing import ParamSpec, TypeVar

from penelope.cost import CostModel
from penelope.policy import UNIT_BYTES, Key
from penelope.policy.errors import InvalidConfigError
from penelope.runtime.replay.caches import Admission, Ask, ReplayCache, Waiter
from penelope.runtime.replay.seen import Seen
from penelope.runtime.traces import Request

P = ParamSpec("P")
R = TypeVar("R")


class Scheduler(Enum):
    """Which waiting request is prefilled next."""

    LPM = "lpm"
    """Longest reusable cached prefix first; first come first served among equals, and, as in
    SGLang, while more than `LONG_QUEUE` wait."""
    FCFS = "fcfs"
    """First come, first served."""


LONG_QUEUE = 128
"""SGLang's own bound, from which on it looks up no prefix of those that wait."""

LONGEST = 1e6
"""Seconds that one thing may take: with more, sums over a trace would leave what floats hold."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things take.

    A prefill step takes `seconds_per_prefill` plus `seconds_per_unit` for each cost unit that it
    computes.  KV that its admissions move between the tiers takes `seconds_per_copied_token` a
    token, both ways at the same time, during the computation if `overlapped`, else before it.  A
    running request gets a token every `seconds_per_output_token`, whatever else happens.  Raises
    `InvalidConfigError` for a time that is not from 0 to `LONGEST` seconds or a chunk below 1.
    """

    seconds_per_unit: float
    seconds_per_prefill: float = 0.02
    seconds_per_output_token: float = 0.02
    chunk_tokens: int = 8192
    seconds_per_copied_token: float = 0.0
    overlapped: bool = True

    def __post_init__(self) -> None:
        for name in (
            "seconds_per_unit",
            "seconds_per_prefill",
            "seconds_per_output_token",
            "seconds_per_copied_token",
        ):
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
    shared: int = 0
    """Units at the beginning of the prompt that other streams begin with too."""
    number: int = 0
    """Of all requests that the server was sent, in order of arrival."""
    again: bool = False
    """Whether another server had given its first token before it failed."""
    admission: Admission | None = None
    work: list[tuple[int, int]] = field(default_factory=list)
    """Spans still to compute, in tokens, next one last."""


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
    device_hit_tokens: int = 0
    host_hit_tokens: int = 0
    promoted_tokens: int = 0
    demoted_tokens: int = 0
    swapped_tokens: int = 0
    holes: int = 0
    mostly_lost: int = 0
    """Requests that recompute at least nine tenths of the private history they had before."""
    mostly_lost_recomputed: int = 0
    """What these recompute, in cost units, of `recomputed`."""
    nodes_max: int = 0
    policy_seconds: float = 0.0


def total(parts: Sequence[Counters]) -> Counters:
    """Of several servers: sums, and the largest `nodes_max`."""
    if len(parts) == 1:
        return parts[0]
    sums = {f.name: sum(getattr(part, f.name) for part in parts) for f in fields(Counters)}
    return Counters(**sums | {"nodes_max": max(part.nodes_max for part in parts)})


class Server:
    """One engine with one cache, of one tier or two.

    A step prefills, within the chunk budget, the request that the last step left unfinished and
    then waiting requests in the scheduler's order, each with its phantom requests first.
    """

    def __init__(
        self,
        cache: ReplayCache,
        cost: CostModel,
        timing: Timing,
        scheduler: Scheduler,
        unit_tokens: int,
        seen: Seen | None = None,
    ) -> None:
        """`seen` is what was computed before, by this server or by others of its fleet."""
        self.cache = cache
        self._cost = cost
        self._timing = timing
        self._scheduler = scheduler
        self._unit = unit_tokens
        self._waiting: list[Job] = []
        self._unfinished: Job | None = None
        self._completing: list[Job] = []
        self._copied_in = self._copied_out = 0
        self._seen = Seen() if seen is None else seen
        self.counters = Counters()

    @property
    def timing(self) -> Timing:
        return self._timing

    @property
    def idle(self) -> bool:
        """Whether nobody waits for a prefill."""
        return not self._waiting and self._unfinished is None

    def submit(self, job: Job) -> None:
        """Queue a request that fits the device when nothing else runs."""
        self._waiting.append(job)
        self.counters.requests += 1
        job.number = self.counters.requests
        self.counters.prompt_tokens += job.request.in_tokens

    def clock(self, now: float) -> None:
        """So late it is, in seconds: nothing here depends on it, but what a cache may know."""
        self._timed(self.cache.clock, now)

    def expect(self, request: Request, arrival: float) -> None:
        """A client will send this request then: only a clairvoyant cache looks."""
        self._timed(self.cache.expect, request.prompt, arrival)

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
        timing = self._timing
        seconds = units / self._cost.scale * timing.seconds_per_unit
        copying = max(self._copied_in, self._copied_out) * timing.seconds_per_copied_token
        self._copied_in = self._copied_out = 0
        together = max(seconds, copying) if timing.overlapped else seconds + copying
        return timing.seconds_per_prefill + together

    def end_step(self) -> list[Job]:
        """The requests whose first token is out; the tree has what they computed."""
        for job in self._completing:
            assert job.admission is not None
            self._copies(self._timed(self.cache.computed, job.admission, job.request.prompt))
        self._note_nodes()
        done, self._completing = self._completing, []
        return done

    def end_request(self, job: Job) -> None:
        """The output is complete: its KV joins the tree, and nothing is locked any more."""
        assert job.admission is not None
        history = Key(job.request.prompt + job.request.output)
        self._copies(self._timed(self.cache.finished, job.admission, history))
        known, end = self._seen.add(history), len(history) // UNIT_BYTES
        self.counters.decoded += self._cost.scaled_span(known * self._unit, end * self._unit)
        self._note_nodes()

    def _copies(self, units: int) -> None:
        """What goes to the host behind everybody's back is counted, and takes nobody's time."""
        self.counters.demoted_tokens += units * self._unit

    def _units(self, request: Request) -> int:
        return -(-(request.in_tokens + request.out_tokens) // self._unit)

    def _in_order(self) -> Iterator[Job]:
        """Waiting requests in the scheduler's order, fixed when the step begins."""
        waiting = list(self._waiting)
        if self._scheduler is Scheduler.LPM and 1 < len(waiting) <= LONG_QUEUE:
            reusable = {
                id(job): self._timed(self.cache.reusable, self._ask(job)) for job in waiting
            }
            waiting.sort(key=lambda job: -reusable[id(job)])
        queue = [Waiter(job.number, job.request.prompt) for job in waiting]
        self._timed(self.cache.line_up, queue)
        return iter(waiting)

    def _ask(self, job: Job) -> Ask:
        request = job.request
        units = len(request.prompt) // UNIT_BYTES
        # A prompt that ends within a unit always has a token to compute.
        at_most = units if request.in_tokens > units * self._unit else units - 1
        return Ask(request.prompt, at_most, self._units(request) - units)

    def _admit(self, job: Job) -> bool:
        admission = self._timed(self.cache.admit, self._ask(job))
        if admission is None:
            return False
        job.admission = admission
        unit, request = self._unit, job.request
        spans = [(a * unit, b * unit) for a, b in admission.holes]
        spans.append((admission.new * unit, request.in_tokens))
        job.work = spans[::-1]
        self._waiting.remove(job)
        self._copied_in += admission.host * unit
        self._copied_out += admission.demoted * unit
        self._count(job, admission, spans)
        return True

    def _count(self, job: Job, admission: Admission, spans: list[tuple[int, int]]) -> None:
        """What was computed before, by anyone, is recomputed; the rest is the same whoever evicts.

        It counts as computed from here on, so that the first-time cost does not depend on which
        of two requests in one step comes first.
        """
        counters = self.counters
        before = self._seen.add(job.request.prompt) * self._unit
        private = job.shared * self._unit
        recomputed = lost = 0
        for start, end in spans:
            counters.computed_tokens += end - start
            end = min(end, before)
            if start < end:
                recomputed += self._cost.scaled_span(start, end)
                lost += max(0, end - max(start, private))
        counters.recomputed += recomputed
        if private < before and 10 * lost >= 9 * (before - private):
            counters.mostly_lost += 1
            counters.mostly_lost_recomputed += recomputed
        counters.holes += len(admission.holes)
        unit = self._unit
        counters.evicted_tokens += admission.dropped * unit
        counters.over_evicted_tokens += admission.excess * unit
        counters.device_hit_tokens += admission.device * unit
        counters.host_hit_tokens += admission.host * unit
        counters.promoted_tokens += admission.host * unit
        counters.demoted_tokens += admission.demoted * unit
        counters.swapped_tokens += admission.swapped * unit

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

    def _timed(self, question: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Ask the cache something, and count its CPU time."""
        began = thread_time()
        answer = question(*args, **kwargs)
        self.counters.policy_seconds += thread_time() - began
        return answer

    def _note_nodes(self) -> None:
        self.counters.nodes_max = max(self.counters.nodes_max, self.cache.nodes)
