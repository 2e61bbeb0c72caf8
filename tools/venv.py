"""Make `.venv` hold what one level of work needs, at the versions pinned in `requirements/`.

    python tools/venv.py replay    # the core and the command line
    python tools/venv.py dev       # and the development tools
    python tools/venv.py docs      # or what builds the documentation
    python tools/venv.py mutation  # and the mutation testing
    python tools/venv.py crosshair # or the symbolic search
    python tools/venv.py sglang    # or SGLang with PyTorch
    python tools/venv.py routers   # in `.venv-routers`: the development tools and Dynamo's index
    python tools/venv.py --key     # a hash of all that goes into it: the key of a cache

Does nothing, at once, when nothing changed.  `.venv` may be a link to an environment kept
elsewhere; one that this script did not make is brought to the pins but never deleted.  An
interrupted installation is started over: half an environment cannot be told from a whole one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent.parent


class Venv:
    """An environment, and what this script notes in it."""

    def __init__(self, name: str) -> None:
        self.path = ROOT / name
        self.python = self.path / "bin" / "python"
        self.stamps = self.path / ".penelope"
        self.unfinished = self.stamps / "unfinished"
        self.editable = self.stamps / "editable"
        self.log = self.stamps / "pip.log"

    def stamped(self, name: str) -> str | None:
        stamp = self.stamps / name
        return stamp.read_text() if stamp.exists() else None


class Level(NamedTuple):
    pins: tuple[str, ...]
    """Files in `requirements/`; the last one includes the others."""
    needs_gb: int
    announcement: str
    place: str = ".venv"
    options: tuple[str, ...] = ()
    """Of the installation of the pins."""


LEVELS = {
    "replay": Level(("replay.txt",), 1, "the replay (some seconds)"),
    "dev": Level(("replay.txt", "dev.txt"), 1, "the development tools (under a minute)"),
    "docs": Level(("replay.txt", "docs.txt"), 1, "MkDocs (some seconds)"),
    "mutation": Level(("replay.txt", "dev.txt", "mutation.txt"), 1, "mutmut (some seconds)"),
    "crosshair": Level(("replay.txt", "dev.txt", "crosshair.txt"), 1, "CrossHair (some seconds)"),
    "sglang": Level(
        ("replay.txt", "dev.txt", "sglang-lock.txt", "sglang.txt"),
        15,
        "SGLang and PyTorch (about 11 GB, some five minutes)",
    ),
    # Apart, and without what the wheel asks for: its index needs hardly any of it, and what it
    # asks for would replace what SGLang needs.
    "routers": Level(
        ("replay.txt", "dev.txt", "routers.txt"),
        2,
        "the development tools and Dynamo's index (some 0.8 GB, a minute)",
        ".venv-routers",
        ("--no-deps",),
    ),
}


OPTIONAL = {"ray"}
"""Extras that none of these environments brings: no test needs them, and they change no cache."""


def main(arguments: list[str]) -> int:
    match arguments:
        case ["--key"]:
            print(cache_key())
        case [name] if name in LEVELS:
            prepare(name)
        case _:
            fail(f"usage: python tools/venv.py {' | '.join(LEVELS)} | --key")
    return 0


def prepare(name: str) -> None:
    level = LEVELS[name]
    venv = Venv(level.place)
    if not usable(venv):
        create(venv)
    if venv.stamped(name) != digest(*level.pins):
        refuse_if_disk_is_short(venv, level)
        say(f"installing {level.announcement} into {venv.path.resolve()}")
        venv.unfinished.touch()
        pins = str(ROOT / "requirements" / level.pins[-1])
        pip(venv, "install", *level.options, "--requirement", pins)
        venv.unfinished.unlink()
        for other, its in LEVELS.items():
            if its.place == level.place and set(its.pins) <= set(level.pins):
                (venv.stamps / other).write_text(digest(*its.pins))
    # The checkout itself: its place and its entry points are what an editable install records.
    here = f"{ROOT} {hashlib.sha256((ROOT / 'pyproject.toml').read_bytes()).hexdigest()}"
    if venv.stamped(venv.editable.name) != here:
        venv.editable.unlink(missing_ok=True)
        pip(venv, "install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        venv.editable.write_text(here)


def usable(venv: Venv) -> bool:
    if not venv.python.exists() or venv.unfinished.exists():
        return False
    has = environment_version(venv)
    if has < (3, 11):
        return False
    # An explicit PYTHON=... asks for its version; otherwise what is there is good.
    return not os.environ.get("PYTHON") or has == sys.version_info[:2]


def environment_version(venv: Venv) -> tuple[int, ...]:
    recorded = venv.path / "pyvenv.cfg"
    for line in recorded.read_text().splitlines() if recorded.is_file() else ():
        field, _, value = line.partition("=")
        if field.strip() in {"version", "version_info"}:
            return tuple(int(part) for part in value.strip().split(".")[:2])
    return (0, 0)


def create(venv: Venv) -> None:
    place = venv.path.resolve()  # not through the link: scripts record the place they are made in
    if place.exists() and any(place.iterdir()):
        if not venv.stamps.is_dir():
            fail(f"{place} is no environment that can be used: remove it and run this again")
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    say(f"making {place} with Python {platform.python_version()}")
    run(venv, [sys.executable, "-m", "venv", str(place)])
    venv.stamps.mkdir()


def pip(venv: Venv, *arguments: str) -> None:
    venv.stamps.mkdir(exist_ok=True)
    options = ["--quiet", "--no-input", "--disable-pip-version-check"]
    # By its own place, not through the link: scripts record the path of the Python that runs pip.
    run(venv, [str(venv.path.resolve() / "bin" / "python"), "-m", "pip", *arguments, *options])


def run(venv: Venv, command: list[str]) -> None:
    """Quiet when it succeeds; the end of its output when it fails."""
    outside = ("PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "VIRTUAL_ENV")
    env = {k: v for k, v in os.environ.items() if k not in outside} | {"PIP_USER": "0"}
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if venv.stamps.is_dir():
        venv.log.write_text(done.stdout)
    if done.returncode:
        print(*done.stdout.splitlines()[-25:], sep="\n", file=sys.stderr)
        fail(f"set-up failed (the above): {' '.join(command[1:4])}; mend it and run this again")


def refuse_if_disk_is_short(venv: Venv, level: Level) -> None:
    free = shutil.disk_usage(venv.path.resolve().parent).free / 1e9
    if free < level.needs_gb:
        fail(
            f"{level.announcement} needs {level.needs_gb} GB of free disk at "
            f"{venv.path.resolve()}, there are {free:.0f}: make room, or link {level.place} to "
            f"another disk"
        )


def digest(*pins: str) -> str:
    text = "\n".join((ROOT / "requirements" / name).read_text() for name in pins)
    return hashlib.sha256(text.encode()).hexdigest()


def cache_key() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    table = project["project"]
    extras = {n: e for n, e in table["optional-dependencies"].items() if n not in OPTIONAL}
    parts = [
        platform.python_implementation(),
        platform.python_version(),
        platform.machine(),
        digest(*LEVELS["sglang"].pins),
        repr([project["build-system"], table["dependencies"], extras]),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def say(line: str) -> None:
    print(f"penelope: {line}", flush=True)


def fail(line: str) -> NoReturn:
    print(f"penelope: {line}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
