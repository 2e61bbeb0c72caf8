"""Policies of third parties in a comparison, by the name `module:function`.

The function makes an empty cache: `make(config, unit_tokens) -> ReplayCache`, with sizes in units
of the trace.  An attribute `base` names the policy whose position and granularity the configuration
has (default `penelope`).  The module is looked for where Python looks, and in the current folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from inspect import getmembers_static
from pathlib import Path
from typing import NamedTuple

from penelope.policy import POLICIES, Config
from penelope.policy.errors import InvalidConfigError, PenelopeError
from penelope.runtime.replay.caches import ReplayCache

_ANSWERS = tuple(name for name, _ in getmembers_static(ReplayCache) if not name.startswith("_"))
"""What a cache under test must have."""


class Plugged(NamedTuple):
    """A function that makes a cache, and the policy whose configuration it is given."""

    make: Callable[[Config, int], ReplayCache]
    base: str


def is_plugged(name: str) -> bool:
    """Whether a policy is somebody else's."""
    return ":" in name


@cache
def plugged(name: str) -> Plugged:
    """The policy of that name.  Raises `InvalidConfigError` where there is none."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InvalidConfigError(f"policy '{name}' is no name: give module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise InvalidConfigError(
            f"policy '{name}': no module {error.name or module_name} is found here or in Python's "
            "path: run in its folder, or install it"
        ) from error
    except Exception as error:
        raise InvalidConfigError(
            f"policy '{name}': {module_name} cannot be imported ({_said(error)}): correct it"
        ) from error
    make = getattr(module, attribute, None)
    if not callable(make):
        what = "nothing that can be called" if hasattr(module, attribute) else "no such name"
        raise InvalidConfigError(
            f"policy '{name}': {module_name} has {what} as '{attribute}': name a function that "
            "makes a cache"
        )
    base = getattr(make, "base", "penelope")
    if base not in POLICIES:
        raise InvalidConfigError(
            f"policy '{name}' is based on '{base}': choose from {', '.join(POLICIES)}"
        )
    return Plugged(make, base)


def plugged_cache(name: str, config: Config, unit_tokens: int) -> ReplayCache:
    """An empty cache of the policy of that name.  Raises `InvalidConfigError`."""
    try:
        made = plugged(name).make(config, unit_tokens)
    except PenelopeError:
        raise
    except Exception as error:
        raise InvalidConfigError(
            f"policy '{name}' makes no cache of a configuration and the tokens of a unit "
            f"({_said(error)}): correct it"
        ) from error
    lacking = [answer for answer in _ANSWERS if not hasattr(made, answer)]
    if lacking:
        raise InvalidConfigError(
            f"policy '{name}' makes a {type(made).__name__}, which has no {lacking[0]}: make a "
            "penelope.runtime.replay.caches.ReplayCache"
        )
    return made


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
