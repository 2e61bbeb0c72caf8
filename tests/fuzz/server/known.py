"""What is taken for a fault of SGLang 0.5.23 itself, left out by name.

Read off its code or its traceback: nothing of Penelope is on the path.  Whether each happens on
SGLang's own cache as well is still to be shown (`make fuzz-server ARGS="--stock --episode FILE"`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.fuzz.server.answers import Answer
from tests.fuzz.server.episode import Fields, Operation


@dataclass(frozen=True)
class Known:
    name: str
    reason: str
    message: str = ""
    """A pattern of the answer's message, where it is not a clear 4xx."""
    log: str = ""
    """A pattern in a traceback of the log."""
    sampling: tuple[str, ...] = ()
    """Sampling parameters whose outputs depend on what else runs."""


KNOWN: tuple[Known, ...] = (
    Known(
        "penalties-lag",
        "penalties count the token that was last processed when a step is scheduled, which is one "
        "step old or not as other requests come and go, and forget all of them at a retraction",
        sampling=(
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "min_new_tokens",
        ),
    ),
    Known(
        "ids-beyond-64-bits",
        "the OpenAI-compatible API does not bound token ids, and 2**63 does not fit SGLang's array",
        message="int too big to convert",
        log="OverflowError: int too big to convert",
    ),
    Known(
        "adapter-released-twice",
        "a request that names an unknown adapter is refused, and its adapter, None, released",
        log="lora_id must be either a string or a list of strings",
    ),
)

NOT_ASKED = {
    "stop_regex that is no regular expression": "the process that serves HTTP ends",
    "top_logprobs_num beyond the vocabulary": "the scheduler dies in `topk`",
    "custom_logit_processor that is no JSON": "the scheduler dies in `from_str`",
}
"""What stops SGLang itself, so that nothing more could be found: no episode asks for it."""


def is_known(operation: Operation, answer: Answer) -> bool:
    """Whether an answer that is not clear is one of SGLang's own."""
    del operation
    return any(k.message and re.search(k.message, answer.message) for k in KNOWN)


def unsettled(fields: Fields) -> bool:
    """Whether SGLang's own output for this `ask` depends on what else runs."""
    return any(name in fields["sampling"] for known in KNOWN for name in known.sampling)


def without_known(log: str) -> str:
    """The log without the tracebacks that are known."""
    blocks = re.split(r"(?m)^(?=\[?20\d\d-\d\d-\d\d|ERROR:|Traceback)", log)
    patterns = [k.log for k in KNOWN if k.log]
    return "".join(
        block for block in blocks if not any(re.search(pattern, block) for pattern in patterns)
    )
