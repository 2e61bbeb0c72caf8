"""What the pool holds after a workload is what a fresh prefill of each history writes."""

from __future__ import annotations

import pytest

from tests.sglang import workload
from tests.sglang.comparing import CROWD, SMALL_POOL
from tests.sglang.conftest import DEFAULTS
from tests.sglang.harness import Engine

pytestmark = [pytest.mark.sglang, pytest.mark.smoke]


def test_resident_kv_equals_a_fresh_prefill(engine: Engine) -> None:
    engine.call("penelope_configure", **{**DEFAULTS, "pool": SMALL_POOL, "chunk": 256})
    spoken = engine.run(workload.converse(engine, CROWD))
    left = engine.dump()
    assert left["statistics"]["phantoms"] >= 1
    resident = left["resident"]
    assert len(resident) > SMALL_POOL / 2

    fresh: dict[bytes, bytes] = {}
    for conversation in spoken:
        engine.call("penelope_configure", **DEFAULTS)
        history = conversation.spoken[-1][1]
        answer = engine.run(engine.generate(history, "fresh", 1))
        assert answer["meta_info"]["cached_tokens"] == 0
        fresh.update(engine.dump()["resident"])
    wrong = [h for h, kv in resident.items() if fresh[h] != kv]
    assert not wrong, f"K and V differ at {len(wrong)} of {len(resident)} positions"


def test_nothing_is_shared_between_namespaces(engine: Engine) -> None:
    """Case 77: salts and extra keys are separate trees, never glued into one another."""
    tokens = workload.text("namespace", 200)
    parts: list[dict[str, str]] = [
        {},
        {"extra_key": "ab"},
        {"extra_key": "a"},
        {"cache_salt": "ab"},
        {"extra_key": "a", "cache_salt": "b"},
    ]
    for index, part in enumerate(parts):
        first = engine.run(engine.generate(tokens, f"n{index}", 4, **part))
        again = engine.run(engine.generate(tokens, f"m{index}", 4, **part))
        assert first["meta_info"]["cached_tokens"] == 0, part
        assert again["meta_info"]["cached_tokens"] == 192, part
    resident = engine.dump()["resident"]
    assert len(resident) == len(parts) * 192, "digests name their namespace"
