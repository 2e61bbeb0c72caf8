"""What the tests run on: a GPU with a model of 8B, or a rehearsal on the CPU with a toy.

`--rehearse` plays every test at toy size on the CPU reference platform.  It shows that the tests do
what they say; it says nothing about a GPU, and no time is judged.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kernel_free.model import Shape
from tests.sglang import harness

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
DEFAULT_MODEL = "Qwen/Qwen3-8B"
TOY = Shape(layers=3, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=128, vocabulary=512)
LONGEST = 262_144
# Of a GPU's memory, for what is neither weights nor KV: context, graphs, activations.
OVERHEAD_GB = 7.0


@dataclass(frozen=True, slots=True)
class Model:
    path: Path
    random: bool
    shape: Shape


@dataclass(frozen=True, slots=True)
class Stage:
    """The machine, the model, and the sizes that suit them."""

    model: Model
    machine: dict[str, Any]
    rehearsal: bool
    memory_gb: float

    def size(self, real: int, toy: int) -> int:
        return toy if self.rehearsal else real

    def pool(self, engines: int) -> int:
        """Tokens of KV for each of so many engines on the GPU at once, at most 256K."""
        if self.rehearsal:
            return 16_384
        import torch

        dtype = torch.bfloat16
        each = self.memory_gb / engines - OVERHEAD_GB - self.model.shape.weight_bytes(dtype) / 1e9
        tokens = int(each * 1e9 / self.model.shape.kv_bytes(dtype))
        return min(LONGEST, tokens // 1024 * 1024)

    def engine(
        self, *, cache: str | None = "penelope", exact: bool, **arguments: Any
    ) -> harness.Engine:
        """Start one.  `exact`: SGLang's deterministic mode (here, the reference platform's)."""
        settings: dict[str, Any] = {
            "radix_cache_backend": cache,
            "load_format": "dummy" if self.model.random else "auto",
            "max_running_requests": 16,
            "page_size": 16,
            "chunked_prefill_size": 8192,
        }
        if not self.rehearsal:
            settings |= {
                "device": "cuda",
                "dtype": "bfloat16",
                "attention_backend": "fa3",
                "disable_cuda_graph": False,
                "mem_fraction_static": 0.9,
                "max_total_tokens": self.pool(1),
                # As many positions as the longest context: Qwen3-8B declares 40,960.
                "json_model_override_args": json.dumps({"max_position_embeddings": LONGEST}),
                "enable_deterministic_inference": exact,
                "watchdog_timeout": 600,
            }
        settings |= arguments
        if self.rehearsal:
            settings |= {"attention_backend": "penelope_rows"}
        return harness.Engine(self.model.path, variables=self._variables(exact), **settings)

    def _variables(self, exact: bool) -> dict[str, str]:
        folder = Path(tempfile.mkdtemp(prefix="penelope-gpu-"))
        plugin = folder / "penelope_gpu_rpc-0.dist-info"
        plugin.mkdir()
        (plugin / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: penelope-gpu-rpc\nVersion: 0\n"
        )
        (plugin / "entry_points.txt").write_text(
            "[sglang.srt.plugins]\npenelope_gpu = tests.gpu.gpu_rpc:load\n"
        )
        # Not the folder with the plug-in of tests/sglang: it checks every step, which makes the
        # device wait and would hide a race.
        path = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
        found = {"PYTHONPATH": os.pathsep.join(p for p in path if p)}
        found |= dict.fromkeys(harness.CHECKS, "0")
        # 7 GB of an 8B model's KV, for the tests that use a host tier.
        found["PENELOPE_HOST_TOKENS"] = str(self.size(49_152, 8_192))
        if not self.rehearsal:
            found |= {
                "SGLANG_PLATFORM": "",
                "PENELOPE_DETERMINISTIC": "0",
                # The reference platform wants one thread; a GPU's host has work for more.
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "8"),
            }
        elif not exact:
            found["PENELOPE_DETERMINISTIC"] = "0"
        return found


def gpu() -> dict[str, Any] | None:
    """The first NVIDIA GPU, without a CUDA context in this process; None if there is none."""
    query = "name,memory.total,driver_version"
    try:
        said = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    lines = said.strip().splitlines()
    if not lines:
        return None
    name, memory, driver = (part.strip() for part in lines[0].split(","))
    return {"gpu": name, "gpu_gb": round(int(memory) * 1.048576e-3, 1), "driver": driver}


def shape_of(folder: Path) -> Shape:
    """The sizes in a Hugging Face `config.json`."""
    config = json.loads((folder / "config.json").read_text())
    heads = config["num_attention_heads"]
    return Shape(
        config["num_hidden_layers"], config["hidden_size"], heads,
        config.get("num_key_value_heads", heads),
        config.get("head_dim") or config["hidden_size"] // heads,
        config["intermediate_size"], config["vocab_size"],
    )  # fmt: skip


def write_config(folder: Path, shape: Shape, dtype: str) -> Path:
    """A Qwen3 without weights: the engine's plug-in fills them in (`gpu_rpc.random_weights`)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": dtype,
        "num_hidden_layers": shape.layers, "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim, "intermediate_size": shape.intermediate,
        "vocab_size": shape.vocabulary, "max_position_embeddings": LONGEST,
        "rope_theta": 1_000_000, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "attention_bias": False, "tie_word_embeddings": False, "use_sliding_window": False,
        "sliding_window": None, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder


def cached(name: str) -> Path | None:
    """A model's folder: a path, or a name in the local Hugging Face cache.  Downloads nothing."""
    if (Path(name) / "config.json").exists():
        return Path(name)
    from transformers.utils import cached_file

    # None for what is missing, instead of an exception of one of many kinds.
    found = cached_file(
        name, "config.json", local_files_only=True, _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False, _raise_exceptions_for_gated_repo=False,
    )  # fmt: skip
    return None if found is None else Path(found).parent
