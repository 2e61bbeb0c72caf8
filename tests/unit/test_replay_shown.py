"""The table stays within 80 columns; the picture shows what it says."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from rich.console import Console

from penelope.policy import POLICIES
from penelope.runtime.replay.colours import LOOKS, look
from penelope.runtime.replay.compare import COMPARED, Comparison, Ratio, ReplicaFigures, Summary
from penelope.runtime.replay.digits import thousands, three_digits
from penelope.runtime.replay.plot import draw, plot
from penelope.runtime.replay.table import WIDTH, fleet_table, legend, table

NAMES = list(POLICIES)


def summary(ttft: float = 2.0, units: float = 3e12, hits: float = 0.9) -> Summary:
    return Summary(
        requests=1000,
        ttft_mean_s=ttft,
        ttft_p50_s=ttft / 10,
        ttft_p99_s=ttft * 12,
        jct_mean_s=100.0,
        hit_rate=hits,
        computed_tokens=10**6,
        computed_units=2 * units,
        recomputed_units=units,
        evicted_tokens=10**6,
        holes_per_request=0.1,
        mostly_lost_requests=7,
        mostly_lost_units=units / 4,
        over_evicted_tokens=5,
        device_hit_tokens=8 * 10**6,
        host_hit_tokens=10**6,
        promoted_tokens=10**6,
        demoted_tokens=2 * 10**6,
        swapped_tokens=10**6 // 2,
        swapped_share=0.5,
        nodes_max=300,
        policy_seconds=1.0,
        busy_max=1.0,
        rerouted_requests=0,
    )


def comparison(
    policies: dict[str, Summary], groups: int = 1, ratio: float | None = 0.8
) -> Comparison:
    first = next(iter(policies))
    return Comparison(
        policies,
        [policies] * groups,
        {
            name: dict.fromkeys(
                COMPARED, Ratio(1.0 if name == first else ratio, groups - groups // 3, groups)
            )
            for name in policies
        },
        0,
        {name: [ReplicaFigures(500, 0.9, 10**6, 10**6, 50.0)] for name in policies},
    )


def test_a_fleet_is_shown_by_its_extremes() -> None:
    found = comparison({"penelope": replace(summary(), busy_max=1.257, rerouted_requests=3)})
    uneven = [ReplicaFigures(n, n / 10_000, 1, 1, 1.0) for n in (4000, 9000, 500)]
    console = Console(file=StringIO(), width=WIDTH)
    console.print(fleet_table(replace(found, replicas={"penelope": uneven})))
    assert isinstance(console.file, StringIO)
    last = console.file.getvalue().splitlines()[-1]
    assert last.split() == "penelope 500 to 9,000 5.0 to 90.0% 1.26 3".split()


def rendered(result: Comparison) -> list[str]:
    """The lines of the table where there is room for more."""
    console = Console(file=StringIO(), width=200)
    console.print(table(result))
    output = console.file
    assert isinstance(output, StringIO)
    return output.getvalue().splitlines()


# --- table ----------------------------------------------------------------------------------------

USUAL = dict.fromkeys(NAMES, summary())
HUGE = dict.fromkeys(NAMES, summary(ttft=8765.4, units=9.876e17, hits=1.0))
TINY = dict.fromkeys(NAMES, summary(ttft=0.0012, units=0.0, hits=0.0))


@pytest.mark.parametrize("groups", [1, 4, 15, 99])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 9.99, 123.4, None])
@pytest.mark.parametrize("policies", [USUAL, HUGE, TINY], ids=["usual", "huge", "tiny"])
def test_the_table_fits_80_columns(
    groups: int, ratio: float | None, policies: dict[str, Summary]
) -> None:
    lines = rendered(comparison(policies, groups, ratio))
    assert max(map(len, lines)) <= WIDTH == 80
    assert not any("…" in line for line in lines)
    assert [line.split()[0] for line in lines[2:]] == NAMES


def test_a_row_says_what_changed_and_in_how_many_groups() -> None:
    policies = {"sglang-lru": summary(), "penelope": summary(1.55, 2.5e12, 0.891)}
    heading, _, first, second = rendered(comparison(policies, 15, 0.775))
    assert heading.split("  ")[0] == "policy"
    assert first.split() == ["sglang-lru", "2.00", "0.20", "24.0", "90.0%", "3.00", "T", "0.10"]
    assert second.split() == [
        *("penelope", "1.55", "-22%", "10/15", "0.15", "18.6", "89.1%", "2.50", "T", "-22%"),
        "0.10",
    ]


def test_one_group_has_no_counts_and_a_warning() -> None:
    result = comparison(USUAL, 1)
    assert "1/1" not in "".join(rendered(result))
    assert "use --replicates" in legend(result)
    assert "geometric mean over 4 disjoint groups" in legend(comparison(USUAL, 4))
    assert "Changes" not in legend(comparison({"penelope": summary()}))


def test_an_undefined_ratio_is_a_dash() -> None:
    assert rendered(comparison(TINY, 4, None))[3].split()[2] == "-"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0.00"),
        (0.004, "0.00"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (99.96, "100"),
        (12345, "12345"),
    ],
)
def test_three_digits(value: float, shown: str) -> None:
    assert three_digits(value) == shown


@pytest.mark.parametrize(("value", "power"), [(0, 0), (999, 0), (1000, 1), (2.5e12, 4), (1e30, 6)])
def test_thousands(value: float, power: int) -> None:
    assert thousands(value) == power


# --- picture --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_the_picture_has_a_bar_a_policy_and_room_for_every_label(count: int) -> None:
    names = [*NAMES, "further-1", "further-2", "further-3"]
    chosen = ["penelope"] if count == 1 else names[:count]
    figure = draw(comparison({n: summary(2.0 + i) for i, n in enumerate(chosen)}, 4), "title")
    figure.draw_without_rendering()
    for axes in figure.axes:
        bars = axes.patches
        assert len(bars) == count
        expected = [to_rgb(look(name).colour) for name in chosen]
        assert [to_rgb(bar.get_facecolor()[:3]) for bar in bars] == expected
        assert axes.get_legend() is None
        frame = axes.get_window_extent()
        boxes = [text.get_window_extent() for text in axes.texts]
        assert len(boxes) == count
        for box in boxes:
            assert frame.x0 <= box.x0
            assert box.x1 <= frame.x1
    assert figure.axes[2].get_xlim() == (0, 100)


def test_labels_do_not_run_into_a_median_beyond_the_mean() -> None:
    one = summary(1.0)
    late = replace(one, ttft_p50_s=5.0)
    figure = draw(comparison({"penelope": late}), "title")
    figure.draw_without_rendering()
    times = figure.axes[0]
    tick = times.transData.transform((5.0, 0))[0]
    assert times.texts[0].get_window_extent().x0 > tick


def test_shares_are_written_where_they_can_be_read() -> None:
    figure = draw(comparison({"sglang-lru": summary(hits=0.05), "penelope": summary(hits=1.0)}), "")
    small, large = figure.axes[2].texts
    assert (small.get_text(), small.get_color()) == ("5.0 %", "black")
    assert (large.get_text(), large.get_color()) == ("100.0 %", "white")


def test_the_title_is_text_whatever_the_file_is_called(tmp_path: Path) -> None:
    title = "a$b_{c$.jsonl " * 20
    plot(comparison(USUAL, 4), title, tmp_path / "out.png")
    figure = draw(comparison(USUAL, 4), title)
    shown = figure.get_suptitle()
    assert shown.count("a$b_{c$.jsonl") == 20
    assert max(map(len, shown.splitlines())) <= 150
    assert "geometric mean over 4 disjoint groups" in shown


def test_the_unit_of_cost_follows_the_values() -> None:
    figure = draw(comparison({"penelope": summary(units=5e9)}), "title")
    assert "10⁹ query-key pairs" in figure.axes[1].get_title()
    assert figure.axes[1].texts[0].get_text() == "5.00"


@pytest.mark.parametrize(
    ("suffix", "begins"),
    [(".png", b"\x89PNG"), (".PNG", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")],
)
def test_the_suffix_chooses_the_format(suffix: str, begins: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"out{suffix}"
    plot(comparison(USUAL), "title", path)
    assert path.read_bytes().startswith(begins)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    plot(comparison(USUAL, 4), "title", tmp_path / "out.png")
    pixels = imread(tmp_path / "out.png")[:, :, :3]
    height, width, _ = pixels.shape
    assert width > 1200
    assert height > 400
    for colour in (LOOKS[name].colour for name in POLICIES):
        near = abs(pixels - to_rgb(colour)).max(axis=2) < 0.01
        assert near.sum() > 10_000, colour
