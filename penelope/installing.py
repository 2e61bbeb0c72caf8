"""What to run where an extra is not installed: with this interpreter, and from where we came."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import sys
from pathlib import Path

from penelope.policy.errors import PenelopeError

DISTRIBUTION = "penelope-kv"

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

TARGET_OF_EXTRA = {"replay": "make demo", "verify": "make verify", "sglang": "make test"}
"""The targets of a checkout that bring an extra by themselves."""


class MissingExtra(PenelopeError):
    """A part of the command line needs packages that the core does not bring."""


def extra_of(module: str) -> str | None:
    """The extra that brings a module, None if none does."""
    return EXTRA_OF_MODULE.get(module)


def advice(extra: str) -> str:
    """A command that installs an extra for this interpreter, and the make target that does too."""
    root = checkout()
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    if root is None:
        return f'run {pip} "{DISTRIBUTION}[{extra}]{_origin()}"'
    by_hand = f'{pip} -e "{root}[{extra}]"'
    target = TARGET_OF_EXTRA.get(extra)
    own = Path(sys.prefix).resolve() == (root / ".venv").resolve()
    # A target installs into the checkout's own environment, which need not be this one.
    return f"run {target} in {root}, or {by_hand}" if target and own else f"run {by_hand}"


def checkout() -> Path | None:
    """The checkout that this code lies in, if it lies in one."""
    root = Path(__file__).resolve().parent.parent
    return root if (root / "pyproject.toml").is_file() and (root / "Makefile").is_file() else None


def _origin() -> str:
    """Where an installation that came from no index came from, for pip."""
    try:
        text = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
        url = json.loads(text or "{}").get("url")
    except (importlib.metadata.PackageNotFoundError, ValueError, AttributeError):
        return ""
    return f" @ {url}" if isinstance(url, str) else ""
