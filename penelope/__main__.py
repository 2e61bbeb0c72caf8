"""`python -m penelope` is the command `penelope`."""

import sys

from penelope.cli import main

if __name__ == "__main__":
    sys.exit(main())
