"""Commands as a user at a terminal sees them."""

from __future__ import annotations

import os
import pty
import subprocess


def on_a_terminal(command: list[str], **variables: str) -> str:
    """What a command writes to standard error where that is a terminal."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", **variables}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=env) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                read = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not read:
                break
            shown += read
    os.close(ours)
    assert process.returncode == 0
    return shown.decode()
