"""Cost models by name or from a model's configuration file."""

from __future__ import annotations

import json
from pathlib import Path, PurePath

from penelope.cost import model as costs
from penelope.cost.hf_config import ModelConfigError
from penelope.policy.errors import PenelopeError
from penelope.runtime import inputs
from penelope.runtime.documents import TwiceError, each_once


class UnusableModel(PenelopeError):
    """The model is neither a preset nor a configuration that a cost follows from."""


def load_model(name: str) -> costs.CostModel:
    """A preset by its name, or the model that a `config.json` (or the folder of one) describes.

    `-` is standard input; a pipe is read once.  The model has the name that the user gave: the
    preset, or the file.  Raises `UnknownModel` or `UnusableModel`.
    """
    if name in costs.PRESET_CONFIGS or not is_file(name):
        return costs.preset(name)
    path = Path(name)
    try:
        path = path / "config.json" if path.is_dir() else path
    except OSError as error:
        raise UnusableModel(f"cannot read {name}: {error.strerror}; give a config.json") from error
    shown = inputs.shown(path)
    try:
        with inputs.opened(path) as source:
            content = source.document()
    except inputs.InputError as error:
        raise UnusableModel(_unreadable(shown, error)) from error
    try:
        config = json.loads(content.decode(), object_pairs_hook=each_once)
    except TwiceError as error:
        raise UnusableModel(f"{shown} {error}; keep one of them") from error
    except (ValueError, RecursionError) as error:  # JSON and UTF-8 alike
        raise UnusableModel(f"{shown} is not JSON ({error}); give a model's config.json") from error
    if not isinstance(config, dict):
        raise UnusableModel(f"{shown} is not a JSON object; give a model's config.json")
    try:
        return costs.from_hf_config(config, _title(path))
    except (costs.CostError, ModelConfigError) as error:
        raise UnusableModel(f"{shown}: {error}") from error


def is_file(name: str) -> bool:
    """Whether a model's name stands for a file or a folder, not for a preset."""
    if name == "-" or "/" in name or name.endswith(".json"):
        return True
    try:
        return Path(name).is_dir()
    except OSError:  # no name that a file can have
        return False


def _title(path: Path) -> str:
    """What tells one file from another: most are called config.json, in a folder that says more."""
    if path.name != "config.json":
        return PurePath(inputs.title(path)).name
    folder = path.absolute().parent.name
    return f"{folder}/{path.name}" if folder else path.name


def _unreadable(path: Path, error: inputs.InputError) -> str:
    reason = error.problem.removeprefix("cannot be read (").removesuffix(")")
    if reason != error.problem:
        return f"cannot read {path}: {reason}; give a config.json"
    return f"{path} {error.problem}; {error.remedy}"
