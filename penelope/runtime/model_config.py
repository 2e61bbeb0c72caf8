"""Cost models by name or from a model's configuration file."""

from __future__ import annotations

import json
from pathlib import Path

from penelope.policy import cost as costs
from penelope.policy.errors import PenelopeError
from penelope.policy.hf_config import ModelConfigError


class UnusableModel(PenelopeError):
    """The model is neither a preset nor a configuration that a cost follows from."""


def load_model(name: str) -> costs.CostModel:
    """A preset by its name, or the model that a `config.json` (or the folder of one) describes.

    Raises `UnknownModel` or `UnusableModel`.
    """
    path = Path(name)
    if path.is_dir():
        path /= "config.json"
    if name in costs.PRESET_CONFIGS or not (path.suffix == ".json" or "/" in name):
        return costs.preset(name)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnusableModel(f"cannot read {path}: {error.strerror}; give a config.json") from error
    except ValueError as error:  # JSON and UTF-8 alike
        raise UnusableModel(f"{path} is not JSON ({error}); give a model's config.json") from error
    if not isinstance(config, dict):
        raise UnusableModel(f"{path} is not a JSON object; give a model's config.json")
    try:
        return costs.from_hf_config(config)
    except (costs.CostError, ModelConfigError) as error:
        raise UnusableModel(f"{path}: {error}") from error
