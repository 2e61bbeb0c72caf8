"""Dashboard and alerts speak of metrics that exist, and of all of them."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import fields
from typing import Any

from penelope.cost import preset
from penelope.runtime.shadow import Tally
from penelope.sglang_adapter import statistics
from tests.docs.documents import DOCS

FOLDER = DOCS / "operations"
PAGE = (DOCS / "operations.md").read_text()
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
ALERTS = (FOLDER / "alerts.yml").read_text()

EXPORTED = {
    *(f"penelope_{name}_total" for name in statistics._HELP),
    *(f"penelope_{name}" for name in statistics._GAUGES),
    *(f"penelope_shadow_{field.name}_total" for field in fields(Tally)),
}


def named(text: str) -> set[str]:
    return set(re.findall(r"sglang:(penelope_\w+)", text))


def expressions() -> list[str]:
    return [t["expr"] for panel in DASHBOARD["panels"] for t in panel["targets"]]


def script() -> Any:
    spec = importlib.util.spec_from_file_location("dashboard", FOLDER / "dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_dashboard_is_what_the_script_makes() -> None:
    assert script().dashboard() == DASHBOARD


def test_every_metric_is_one_that_is_exported_and_every_one_is_shown() -> None:
    assert named(" ".join(expressions())) == EXPORTED
    assert named(ALERTS) < EXPORTED


def test_expressions_are_whole() -> None:
    told = [*expressions(), *re.findall(r"expr: (?:>-\n)?((?:.|\n)*?)\n\s+(?:for|labels):", ALERTS)]
    assert len(told) > 20
    for one in told:
        for opening, closing in ("()", "[]"):
            assert one.count(opening) == one.count(closing) > 0 or opening == "[", one
        # A counter is read as a rate or an increase, a gauge as it is.
        for function, inside in re.findall(r"(\w+)\(sglang:penelope_(\w+)", one):
            assert (function in ("rate", "increase")) == inside.endswith("_total"), one


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in DASHBOARD["panels"])
    assert all(len(p["description"]) > 15 for p in DASHBOARD["panels"])


def test_the_page_says_what_to_do_about_every_alert() -> None:
    alerts = re.findall(r"alert: (\w+)", ALERTS)
    rows = re.findall(r"^\| `(Penelope\w+)` \|", PAGE, re.MULTILINE)
    assert rows == alerts
    assert len(alerts) == ALERTS.count("summary:") == ALERTS.count("expr:")


def test_the_size_of_a_token_is_as_the_page_says() -> None:
    assert f"{preset('qwen3-8b').kv_bytes_per_token:,} bytes for Qwen3-8B" in PAGE
