"""`penelope replay --host-tokens` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penelope import cli
from penelope.commands.replay import TIERED
from penelope.cost import CostError, CostModel, preset
from penelope.runtime.replay.table import WIDTH

NAMES = [
    "sglang-hicache",
    "sglang-hicache-write-back-block-device-lpm",
    "independent-tiers",
    "tail-block",
    "penelope",
]
SMALL = (
    "replay --sessions 4 --max-context 34000 --device-tokens 60000 --concurrency 4 "
    f"--host-tokens 60000 --policy {','.join(NAMES)}"
).split()


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("tiers") / "out.json"
    assert cli.main([*SMALL, "--json", str(out)]) == 0
    return json.loads(out.read_text()), out


def test_figures_by_tier_are_written(outcome: tuple[dict[str, Any], Path]) -> None:
    policies = outcome[0]["policies"]
    assert list(policies) == NAMES
    for name, figures in policies.items():
        assert figures["promoted_tokens"] == figures["host_hit_tokens"] > 0, name
        assert figures["device_hit_tokens"] > figures["host_hit_tokens"], name
        assert figures["demoted_tokens"] > 0, name
        swaps = name in {"tail-block", "penelope"}
        assert bool(figures["swapped_tokens"]) is swaps, name
        share = figures["swapped_tokens"] / figures["promoted_tokens"]
        assert figures["swapped_share"] == pytest.approx(share), name
    assert policies["penelope"]["swapped_share"] > 0.5
    first = {round(f["computed_units"] - f["recomputed_units"], 3) for f in policies.values()}
    assert len(first) == 1


def test_the_setting_is_written(outcome: tuple[dict[str, Any], Path]) -> None:
    config = outcome[0]["config"]
    assert (config["host_tokens"], config["swap_tokens"]) == (60000, 1024)
    timing = config["timing"]
    # 36 layers, keys and values of 8 heads of 128, two bytes each.
    assert timing["seconds_per_copied_token"] == pytest.approx(36 * 2 * 8 * 128 * 2 / 50e9)
    assert timing["overlapped"] is True


def test_copies_that_nothing_hides_take_longer(
    outcome: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    out = tmp_path / "serial.json"
    alone = [*SMALL[:-1], "penelope", "--transfers", "serial", "--host-gbps", "1"]
    assert cli.main([*alone, "--json", str(out)]) == 0
    serial = json.loads(out.read_text())["policies"]["penelope"]
    assert serial["ttft_mean_s"] > outcome[0]["policies"]["penelope"]["ttft_mean_s"]


def test_tables_stay_within_80_columns(
    outcome: tuple[dict[str, Any], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(SMALL) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert "60,000 on the host" in " ".join(shown.split())
    rows = [line.split() for line in lines if line.startswith("penelope ")]
    assert len(rows) == 2
    share = outcome[0]["policies"]["penelope"]["swapped_share"]
    assert rows[1][-1] == f"{100 * share:.0f}%"
    hidden = [line.split() for line in lines if line.startswith("independent-tiers")]
    assert hidden[1][-2:] == ["0", "0%"]


def test_with_a_host_other_policies_are_compared_and_drawn(tmp_path: Path) -> None:
    out, drawn = tmp_path / "out.json", tmp_path / "out.png"
    options = ["--json", str(out), "--plot", str(drawn)]
    assert cli.main([*SMALL[: SMALL.index("--policy")], *options]) == 0
    assert tuple(json.loads(out.read_text())["policies"]) == TIERED
    assert drawn.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--host-tokens -1", "--host-tokens is -1: give 0 for one tier, or more"),
        ("--host-tokens 4096 --swap-tokens 0", "--swap-tokens 0 is not a whole number"),
        ("--host-tokens 4096 --swap-tokens 100", "--swap-tokens 100 is not a whole"),
        (
            "--host-tokens 4096 --swap-tokens 64 --block-tokens 128",
            "--swap-tokens 64 is not a whole",
        ),
        ("--host-tokens 1000", "--host-tokens 1000 does not hold its swap buffer of 1024"),
        ("--host-tokens 4096 --host-gbps 0", "--host-gbps is 0.0: give a number from"),
        ("--host-tokens 4096 --host-gbps -2", "--host-gbps is -2.0: give a number from"),
        ("--host-tokens 4096 --host-gbps nan", "--host-gbps is nan: give a number from"),
        ("--host-tokens 4096 --host-gbps inf", "--host-gbps is inf: give a number from"),
        ("--host-tokens 4096 --transfers both", "--transfers both is not known: choose from over"),
        ("--policy sglang-hicache", "policy 'sglang-hicache' has two tiers: give --host-tokens"),
        ("--policy independent-tiers", "policy 'independent-tiers' has two tiers: give"),
        ("--policy sglang-hicache-blocks", "unknown policy 'sglang-hicache-blocks': choose from"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["replay", "--sessions", "1", *arguments.split()]) == cli.USER_ERROR
    captured = capsys.readouterr()
    assert not captured.out
    (line,) = captured.err.splitlines()
    assert line.startswith("penelope replay: ")
    assert says in line


@pytest.mark.parametrize(
    ("name", "kibibytes"), [("qwen3-8b", 144), ("qwen3-32b", 256), ("qwen3-235b-a22b", 188)]
)
def test_bytes_of_kv_of_a_token(name: str, kibibytes: int) -> None:
    assert preset(name).kv_bytes_per_token == kibibytes * 1024


def test_a_model_has_a_key_value_head() -> None:
    with pytest.raises(CostError, match="kv_heads of 'm' is below 1"):
        CostModel("m", preset("qwen3-8b").linear, 1, 1, 1, 0)
