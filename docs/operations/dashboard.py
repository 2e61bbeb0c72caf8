"""Makes the Grafana dashboard beside it: `python docs/operations/dashboard.py`.

A test compares the two, and every metric with those that the adapter exports.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent / "dashboard.json"
OURS = "sglang:penelope_"


def rate(name: str, over: str = "5m") -> str:
    return f"sum(rate({OURS}{name}_total[{over}]))"


def level(name: str) -> str:
    return f"sum({OURS}{name})"


def share(part: str, whole: str) -> str:
    return f"{part} / clamp_min({whole}, 1e-9)"


COMPUTED_AGAIN = rate("phantom_tokens")
REUSED = rate("reused_behind_hole_tokens")
SHADOW_COST, ENGINE_COST = rate("shadow_cost"), rate("shadow_engine_cost")

PANELS: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    (
        "Where KV is",
        "short",
        "Tokens of KV in each tier, and tokens whose KV is gone and whose history is kept.",
        {name: level(f"{name}_tokens") for name in ("device", "host", "hole")},
    ),
    (
        "What it may give up",
        "short",
        "Tokens that no running request uses. Near zero on the device, requests wait for others.",
        {
            "device": level("evictable_device_tokens"),
            "host": level("evictable_host_tokens"),
        },
    ),
    (
        "Lost for good",
        "short",
        (
            "Tokens a second whose last copy was dropped; of these, what went beyond the need, "
            "what a waiting request was going to use, and what had gone to the host and was not "
            "read there."
        ),
        {
            "dropped": rate("evicted_tokens"),
            "beyond the need": rate("over_evicted_tokens"),
            "wanted by the queue": rate("queued_evicted_tokens"),
            "unread on the host": rate("dropped_unread_tokens"),
        },
    ),
    (
        "What holes bring",
        "short",
        (
            "Tokens a second that phantom requests computed, and that were reused behind the "
            "holes: a cache without holes computes both. The second should be well above the "
            "first."
        ),
        {"computed in holes": COMPUTED_AGAIN, "reused behind them": REUSED},
    ),
    (
        "Phantom requests a second",
        "short",
        "Each takes a row of the request pool in the batch of the request it serves.",
        {"phantoms": rate("phantoms")},
    ),
    (
        "Between the tiers",
        "short",
        (
            "Tokens a second: to the host, to the device, and of these through the swap buffer, "
            "which means that both tiers were full."
        ),
        {
            "to the host": rate("demoted_tokens"),
            "to the device": rate("promoted_tokens"),
            "by exchange": rate("swapped_tokens"),
        },
    ),
    (
        "Copies that failed",
        "short",
        "Undone, and nothing is lost. More than none asks for a look at the host's memory.",
        {"failed": f"sum(increase({OURS}failed_moves_total[5m]))"},
    ),
    (
        "Whose turn it is",
        "short",
        (
            "A second: waiting requests whose history was spared, and histories that ended with "
            "their session and went first."
        ),
        {"spared": rate("spared_requests"), "retired": rate("retired_histories")},
    ),
    (
        "Shadow: recomputation spared",
        "percentunit",
        "What Penelope would have spared of what SGLang computed, by cost. Only in shadow mode.",
        {"spared": f"1 - {share(SHADOW_COST, ENGINE_COST)}"},
    ),
    (
        "Shadow: prompt tokens found",
        "percentunit",
        (
            "Of the prompts followed: found by SGLang's own cache, found by Penelope, and "
            "computed in holes by phantoms."
        ),
        {
            "SGLang": share(rate("shadow_engine_reused_tokens"), rate("shadow_prompt_tokens")),
            "Penelope": share(rate("shadow_reused_tokens"), rate("shadow_prompt_tokens")),
            "in holes": share(rate("shadow_refilled_tokens"), rate("shadow_prompt_tokens")),
        },
    ),
    (
        "Shadow: what it followed",
        "short",
        (
            "Requests a second that it followed and left out, outputs that it left out, and what "
            "it would have evicted, in thousands of tokens. With many left out it speaks of a "
            "part."
        ),
        {
            "followed": rate("shadow_requests"),
            "left out": rate("shadow_unfollowed_requests"),
            "outputs left out": rate("shadow_unfollowed_outputs"),
            "evicted, thousands": f"{rate('shadow_evicted_tokens')} / 1000",
        },
    ),
    (
        "Time to first token (SGLang)",
        "s",
        "What it is all for.",
        {
            name: "histogram_quantile("
            f"{quantile}, sum by (le) (rate(sglang:time_to_first_token_seconds_bucket[5m])))"
            for name, quantile in (("median", 0.5), ("99th percentile", 0.99))
        },
    ),
)


def dashboard() -> dict[str, Any]:
    """As Grafana imports it; the data source is asked for then."""
    source = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    panels = []
    for number, (title, unit, text, lines) in enumerate(PANELS):
        targets = [
            {"datasource": source, "expr": expr, "legendFormat": legend, "refId": chr(65 + at)}
            for at, (legend, expr) in enumerate(lines.items())
        ]
        panels.append(
            {
                "id": number + 1,
                "type": "timeseries",
                "title": title,
                "description": text,
                "datasource": source,
                "gridPos": {"h": 8, "w": 8, "x": number % 3 * 8, "y": number // 3 * 8},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "targets": targets,
            }
        )
    return {
        "__inputs": [
            {
                "name": "DS_PROMETHEUS",
                "label": "Prometheus",
                "type": "datasource",
                "pluginId": "prometheus",
            }
        ],
        "title": "Penelope",
        "uid": "penelope",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "panels": panels,
    }


if __name__ == "__main__":
    PAGE.write_text(json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n")
