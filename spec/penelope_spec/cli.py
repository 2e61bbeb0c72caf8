"""`penelope verify`: decide every theorem, print a table, answer for CI."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from penelope.policy import PenelopeError
from penelope.runtime.outputs import check_writable, is_standard_output, write_text
from penelope_spec.smt import Status
from penelope_spec.theorem import Verdict
from penelope_spec.verify import details, exit_status, run, summary, table_row


class CannotVerify(PenelopeError):
    """A command line that cannot be carried out."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status.  Raises `CannotVerify`."""
    arguments = _parser().parse_args(argv)
    target: Path | None = arguments.json
    # With the document on standard output, the table goes to standard error.
    table = sys.stdout
    if target is not None:
        check_writable(target)  # before the proofs are run, not after
        table = sys.stderr if is_standard_output(target) else table
    verdicts: list[Verdict] = []
    table.write("status         seconds  broken variants refuted, theorem\n")
    for verdict in run(arguments.only):
        verdicts.append(verdict)
        table.write(table_row(verdict) + "\n")
        if arguments.verbose or verdict.status is not Status.PROVED:
            table.writelines(f"{'':15}{line}\n" for line in details(verdict))
        table.flush()
    if not verdicts:
        raise CannotVerify(
            f"no theorem is about {arguments.only!r}: leave --only out to see them all"
        )
    table.writelines(f"{line}\n" for line in summary(verdicts))
    if target is not None:
        text = json.dumps([verdict.as_json() for verdict in verdicts], indent=1)
        write_text(target, text + "\n")
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
        "--json",
        type=Path,
        metavar="FILE",
        help="also write the verdicts to FILE, as a list; -: to standard output",
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
