"""The contract names what exists, all of it, and importing the core brings nothing else."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys

import pytest

import penelope
from penelope import policy
from penelope.runtime.cache import Cache
from tests.docs.documents import DOCS, ROOT, table

CONTRACT = DOCS / "contract.md"


def test_the_front_door_is_what_the_page_says() -> None:
    first = table(CONTRACT, "import")[0][0]
    assert sorted(first.removeprefix("from penelope import ").split(", ")) == sorted(
        penelope.__all__
    )
    assert set(dir(penelope)) == set(penelope.__all__)
    for name in penelope.__all__:
        assert getattr(penelope, name) is not None
    with pytest.raises(AttributeError, match="module 'penelope' has no attribute 'Cash'"):
        penelope.Cash  # noqa: B018


def test_every_public_name_of_the_page_exists() -> None:
    for module, names in (
        ("penelope.runtime.store", "KVStore StoreError"),
        ("penelope.runtime.symbolic", "SymbolicStore Job WrongKV"),
        ("penelope.runtime.cache", "Cache Request Offered Moment ConcurrentUse"),
    ):
        for name in names.split():
            assert f"`{name}`" in CONTRACT.read_text()
            assert hasattr(importlib.import_module(module), name)


def test_every_verb_of_a_cache_is_listed() -> None:
    text = CONTRACT.read_text()
    public = {name for name in vars(Cache) if not name.startswith("_")}
    audits = {"resident", "arriving"}
    for name in public - audits:
        assert re.search(rf"`{name}\b", text), name
    for verb, _, _, raised in table(CONTRACT, "verb"):
        method, parameters = re.fullmatch(r"(\w+)\((.*)\)", verb).groups()  # type: ignore[union-attr]
        known = inspect.signature(getattr(Cache, method)).parameters
        assert {p.strip("= ") for p in parameters.split(",")} <= set(known)
        for error in re.findall(r"\w+", re.sub(r"\(\w+\)|`", "", raised)):
            assert issubclass(getattr(policy, error), policy.Refused)


def test_the_core_is_imported_alone() -> None:
    code = "import penelope.policy, sys; print(*sorted(m for m in sys.modules if 'penelope' in m))"
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT)},
    ).stdout.split()
    assert {name.split(".")[1] for name in found if "." in name} == {"policy"}
