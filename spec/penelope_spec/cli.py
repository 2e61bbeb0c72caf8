"""`penelope verify`: decide every theorem, print a table, answer for CI."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from penelope.policy import PenelopeError
from penelope_spec.smt import Status
from penelope_spec.theorem import Verdict
from penelope_spec.verify import details, exit_status, run, summary, table_row


class CannotVerify(PenelopeError):
    """A command line that cannot be carried out."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status.  Raises `CannotVerify`."""
    arguments = _parser().parse_args(argv)
    target: Path | None = arguments.json
    if target is not None:
        _require_writable(target)
    verdicts: list[Verdict] = []
    sys.stdout.write("status         seconds  broken variants refuted, theorem\n")
    for verdict in run(arguments.only):
        verdicts.append(verdict)
        sys.stdout.write(table_row(verdict) + "\n")
        if arguments.verbose or verdict.status is not Status.PROVED:
            sys.stdout.writelines(f"{'':15}{line}\n" for line in details(verdict))
        sys.stdout.flush()
    if not verdicts:
        raise CannotVerify(
            f"no theorem is about {arguments.only!r}: leave --only out to see them all"
        )
    sys.stdout.writelines(f"{line}\n" for line in summary(verdicts))
    if target is not None:
        _write(target, verdicts)
    return exit_status(verdicts)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CannotVerify(f"{message} (see `penelope verify --help`)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="penelope verify",
        description="Decide every theorem of the specification with z3.",
        epilog="Exit status: 0 all proved, 1 a counterexample, 2 unknown.",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the verdicts to FILE, as a list"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="theorems about this invariant, or named so"
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="also print hypotheses, witnesses and the counterexamples to broken variants",
    )
    return parser


def _partial(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")


def _require_writable(target: Path) -> None:
    """Before the proofs are run, not after."""
    if target.is_dir():
        raise CannotVerify(f"{target} is a directory: give a file name")
    if not target.parent.is_dir():
        raise CannotVerify(f"{target.parent} is no directory: make it first")
    try:
        if target.exists():
            target.open("a").close()
        _partial(target).touch()
        _partial(target).unlink()
    except OSError as error:
        raise CannotVerify(
            f"cannot write {target} ({error.strerror}): choose another file"
        ) from None


def _write(target: Path, verdicts: Sequence[Verdict]) -> None:
    """All or nothing."""
    text = json.dumps([verdict.as_json() for verdict in verdicts], indent=1)
    _partial(target).write_text(text + "\n", encoding="utf-8")
    _partial(target).replace(target)
