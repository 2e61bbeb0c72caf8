"""All documents: links lead somewhere, records are numbered and listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penelope import policy
from tests.docs.documents import DECISIONS, README, ROOT, documents, table
from tools import gather_docs


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", documents(), ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        where, _, anchor = target.partition("#")
        if "://" in where:
            continue
        found = (path.parent / where).resolve() if where else path
        assert found.exists(), f"{name(path)} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            assert anchor in {
                re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-") for h in headings
            }


@pytest.mark.parametrize("path", documents(), ids=name)
def test_paths_that_are_named_exist(path: Path) -> None:
    named = re.findall(
        r"`((?:penelope|spec|tests|docs|tools|requirements)/[\w/.]+)`", path.read_text()
    )
    for target in named:
        assert (ROOT / target).exists(), f"{name(path)} names {target}"


def records() -> list[Path]:
    return sorted(p for p in DECISIONS.glob("*.md") if p.name != "README.md")


def test_decision_records_are_numbered_and_listed() -> None:
    listed = []
    for number, path in enumerate(records(), 1):
        assert path.name.startswith(f"{number:04}-")
        first = path.read_text().splitlines()[0]
        assert first.startswith(f"# {number}. ")
        listed.append([str(number), f"[{first.removeprefix(f'# {number}. ')}]({path.name})"])
    assert table(DECISIONS / "README.md", "record") == listed


@pytest.mark.parametrize("path", records(), ids=name)
def test_decision_records_have_three_parts_on_half_a_page(path: Path) -> None:
    text = path.read_text()
    parts = re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
    assert parts == ["Context", "Decision", "Consequence"]
    assert len(text.split()) <= 320


def test_records_that_are_referred_to_exist() -> None:
    numbers = {str(n) for n, _ in enumerate(records(), 1)}
    for path in records():
        assert set(re.findall(r"\brecord (\d+)", path.read_text())) <= numbers


def test_the_readme_leads_to_every_page() -> None:
    text = README.read_text()
    for page in ("docs/how-it-works.md", "docs/decisions/README.md", "docs/results/README.md"):
        assert f"({page})" in text


def test_the_reference_shows_every_public_name_of_the_core() -> None:
    page = gather_docs.public_core()
    shown = re.findall(r"^::: penelope\.policy\.(\w+)$", page, re.MULTILINE)
    assert sorted(shown) == sorted(policy.__all__)
    assert shown.index("plan") < shown.index("Plan")


def test_what_pages_link_to_is_gathered_with_them(tmp_path: Path) -> None:
    gather_docs.gather(tmp_path / "all")
    assert (tmp_path / "all" / "README.md").is_file()
    pages = [path for path in documents() if path.relative_to(ROOT).parts[0] != "tests"]
    for path in pages:
        assert (tmp_path / "all" / path.relative_to(ROOT)).is_file()
        for target in gather_docs.links(path):
            assert (tmp_path / "all" / target.relative_to(ROOT)).is_file()
