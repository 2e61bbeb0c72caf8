"""`python -m penelope_spec`: what `penelope verify` does, where nothing but z3 is installed."""

from __future__ import annotations

import sys

from penelope.cli import USER_ERROR, complain
from penelope.policy import PenelopeError
from penelope_spec.cli import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except PenelopeError as error:
        complain("penelope_spec", str(error))
        sys.exit(USER_ERROR)
