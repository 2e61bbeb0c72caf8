"""KV-cache eviction for LLM serving under coding-agent traffic.

`penelope.policy` decides (pure, engine-neutral), `penelope.runtime` applies its decisions to a KV
store and replays traces, `penelope.sglang_adapter` binds both to SGLang.
"""

__version__ = "0.1.0"
