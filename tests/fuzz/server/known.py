"""What is taken for a fault of SGLang 0.5.23 itself, left out by name.

Read off its code or its traceback: nothing of Penelope is on the path.  Whether each happens on
SGLang's own cache as well is still to be shown (`make fuzz-server ARGS="--stock --episode FILE"`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.fuzz.server.episode import Fields


@dataclass(frozen=True)
class Known:
    name: str
    reason: str
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
        "adapter-released-twice",
        "a request that names an unknown adapter is refused, and its adapter, None, released",
        log="lora_id must be either a string or a list of strings",
    ),
)


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
