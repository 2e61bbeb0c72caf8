"""``penelope serve``: SGLang's launcher with Penelope as the cache.

Every argument is SGLang's, but for `--penelope-…`, our options in the form of flags.  What is
decided here is only the cache, and the check of the combination before a model is loaded.  With
`--penelope-shadow 1` the cache is SGLang's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from importlib.util import find_spec

from penelope.policy import InvalidConfigError, PenelopeError
from penelope.sglang_adapter import compat, options, refusals
from penelope.sglang_adapter.errors import UnsupportedError

USER_ERROR = 2


def main(argv: list[str]) -> int:
    """Run the server until it is stopped; 2 and one line on standard error for a refusal."""
    try:
        # What needs no engine is refused before one is imported, which takes half a minute.
        require_installed()
        argv = take_options(argv, os.environ)
        chosen = options.read()
        compat.require_version(chosen)
        if not chosen.shadow:
            argv = with_backend(argv)
            refusals.require_supported_arguments(argv, host_tier=bool(chosen.host_tokens))
        compat.require_supported(chosen)
        return _launch(argv)
    except PenelopeError as error:
        sys.stderr.write(f"penelope serve: {error}\n")
        return USER_ERROR


def require_installed() -> None:
    """Raises `UnsupportedError` where SGLang is missing."""
    if find_spec("sglang") is None:
        raise UnsupportedError(
            f"this needs sglang, which is not installed: run {sys.executable} -m pip install "
            f'"penelope-kv[sglang]", or pip install ".[sglang]" in a checkout'
        )


def take_options(argv: list[str], environment: MutableMapping[str, str]) -> list[str]:
    """Put our own flags into the environment, where every process finds them; the rest is left.

    `--penelope-host-tokens 65536` sets PENELOPE_HOST_TOKENS.  Raises `InvalidConfigError` for a
    flag that is none or that has no value.
    """
    rest: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if not flag.startswith("--penelope-"):
            rest.append(argument)
            continue
        name = flag.removeprefix("--").replace("-", "_").upper()
        if name not in options.DOCUMENTED:
            known = ", ".join(map(options.flag, options.DOCUMENTED))
            raise InvalidConfigError(f"{flag} is not an option: choose from {known}")
        if not equals and (value := next(arguments, "--")).startswith("--"):
            raise InvalidConfigError(f"{flag} has no value: write {flag} VALUE")
        environment[name] = value
    return rest


def with_backend(argv: list[str]) -> list[str]:
    """The arguments with our cache chosen.  Raises `UnsupportedError` if another one is."""
    flag = "--radix-cache-backend"
    for index, argument in enumerate(argv):
        name, _, value = argument.partition("=")
        if name != flag:
            continue
        value = value or (argv[index + 1] if index + 1 < len(argv) else "")
        if value != options.BACKEND_NAME:
            raise UnsupportedError(
                f"{flag} is '{value}': penelope serve runs the penelope cache, so leave it out"
            )
        return argv
    return [*argv, flag, options.BACKEND_NAME]


def _launch(argv: list[str]) -> int:
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    # Before the arguments are parsed: plug-ins add choices to them.
    load_plugins()
    compat.require_registered()
    arguments = prepare_server_args(argv)
    try:
        run_server(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
    return 0
