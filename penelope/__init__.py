"""KV-cache eviction for LLM serving under coding-agent traffic.

    from penelope import Cache, Config, POLICIES, Refused, pack

`penelope.policy` decides (pure, engine-neutral), `penelope.runtime` applies its decisions to a KV
store and replays traces, `penelope.sglang_adapter` binds both to SGLang.  `docs/contract.md` says
what is public.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penelope.policy import POLICIES, Config, PenelopeError, Refused, pack
    from penelope.runtime.cache import Cache

__version__ = "0.1.0"

__all__ = ["POLICIES", "Cache", "Config", "PenelopeError", "Refused", "__version__", "pack"]

_HOME = {
    "Cache": "penelope.runtime.cache",
    **dict.fromkeys(("POLICIES", "Config", "PenelopeError", "Refused", "pack"), "penelope.policy"),
}


def __getattr__(name: str) -> Any:
    """On first use: whoever imports the pure core alone imports nothing else."""
    if name not in _HOME:
        raise AttributeError(f"module 'penelope' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
