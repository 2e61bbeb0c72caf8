"""SGLang's hierarchical cache on the CPU platform, so that there is a second tier to compare with.

A plug-in for the stock server of this benchmark only.  HiCache wants host memory pinned by CUDA
and copies it with a kernel for GPUs; here the memory is plain and the copy is PyTorch's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
FLAGS = (
    "--enable-hierarchical-cache",
    "--hicache-io-backend",
    "direct",
    "--hicache-mem-layout",
    "layer_first",
)


def load() -> None:
    """Entry point of `sglang.srt.plugins`."""
    from sglang.srt.mem_cache.pool_host import base, common, mha

    common.ALLOC_MEMORY_FUNCS["cpu"] = _unpinned
    mha.transfer_kv_direct = _copy
    # Ten gigabytes that a server leaves free would be all of a small machine.
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0


def _unpinned(dims: tuple[int, ...], dtype: torch.dtype, **_: Any) -> torch.Tensor:
    return torch.empty(dims, dtype=dtype)


def _copy(
    src_layers: list[torch.Tensor],
    dst_layers: list[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    del page_size
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def python_path(folder: Path) -> str:
    """PYTHONPATH with which an engine finds this plug-in; writes its description to `folder`."""
    plugin = folder / "penelope_hicache_on_cpu-0.dist-info"
    plugin.mkdir(exist_ok=True)
    (plugin / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: penelope-hicache-on-cpu\nVersion: 0\n"
    )
    (plugin / "entry_points.txt").write_text(
        f"[sglang.srt.plugins]\npenelope_hicache_on_cpu = {__name__}:load\n"
    )
    parts = (str(folder), str(ROOT), os.environ.get("PYTHONPATH", ""))
    return os.pathsep.join(part for part in parts if part)
