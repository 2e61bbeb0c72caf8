"""The command `penelope`: which subcommands there are, and how they fail.

Only the standard library is imported here, so that the command can say what is missing on an
installation without the extra that a subcommand needs.  A subcommand lives in a module of its own,
imported when it is called.  It returns its exit status (None is 0).  What a user can cause ends in
one line on standard error and status 2; a traceback is always a bug.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NamedTuple

from penelope import __version__
from penelope.policy.errors import PenelopeError

USER_ERROR = 2
INTERRUPTED = 130
NOBODY_READS = 1
"""The reader of standard output has gone (`| head`): no error of anybody's."""


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    who = command_path(arguments)
    try:
        status = run(arguments)
        sys.stdout.flush()
    except PenelopeError as error:
        complain(who, str(error))
        return USER_ERROR
    except KeyboardInterrupt:
        complain(who, "interrupted")
        return INTERRUPTED
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        return _without_output(who, error)
    return status


def run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in {"-h", "--help"}:
        sys.stdout.write(usage())
        return 0
    if arguments[0] == "--version":
        sys.stdout.write(f"penelope {__version__}\n")
        return 0
    command = SUBCOMMANDS.get(arguments[0])
    function: Callable[[list[str]], int]
    if command is not None and command.plain:
        function = load(command.target)
        return function(arguments[1:])
    function = load(GROUP)
    return function(arguments)


def usage() -> str:
    """What there is.  It needs no extra, so that an installation of the core can say so."""
    width = max(map(len, SUBCOMMANDS))
    return "\n".join(
        [
            "Usage: penelope [OPTIONS] COMMAND [ARGS]...",
            "",
            "  KV-cache eviction for LLM serving under coding-agent traffic.",
            "",
            "Options:",
            "  --version   Print the version.",
            "  -h, --help  Print this; `penelope COMMAND --help` has a command's options.",
            "",
            "Commands:",
            *(f"  {name:<{width}}  {entry.help}" for name, entry in SUBCOMMANDS.items()),
            "",
        ]
    )


# --- failures that no command can foresee ---------------------------------------------------------

_UNWRITABLE = {
    *(errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT, errno.EBADF, errno.ENXIO)
}
"""How writing to an open file fails, whatever was written."""


def _without_output(who: str, error: OSError) -> int:
    """Answer for standard output that takes no more."""
    # What is left in the buffer would fail once more, with a traceback, at the interpreter's end.
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return NOBODY_READS
    complain(
        who, f"standard output cannot be written ({error.strerror}): make room, or name a file"
    )
    return USER_ERROR


@contextmanager
def _interrupted_at_once() -> Iterator[None]:
    """While modules are imported: an exception in the middle of one would not always get out."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        del number, frame
        os.write(2, b"penelope: interrupted\n")
        os._exit(INTERRUPTED)

    try:
        signal.signal(signal.SIGINT, leave)
    except ValueError:  # not the main thread: somebody else answers for signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# --- what is not installed ------------------------------------------------------------------------


def load(target: str) -> Any:
    """What a `module:attribute` names, imported now."""
    module, _, attribute = target.partition(":")
    with _interrupted_at_once():
        return getattr(import_or_name_extra(module), attribute)


def import_or_name_extra(module: str) -> object:
    """Import `module`; where one of an extra's packages is missing, say how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # Only here: what it reads about the installation costs time.
        from penelope.installing import MissingExtra, advice, extra_of

        missing = (error.name or "").partition(".")[0]
        extra = extra_of(missing)
        if extra is None and error.name and f"{module}.".startswith(f"{error.name}."):
            raise MissingExtra(
                f"this installation has no {module}: install penelope-kv anew"
            ) from error
        if extra is None:
            raise
        raise MissingExtra(
            f"this needs {missing}, which is not installed: {advice(extra)}"
        ) from error


def command_path(arguments: Sequence[str]) -> str:
    """`penelope` or `penelope SUBCOMMAND`: who is complaining."""
    known = arguments[:1] and arguments[0] in SUBCOMMANDS
    return f"penelope {arguments[0]}" if known else "penelope"


def complain(who: str, what: str) -> None:
    with suppress(OSError):  # standard error may be full too; the status says the rest
        line = " ".join(what.split())
        # A name in it may hold anything: nothing that a terminal would obey.
        safe = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
        print(f"{who}: {''.join(safe)}", file=sys.stderr, flush=True)
