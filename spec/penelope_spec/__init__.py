"""The formal specification of Penelope's eviction policy, executable.

For tests and monitors, on states of `penelope.policy` (no z3 needed):

    check_state(state)                                   -> [] or violations by name
    check_step(before, after, "evict", need=n, effects=fx, freed=f)
    check_step(before, after, "admit", plan=p, effects=fx, freed=f)
    check_step(before, after, "reserve", units=n, effects=fx)
    check_step(before, after, "begin_move", transfer=t, effects=fx)
    check_step(before, after, "end_move" | "fail_move", move=m, effects=fx)
    check_step(before, after, "settle_promise" | "forgo_promise", receipt=r, effects=fx)
    check_step(before, after, NAME, effects=fx)          for every other transition
    check_refused(before, NAME, error, need=… | plan=… | units=… | receipt=… | …)
    trace = Trace(); trace.step(before, after, NAME, **facts)    for trace invariants
    check_slots(state, device, free=…, held=…, host=…, host_free=…, moving={move: slots})
                                                         one owner a slot, in a shell

NAME is the name of the function in `penelope.policy`: match, plan, touch, insert, checkpoint,
acquire, release, admit, reserve, refill, evict, reset, begin, end, fail, settle, forgo.  A refusal
is given the facts of the step.  Always pass `effects` where the transition returned any.  `Trace`
uses further facts where it has them (`match` of touch and acquire, `receipt` and `start` of refill)
and promises less without.  With two tiers each `evict`, `admit` and `reserve` is taken once more
with all KV in one tier (`unified-order`).  A `Violation` is (invariant, text).

The proofs are in `penelope_spec.verify`, which needs z3; the prose is `spec/README.md`.
"""

from penelope_spec.facts import TRANSITIONS, Facts
from penelope_spec.invariants import INVARIANTS, check_refused, check_state, check_step
from penelope_spec.registry import Invariant, Kind, Violation
from penelope_spec.slots import check_slots
from penelope_spec.trace import Trace

__all__ = [
    "INVARIANTS",
    "TRANSITIONS",
    "Facts",
    "Invariant",
    "Kind",
    "Trace",
    "Violation",
    "check_refused",
    "check_slots",
    "check_state",
    "check_step",
]
