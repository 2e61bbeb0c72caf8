"""The page on the policy's cost says what was measured."""

from __future__ import annotations

import json

from penelope.policy import POLICIES
from tests.docs.documents import RESULTS, results_script

page = results_script("policy_overhead")
KEPT = json.loads(page.RESULTS.read_text())
OURS, LRU, PYTHON, RUST = (
    "penelope",
    "sglang-lru",
    "RadixCache (Python)",
    "UnifiedRadixCache (Rust)",
)


def cost(size: str, leaves: str, arm: str, operation: str) -> tuple[float, float, float]:
    median, p99, mean = KEPT["costs"][size][leaves][arm][operation]
    return median, p99, mean


def test_tables_are_those_of_the_results() -> None:
    text = page.PAGE.read_text()
    assert text == page.rendered(text, KEPT)
    assert all(f"<!-- table {name} -->" in text for name in page.TABLES)


def test_results_are_of_a_whole_run_on_the_recorded_trace() -> None:
    assert KEPT["made"]["stream"]["recorded"] is True
    assert KEPT["made"]["stream"]["requests"] == 300
    assert set(KEPT["costs"]) == {"64", "1"}
    for sizes in KEPT["costs"].values():
        assert set(sizes) == {"1000", "10000", "50000"}
        for by_arm in sizes.values():
            assert set(by_arm) == {OURS, LRU, PYTHON, RUST}
            assert all(set(operations) == set(page.OPERATIONS) for operations in by_arm.values())
    assert {OURS, LRU} <= set(POLICIES)
    assert {run["policy"] for run in KEPT["replay"]["runs"]} == {OURS, LRU}


def test_what_the_page_says_in_words() -> None:
    for size, sizes in KEPT["costs"].items():
        for leaves in sizes:
            # Means too, which a rare long eviction moves.
            ours, rust = (cost(size, leaves, arm, "total") for arm in (OURS, RUST))
            assert ours[0] < rust[0]
            assert ours[2] < rust[2]
        evict = [cost(size, leaves, OURS, "evict")[0] for leaves in ("1000", "50000")]
        assert evict[1] < 1.5 * evict[0]  # "ours does not"
        rust_evict = [cost(size, leaves, RUST, "evict")[0] for leaves in ("1000", "50000")]
        assert rust_evict[1] > 5 * rust_evict[0]  # "grows as well"
    for leaves, ours_us, rust_us in (("1000", 13, 9), ("50000", 22, 14)):
        for arm, said in ((OURS, ours_us), (RUST, rust_us)):
            assert round(cost("64", leaves, arm, "evict")[1] / 200) == said
    assert max(run["nodes_max"] for run in KEPT["replay"]["runs"]) == 1049


def test_goals_are_all_shown_whether_met_or_not() -> None:
    text = page.PAGE.read_text()
    bars = [*KEPT["bars"], *KEPT["replay"]["bars"]]
    assert len(bars) >= 25
    for bar in bars:
        verdict = "met" if bar["met"] else "**missed**"
        assert f"| {bar['name']} | {bar['goal']} | {bar['figure']} | {verdict} |" in text


def test_the_file_is_small() -> None:
    assert (RESULTS / "policy-overhead.json").stat().st_size < 30_000
