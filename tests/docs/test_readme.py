"""What the README says about the code is what the code is."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from penelope import cli
from penelope.commands.group import penelope as group
from penelope.cost import predicted_speedup, preset
from penelope.policy import POLICIES
from penelope.sglang_adapter import options
from tests.docs.documents import README, ROOT, blocks, table

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def readme() -> str:
    return README.read_text()


def test_the_library_example_runs_and_prints_what_is_shown() -> None:
    (example,) = blocks(README, "python")
    shown = readme().split("It prints:")[1].split("```text\n")[1].split("```")[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "README.md", "exec"), {"__name__": "example"})
    assert printed.getvalue() == shown


def test_policies() -> None:
    listed = {name: (position, size) for name, position, size, _ in table(README, "policy")}
    assert list(listed) == list(POLICIES)
    assert listed == {name: (p.value, g.value) for name, (p, g) in POLICIES.items()}


def test_commands() -> None:
    listed = {command: extra for command, _, extra in table(README, "command")}
    assert {name.removeprefix("penelope ") for name in listed} == set(cli.SUBCOMMANDS)
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert {extra.strip("[]") for extra in listed.values()} <= set(extras)


def command_lines() -> list[str]:
    lines = [line for block in blocks(README, "sh") for line in block.splitlines()]
    return [line.partition("  #")[0] for line in lines if line.strip()]


def test_shown_command_lines_are_understood() -> None:
    seen = 0
    for line in command_lines():
        program, *arguments = shlex.split(line)
        if program != "penelope" or arguments[0] in {"serve", "verify"}:
            continue
        command = group.commands.get(arguments[0]) or group.get_command(
            click.Context(group), arguments[0]
        )
        assert command is not None, line
        command.make_context(arguments[0], arguments[1:])  # raises for an option that is none
        seen += 1
    assert seen >= 3


def test_make_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)", readme(), re.MULTILINE))
    assert {a or b for a, b in named} - targets == set()


def test_layout_names_every_package_and_folder() -> None:
    listed = {row[0] for row in table(README, "path")}
    assert all((ROOT / name).is_dir() for name in listed)
    packages = {f"penelope/{p.parent.name}/" for p in (ROOT / "penelope").glob("*/__init__.py")}
    assert {name for name in listed if name.startswith("penelope/")} == packages
    ignored = {"penelope", "build", "dist", "out", "htmlcov"}
    top = {f"{p.name}/" for p in ROOT.iterdir() if p.is_dir() and p.name[0] not in "._"}
    assert {name for name in listed if name.count("/") == 1} == top - {f"{n}/" for n in ignored}


def test_installs_are_the_extras() -> None:
    named = {row[0] for row in table(README, "install")}
    extras = set(PYPROJECT["project"]["optional-dependencies"])
    used = {e for name in named for e in re.findall(r"\w+", name.partition("[")[2])}
    assert used == extras - {"dev"}
    pinned = re.findall(r"SGLang (\d+\.\d+\.\d+)", readme())
    assert {f"sglang=={version}" for version in pinned} <= set(
        PYPROJECT["project"]["optional-dependencies"]["sglang"]
    )


def test_the_predicted_speed_up() -> None:
    found = re.search(
        r"30 % of ([\d,]+) tokens evicted,\s+`penelope cost`\s+predicts .* ([\d.]+) times",
        readme(),
        re.DOTALL,
    )
    assert found is not None
    context = int(found[1].replace(",", ""))
    predicted = predicted_speedup(preset("qwen3-8b"), context, 0.3, 2048, 512)
    assert found[2] == f"{predicted:.2f}"


def test_python_version() -> None:
    required = PYPROJECT["project"]["requires-python"].removeprefix(">=")
    assert f"Python {required} or newer" in readme()


def test_serving_is_chosen_by_the_registered_name() -> None:
    assert f"--radix-cache-backend {options.BACKEND_NAME}" in readme()


def test_readme_is_short() -> None:
    assert len(readme().splitlines()) <= 280


@pytest.mark.parametrize("line", ["LICENSE", "Apache-2.0"])
def test_licence(line: str) -> None:
    assert line in readme()
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in Path(ROOT / "LICENSE").read_text()
