"""The command `penelope`: which subcommands there are, and how they fail.

Only the standard library is imported here, so that the command can say what is missing on an
installation without the extra that a subcommand needs.  A subcommand lives in a module of its own,
imported when it is called.  It returns its exit status (None is 0).  What a user can cause ends in
one line on standard error and status 2; a traceback is always a bug.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penelope.policy.errors import PenelopeError

USER_ERROR = 2
INTERRUPTED = 130


class Subcommand(NamedTuple):
    target: str
    """`module:attribute` of a click command."""
    help: str
    plain: bool = False
    """Instead: of a function from arguments, all of them, to exit status.  It needs no click."""


SUBCOMMANDS = {
    "demo": Subcommand(
        "penelope.commands.replay:demo",
        "Replay a generated agent workload under five policies.",
    ),
    "replay": Subcommand(
        "penelope.commands.replay:replay",
        "Replay a trace in a closed loop and compare policies.",
    ),
    "sweep": Subcommand(
        "penelope.commands.sweep:sweep",
        "Replay many settings on all cores; goes on where it stopped.",
    ),
    "cost": Subcommand(
        "penelope.commands.cost:cost",
        "Predict the speed-up of evicting from the head, for one model.",
    ),
    "verify": Subcommand(
        "penelope_spec.cli:main",
        "Prove the theorems of the specification with z3.",
        plain=True,
    ),
    "serve": Subcommand(
        "penelope.sglang_adapter.serve:main",
        "Start SGLang with Penelope as its cache; takes every SGLang flag.",
        plain=True,
    ),
}

GROUP = "penelope.commands.group:invoke"
"""Runs all that are not plain; it needs click."""

EXTRA_OF_MODULE = {
    "click": "replay",
    "rich": "replay",
    "numpy": "replay",
    "matplotlib": "replay",
    "z3": "verify",
    "ray": "ray",
    "sglang": "sglang",
    "torch": "sglang",
    "transformers": "sglang",
}


class MissingExtra(PenelopeError):
    """A part of the command line needs packages that the core does not bring."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return run(arguments)
    except PenelopeError as error:
        complain(command_path(arguments), str(error))
        return USER_ERROR
    except KeyboardInterrupt:
        complain(command_path(arguments), "interrupted")
        return INTERRUPTED


def run(arguments: list[str]) -> int:
    command = SUBCOMMANDS.get(arguments[0]) if arguments else None
    function: Callable[[list[str]], int]
    if command is not None and command.plain:
        function = load(command.target)
        return function(arguments[1:])
    function = load(GROUP)
    return function(arguments or ["--help"])


def load(target: str) -> Any:
    """What a `module:attribute` names, imported now."""
    module, _, attribute = target.partition(":")
    return getattr(import_or_name_extra(module), attribute)


def import_or_name_extra(module: str) -> object:
    """Import `module`; where one of an extra's packages is missing, say how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        extra = EXTRA_OF_MODULE.get(missing)
        if extra is None and error.name and f"{module}.".startswith(f"{error.name}."):
            raise MissingExtra(
                f"this installation has no {module}: install penelope-kv anew"
            ) from error
        if extra is None:
            raise
        raise MissingExtra(
            f"this needs {missing}, which is not installed: "
            f'run python -m pip install "penelope-kv[{extra}]"'
        ) from error


def command_path(arguments: Sequence[str]) -> str:
    """`penelope` or `penelope SUBCOMMAND`: who is complaining."""
    known = arguments[:1] and arguments[0] in SUBCOMMANDS
    return f"penelope {arguments[0]}" if known else "penelope"


def complain(who: str, what: str) -> None:
    print(f"{who}: {' '.join(what.split())}", file=sys.stderr)
