"""Options of the adapter, read from the environment.

SGLang's launcher owns the command line and refuses flags it does not know, so
ours are environment variables: SGLang passes them on to all its processes.
`penelope serve` takes them as flags too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from penelope.policy import Config, Granularity, InvalidConfigError, Position

BACKEND_NAME = "penelope"
DEFAULT_BLOCK = 64
DEFAULT_SWAP = 1024


@dataclass(frozen=True, slots=True)
class Options:
    """What the environment asks for; `DOCUMENTED` says what each variable means."""

    position: Position = Position.PRIVATE_HEAD
    granularity: Granularity = Granularity.BLOCK
    block_size: int | None = None
    phantom_rows: int = 16
    host_tokens: int = 0
    swap_tokens: int | None = None
    allow_untested: bool = False

    def block_for(self, page_size: int) -> int:
        """The eviction block in tokens: as asked for, else the whole pages nearest above 64."""
        if self.block_size is not None:
            return self.block_size
        return _up(DEFAULT_BLOCK, page_size)

    def config(self, device_capacity: int, page_size: int) -> Config:
        """What the core is told.  Raises `InvalidConfigError` if the sizes do not go together."""
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
        )


def _up(tokens: int, step: int) -> int:
    return -(-tokens // step) * step


DOCUMENTED: Mapping[str, str] = {
    "PENELOPE_POSITION": "where a history loses KV first: tail, leaf-head or private-head "
    "(default private-head)",
    "PENELOPE_GRANULARITY": "how much at a time: node or block (default block)",
    "PENELOPE_BLOCK_SIZE": "tokens of a block, a multiple of --page-size (default 64, rounded up "
    "to whole pages)",
    "PENELOPE_PHANTOM_ROWS": "rows added to the request pool for phantom requests, at least 1 "
    "(default 16)",
    "PENELOPE_HOST_TOKENS": "tokens of KV that host memory holds beside the GPU's, the swap buffer "
    "included, a multiple of --page-size (default 0: one tier)",
    "PENELOPE_SWAP_TOKENS": "of these, tokens that only exchanges between full tiers use, a "
    "multiple of the block (default 1024, rounded up to whole blocks)",
    "PENELOPE_ALLOW_UNTESTED_SGLANG": "1 to start with an SGLang version that was not tested "
    "(default 0)",
}


def flag(name: str) -> str:
    """The option as `penelope serve` takes it."""
    return "--" + name.lower().replace("_", "-")


def read(environment: Mapping[str, str] = os.environ) -> Options:
    """The options in force.  Raises `InvalidConfigError`, in one line, for a bad value."""
    unknown = sorted(
        name
        for name in environment
        if name.startswith("PENELOPE_") and name not in DOCUMENTED and name not in _OF_OTHERS
    )
    if unknown:
        raise InvalidConfigError(
            f"{unknown[0]} is not an option: choose from {', '.join(DOCUMENTED)}"
        )
    block = environment.get("PENELOPE_BLOCK_SIZE")
    swap = environment.get("PENELOPE_SWAP_TOKENS")
    return Options(
        position=Position(
            _choice(environment, "PENELOPE_POSITION", [p.value for p in Position], "private-head")
        ),
        granularity=Granularity(
            _choice(environment, "PENELOPE_GRANULARITY", [g.value for g in Granularity], "block")
        ),
        block_size=None if block is None else _number("PENELOPE_BLOCK_SIZE", block),
        phantom_rows=_number(
            "PENELOPE_PHANTOM_ROWS", environment.get("PENELOPE_PHANTOM_ROWS", "16")
        ),
        host_tokens=_number(
            "PENELOPE_HOST_TOKENS", environment.get("PENELOPE_HOST_TOKENS", "0"), least=0
        ),
        swap_tokens=None if swap is None else _number("PENELOPE_SWAP_TOKENS", swap),
        allow_untested=environment.get("PENELOPE_ALLOW_UNTESTED_SGLANG", "0") == "1",
    )


# Variables of the reference platform and of the tests: not options of the cache.
_OF_OTHERS = frozenset({"PENELOPE_DETERMINISTIC", "PENELOPE_TEST_RPC", "PENELOPE_TEST_FAULT"})


def _choice(environment: Mapping[str, str], name: str, allowed: list[str], default: str) -> str:
    value = environment.get(name, default)
    if value not in allowed:
        raise InvalidConfigError(f"{name} is '{value}': choose from {', '.join(allowed)}")
    return value


def _number(name: str, text: str, least: int = 1) -> int:
    if not text.isdecimal() or int(text) < least:
        raise InvalidConfigError(
            f"{name} is '{text}': it must be a whole number of at least {least}"
        )
    return int(text)
