"""The CPU reference platform: the real engine on a machine without a GPU.

It exists for tests and development.  It stays inactive unless
``SGLANG_PLATFORM=penelope_cpu`` asks for it by name: SGLang activates every
platform that offers itself, so one that did not wait to be named would take
over GPU machines.
"""

from __future__ import annotations

import os
from typing import Any

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

PLATFORM_NAME = "penelope_cpu"
ATTENTION_BACKEND = "penelope_rows"


def activate() -> str | None:
    """Entry point of ``sglang.srt.platforms``; None means "not asked for"."""
    if os.environ.get("SGLANG_PLATFORM") != PLATFORM_NAME:
        return None
    return f"{__name__}:{ReferenceCpuPlatform.__qualname__}"


class ReferenceCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """PyTorch's own kernels only: no ``sgl_kernel``, no Triton, no graphs."""

    _enum = PlatformEnum.OOT

    def get_default_attention_backend(self) -> str:
        return ATTENTION_BACKEND

    def get_dispatch_key_name(self) -> str:
        return "native"

    def is_pin_memory_available(self, device: Any = None) -> bool:
        return False
