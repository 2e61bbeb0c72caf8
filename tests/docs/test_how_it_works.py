"""The page for engine developers names what the core has, all of it."""

from __future__ import annotations

import re
from typing import get_args

from penelope import policy
from penelope.policy import Config, Effect, PenelopeError, Refused
from tests.docs.documents import HOW_IT_WORKS, table


def test_effects() -> None:
    assert [row[0] for row in table(HOW_IT_WORKS, "effect")] == [
        kind.__name__ for kind in sorted(get_args(Effect), key=ORDER.index)
    ]


ORDER = [
    policy.Split, policy.Merge, policy.Free, policy.Adopt, policy.Surplus, policy.Remove,
    policy.Reset, policy.Copy, policy.Moved, policy.Unmoved,
]  # fmt: skip


def test_errors() -> None:
    """Every error that a call of the core can end in."""
    listed = {row[0] for row in table(HOW_IT_WORKS, "error")}
    public = {
        name
        for name in policy.__all__
        if isinstance(kind := getattr(policy, name), type) and issubclass(kind, PenelopeError)
    }
    assert listed == public - {PenelopeError.__name__, Refused.__name__}


def test_transitions() -> None:
    """Every function of the core that makes a state or reads one is explained."""
    text = HOW_IT_WORKS.read_text()
    functions = {
        name
        for name in policy.__all__
        if callable(getattr(policy, name)) and not isinstance(getattr(policy, name), type)
    }
    helpers = {
        "empty",
        "match",
        "pack",
        "named_policy",
        "private_span",
        "Key",
        "MoveId",
        "NodeId",
        "ReceiptId",
        "Ticket",
    }
    missing = {n for n in functions - helpers if f"`{n}" not in text and f"**`{n}(" not in text}
    assert not missing


def test_names_that_look_like_code_exist() -> None:
    text = HOW_IT_WORKS.read_text()
    fields = {name for name in dir(policy.Plan) if not name.startswith("_")}
    fields |= set(Config.__dataclass_fields__)
    store = {"allocate", "free", "copy"}
    for name in ("holes", "new", "awaits", "allocate", "evict", "admissible", "page_size"):
        assert f"`{name}`" in text
        assert name in fields | store
    for called in re.findall(r"\*\*`(\w+)\(", text):
        assert hasattr(policy, called)
