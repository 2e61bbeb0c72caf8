"""The first episodes of `make fuzz-server`: what it once found, and a few drawn ones.

Not a part of `make test`: `pytest tests/fuzz/server/test_live.py`, some minutes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.server.__main__ import Fuzzer, drawn, stored

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(3600)]

EPISODES = 4


def test_a_few_episodes_find_nothing(tmp_path: Path) -> None:
    fuzzer = Fuzzer(tmp_path, stock=False)
    episodes = drawn(3, 0)
    try:
        for episode in stored():
            assert fuzzer.run(episode) == [], episode.name
        for _ in range(EPISODES):
            episode = next(episodes)
            assert fuzzer.run(episode) == [], episode.name
        assert fuzzer.counted["compared positions"] > 100
        assert fuzzer.counted["evictions"] > 0
        assert fuzzer.counted["evictions without pressure"] == 0
    finally:
        fuzzer.stop()
