"""What recomputing KV costs, by position, and how a model's configuration says so.

The policy decides without it; the replay, the router's score and the command line measure by it.
"""

from penelope.cost.hf_config import InvalidField, MissingField, ModelConfigError, UnsupportedModel
from penelope.cost.model import (
    PRESET_CONFIGS,
    CostError,
    CostModel,
    Prediction,
    UnknownModel,
    from_hf_config,
    predict,
    predicted_speedup,
    preset,
)

__all__ = [
    "PRESET_CONFIGS",
    "CostError",
    "CostModel",
    "InvalidField",
    "MissingField",
    "ModelConfigError",
    "Prediction",
    "UnknownModel",
    "UnsupportedModel",
    "from_hf_config",
    "predict",
    "predicted_speedup",
    "preset",
]
