"""`penelope`, and `python -m penelope`: the command line, which Ctrl-C ends from its first moment.

Nothing is imported here that the interpreter has not loaded by itself: what an interruption meets
outside `main` ends in a traceback.
"""

import os
import sys


def main() -> int:
    """Run the command line of this process and return its exit status."""
    try:
        from penelope.cli import main as run

        return run()
    except KeyboardInterrupt:
        os.write(2, b"penelope: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
