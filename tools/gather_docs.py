"""Gather the pages of the documentation into one folder, as they lie in the repository.

    python tools/gather_docs.py build/docs

Beside them lie all files that they link to, and a reference page for each package, which
mkdocstrings fills from the docstrings.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Final

from penelope import policy

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "spec/README.md", "docs/**/*.md")
STYLE = ROOT / "docs" / "site.css"
GROUPS: Final = {
    "A request, from its plan to its release": ("planning", "locking", "storing"),
    "Keys and matches": ("keys", "matching"),
    "Eviction, and whose turn it is": ("eviction", "queueing", "walk"),
    "Moves between the tiers": ("moves",),
    "Configuration": ("config",),
    "What a shell must do: effects": ("effects",),
    "What is refused: errors": ("errors",),
    "State and ids": ("state",),
}
"""The public names of the core, by the module that defines them."""

PACKAGES: Final = {
    "runtime": (
        "The runtime",
        "The two shells around the core, and what they ask of memory.",
        "penelope/runtime",
        (
            "cache",
            "store",
            "mirror",
            "exchange",
            "keeping",
            "slots",
            "gauges",
            "announcing",
            "announcement",
            "symbolic",
        ),
    ),
    "routing": (
        "Routing",
        "How it is used: [routers](../docs/routers.md).",
        "penelope/routing",
        ("scoring", "index"),
    ),
    "testing": (
        "For tests of your own",
        "How they are used: [the conformance suite](../docs/conformance.md).",
        "penelope/testing",
        ("suite", "conformance", "announced", "audit", "inspect", "serving", "watch", "errors"),
    ),
    "specification": (
        "The specification",
        "What it says in words: [the specification](../spec/README.md).",
        "spec/penelope_spec",
        ("invariants", "facts", "refusals", "room", "steps", "transitions", "theorems"),
    ),
}


def gather(target: Path) -> None:
    """Write the folder anew."""
    shutil.rmtree(target, ignore_errors=True)
    pages = {page for pattern in PAGES for page in ROOT.glob(pattern)}
    linked = {found for page in pages for found in links(page)}
    for path in pages | linked | {STYLE}:
        copy = target / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    reference = target / "reference"
    reference.mkdir()
    (reference / "policy.md").write_text(public_core(), encoding="utf-8")
    for name, (title, text, folder, modules) in PACKAGES.items():
        package = folder.removeprefix("spec/").replace("/", ".")
        shown = "\n\n".join(f"::: {package}.{module}" for module in modules)
        (reference / f"{name}.md").write_text(f"# {title}\n\n{text}\n\n{shown}\n", encoding="utf-8")


def public_core() -> str:
    """A page of what `penelope.policy` exports.  Raises `KeyError` for a name without a group."""
    group_of = {module: group for group, modules in GROUPS.items() for module in modules}
    names: dict[str, list[str]] = {group: [] for group in GROUPS}
    for name in sorted(policy.__all__, key=str.swapcase):  # verbs first
        module = getattr(getattr(policy, name), "__module__", "penelope.policy.config")
        if not module.startswith("penelope.policy."):
            module = "penelope.policy.state"  # a constant, or a new type
        names[group_of[module.removeprefix("penelope.policy.")]].append(name)
    parts = ["# The policy core", "Every name that `penelope.policy` exports."]
    for group, found in names.items():
        parts.append(f"## {group}")
        parts += [
            f"::: penelope.policy.{name}\n    options: {{heading_level: 3}}" for name in found
        ]
    return "\n\n".join(parts) + "\n"


def links(page: Path) -> set[Path]:
    """Files of the repository that a page links to or shows."""
    found = set()
    for target in re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8")):
        if "://" not in target and (path := (page.parent / target).resolve()).is_file():
            found.add(path)
    return found


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
