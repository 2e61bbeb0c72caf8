"""Options of the adapter, read from the environment.

SGLang's launcher owns the command line and refuses flags it does not know, so
ours are environment variables: SGLang passes them on to all its processes.
`penelope serve` takes them as flags too.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from penelope.policy import POLICIES, Config, Granularity, InvalidConfigError, Order, Position
from penelope.runtime.announcing import Announce

logger = logging.getLogger(__name__)

BACKEND_NAME = "penelope"
PREFIX = "PENELOPE_"
DEFAULT_BLOCK = 64
DEFAULT_SWAP = 1024
SHADOW = "PENELOPE_SHADOW"


@dataclass(frozen=True, slots=True)
class Options:
    """What the environment asks for; `DOCUMENTED` says what each variable means."""

    position: Position = Position.PRIVATE_HEAD
    granularity: Granularity = Granularity.BLOCK
    order: Order = Order.LRU
    queue_in_view: bool = False
    block_size: int | None = None
    phantom_rows: int = 16
    host_tokens: int = 0
    swap_tokens: int | None = None
    kv_events: Announce = Announce.STICKY
    shadow: bool = False
    allow_untested: bool = False

    def block_for(self, page_size: int) -> int:
        """The eviction block in tokens: as asked for, else the whole pages nearest above 64."""
        if self.block_size is not None:
            return self.block_size
        return _up(DEFAULT_BLOCK, page_size)

    def config(self, device_capacity: int, page_size: int, linear_cost: int = 0) -> Config:
        """What the core is told, of sizes in tokens; `linear_cost` is `models.linear_cost`.

        Raises `InvalidConfigError` if the sizes do not go together.
        """
        block = self.block_for(page_size)
        swap = 0
        if self.host_tokens:
            swap = _up(DEFAULT_SWAP, block) if self.swap_tokens is None else self.swap_tokens
        elif self.swap_tokens is not None:
            raise InvalidConfigError(
                "PENELOPE_SWAP_TOKENS is set without a host tier: set PENELOPE_HOST_TOKENS too"
            )
        return Config(
            device_capacity=device_capacity,
            page_size=page_size,
            block_size=block,
            position=self.position,
            granularity=self.granularity,
            host_capacity=self.host_tokens,
            swap_buffer=swap,
            order=self.order,
            linear_cost=linear_cost,
        )


def _up(tokens: int, step: int) -> int:
    return -(-tokens // step) * step


DOCUMENTED: Mapping[str, str] = {
    "PENELOPE_POSITION": "where a history loses KV first: tail, leaf-head or private-head "
    "(default private-head)",
    "PENELOPE_GRANULARITY": "how much at a time: node or block (default block)",
    "PENELOPE_ORDER": "whose KV goes first: lru or expected-cost (default lru)",
    "PENELOPE_QUEUE_IN_VIEW": "1 to spare the histories of requests that wait, 0 not to (default 1 "
    "with expected-cost, 0 with lru)",
    "PENELOPE_BLOCK_SIZE": "tokens of a block, a multiple of --page-size (default 64, rounded up "
    "to whole pages)",
    "PENELOPE_PHANTOM_ROWS": "rows added to the request pool for phantom requests, at least 1 "
    "(default 16)",
    "PENELOPE_HOST_TOKENS": "tokens of KV that host memory holds beside the GPU's, the swap buffer "
    "included, a multiple of --page-size (default 0: one tier)",
    "PENELOPE_SWAP_TOKENS": "of these, tokens that only exchanges between full tiers use, a "
    "multiple of the block (default 1024, rounded up to whole blocks)",
    "PENELOPE_KV_EVENTS": "what routers are told by --kv-events-config: sticky (histories, holes "
    "included), prefix (of a history what is resident before its first hole) or exact (resident "
    "KV, tier by tier; default sticky)",
    "PENELOPE_SHADOW": "1 to let SGLang serve from its own cache and count beside it what Penelope "
    "would have kept (default 0)",
    "PENELOPE_ALLOW_UNTESTED_SGLANG": "1 to start with an SGLang version that was not tested "
    "(default 0)",
}


def flag(name: str) -> str:
    """The option as `penelope serve` takes it."""
    return "--" + name.lower().replace("_", "-")


def read(environment: Mapping[str, str] = os.environ) -> Options:
    """The options in force.  Raises `InvalidConfigError`, in one line, for a bad value."""
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in DOCUMENTED and name not in _OF_OTHERS:
            _judge(name)
    block = environment.get("PENELOPE_BLOCK_SIZE")
    swap = environment.get("PENELOPE_SWAP_TOKENS")
    position = Position(
        _choice(environment, "PENELOPE_POSITION", [p.value for p in Position], "private-head")
    )
    granularity = Granularity(
        _choice(environment, "PENELOPE_GRANULARITY", [g.value for g in Granularity], "block")
    )
    order = Order(_choice(environment, "PENELOPE_ORDER", [o.value for o in Order], "lru"))
    if order is not Order.LRU and (position, granularity) != POLICIES["penelope"]:
        raise InvalidConfigError(
            f"PENELOPE_ORDER is '{order.value}', which weighs blocks at the head of a private "
            f"span: leave out PENELOPE_POSITION and PENELOPE_GRANULARITY, or choose lru"
        )
    return Options(
        position=position,
        granularity=granularity,
        order=order,
        queue_in_view=switch(
            environment, "PENELOPE_QUEUE_IN_VIEW", default=order is Order.EXPECTED_COST
        ),
        block_size=None if block is None else _number("PENELOPE_BLOCK_SIZE", block),
        phantom_rows=_number(
            "PENELOPE_PHANTOM_ROWS", environment.get("PENELOPE_PHANTOM_ROWS", "16")
        ),
        host_tokens=_number(
            "PENELOPE_HOST_TOKENS", environment.get("PENELOPE_HOST_TOKENS", "0"), least=0
        ),
        swap_tokens=None if swap is None else _number("PENELOPE_SWAP_TOKENS", swap),
        kv_events=Announce(
            _choice(environment, "PENELOPE_KV_EVENTS", [m.value for m in Announce], "sticky")
        ),
        shadow=switch(environment, SHADOW),
        allow_untested=switch(environment, "PENELOPE_ALLOW_UNTESTED_SGLANG"),
    )


# Variables of the reference platform and of the tests: not options of the cache.
_OF_OTHERS = frozenset({"PENELOPE_DETERMINISTIC", "PENELOPE_TEST_RPC", "PENELOPE_TEST_FAULT"})


# What Kubernetes and Docker put into every container for a service of the name `penelope`, or of
# one that begins so: nobody has chosen these names.
_SERVICE_LINK = re.compile(
    r"PENELOPE(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
)
_ALIKE = 0.75


def _judge(name: str) -> None:
    """Raises `InvalidConfigError` for a name that looks like a misspelt option; else says so."""
    if _SERVICE_LINK.fullmatch(name):
        return
    bare = [known.removeprefix(PREFIX) for known in DOCUMENTED]
    alike = get_close_matches(name.removeprefix(PREFIX), bare, 1, _ALIKE)
    if alike:
        raise InvalidConfigError(
            f"{name} is not an option: did you mean {PREFIX}{alike[0]}? There are "
            f"{', '.join(DOCUMENTED)}"
        )
    _warn(name)


@cache
def _warn(name: str) -> None:
    """Once in each process."""
    logger.warning("%s is not an option of Penelope and is ignored", name)


_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


def switch(environment: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Whether a variable is on.  Raises `InvalidConfigError` for what is neither yes nor no."""
    if name not in environment:
        return default
    value = environment[name].strip().lower()
    if value not in _TRUE | _FALSE:
        raise InvalidConfigError(f"{name} is '{environment[name]}': write 1 or 0")
    return value in _TRUE


def shadow_is_asked(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the shadow's hooks are needed, be it to refuse what the variable says."""
    return environment.get(SHADOW, "").strip().lower() not in _FALSE


def _choice(environment: Mapping[str, str], name: str, allowed: list[str], default: str) -> str:
    value = environment.get(name, default)
    if value not in allowed:
        raise InvalidConfigError(f"{name} is '{value}': choose from {', '.join(allowed)}")
    return value


def _number(name: str, text: str, least: int = 1) -> int:
    if not re.fullmatch("[0-9]{1,18}", text) or int(text) < least:
        raise InvalidConfigError(
            f"{name} is '{text}': it must be a whole number of at least {least}"
        )
    return int(text)
