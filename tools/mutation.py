"""Mutation testing of the policy core: change it a little, once for each mutant, and run its tests.

    python tools/mutation.py               run, or go on with a run that was interrupted
    python tools/mutation.py --survivors   run again, on the tests as they are, what survived and is
                                           not listed as equivalent
    python tools/mutation.py --report      say what the last run found

mutmut makes the mutants and runs the tests, in a copy under build/mutation.  What survives must be
listed with its reason in mutation_survivors.toml.  Exit status: 0 when the list is right and the
score good enough, 1 when not, 2 when the run could not be carried out.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
WORK: Final = ROOT / "build" / "mutation"
PACKAGES: Final = ("policy", "cost")
"""Those that are mutated.  No two of their modules have one name."""
LISTED: Final = Path(__file__).with_name("mutation_survivors.toml")
LEAST_SCORE: Final = 95.0
MEMORY: Final = 6 << 30
"""Bytes: a mutant that never stops growing ends in a `MemoryError`."""

TESTS: Final = (
    "tests/cases",
    *(f"tests/unit/test_policy_{name}.py" for name in ("split", "requests", "eviction", "config")),
    *(f"tests/unit/test_policy_{name}.py" for name in ("messages", "moves")),
    *(f"tests/unit/test_{name}.py" for name in ("cost", "cost_messages")),
    *(f"tests/property/test_{name}.py" for name in ("keys", "cost", "cuts", "ticks", "shrunk")),
    *(f"tests/property/test_{name}.py" for name in ("walks", "two_tiers", "machine", "shatter")),
    *(f"tests/property/test_{name}.py" for name in ("exact_refill",)),
    *(f"tests/spec/test_{name}.py" for name in ("exchange", "refusals")),
)
LEFT_OUT: Final = (
    # They count witnesses, evaluate lemmas or repeat a thousand times: slow, and notice no more.
    "tests/property/test_machine.py::test_the_machine_reaches_what_matters",
    "tests/property/test_two_tiers.py::test_what_is_checked_happens",
    "tests/spec/test_exchange.py::test_every_exchange_goes_as_the_lemmas_say",
    "tests/cases/test_cases_store.py::test_case_43_a_thousand_exchanges_between_equal_tiers_leave_the_books_right",
    "tests/cases/test_cases_scale.py::test_case_68_a_deep_tree_can_be_shown_compared_copied_hashed_and_pickled",
)
OPTIONS: Final = (
    *("-m", "not slow and not sglang and not gpu", "--hypothesis-profile=mutation"),
    *("-p", "no:cacheprovider", "--timeout=20"),
)
LEFT: Final = frozenset({"survived", "untested", "unclear"})


class Mutant(NamedTuple):
    """Named by what it changes, so that the name outlives changes elsewhere."""

    function: str
    """module.function or module.Class.method"""
    line: str
    """What the mutant takes away; white space made even."""
    mutant: str
    """What it puts there; empty if nothing."""


# --- the copy -----------------------------------------------------------------------------------


def with_plain_getters(source: str) -> str:
    """The same module with every property as a plain method beside it.

    mutmut leaves decorated functions alone, and properties hold much of the core's arithmetic.
    """
    lines = source.splitlines()
    found = [
        function
        for cls in ast.parse(source).body
        if isinstance(cls, ast.ClassDef)
        for function in cls.body
        if isinstance(function, ast.FunctionDef)
        and [ast.unparse(d) for d in function.decorator_list] == ["property"]
    ]
    for function in reversed(found):
        name, end = function.name, function.end_lineno
        assert end is not None
        head = lines[function.lineno - 1]
        lines.insert(end, f"    {name} = property(lambda self: self.get_{name}())")
        lines[function.lineno - 1] = head.replace(f"def {name}(", f"def get_{name}(")
        del lines[function.decorator_list[0].lineno - 1]
    return "\n".join(lines) + "\n"


def settings() -> str:
    """What mutmut is told, as a table for pyproject.toml."""
    selected = [*TESTS, *(f"--deselect={test}" for test in LEFT_OUT)]
    return (
        "\n[tool.mutmut]\n"
        'source_paths = ["penelope"]\n'
        f"only_mutate = {json.dumps([f'penelope/{package}/*' for package in PACKAGES])}\n"
        'also_copy = ["spec"]\n'
        f"pytest_add_cli_args = {json.dumps(OPTIONS)}\n"
        f"pytest_add_cli_args_test_selection = {json.dumps(selected)}\n"
        "timeout_multiplier = 3.0\n"
        "timeout_constant = 10.0\n"
        "use_git_change_detection = false\n"
        "use_setproctitle = false\n"
    )


def contents() -> Iterator[tuple[str, str]]:
    """Every file of the copy and its text."""
    for folder in ("penelope", "spec", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix not in {".py", ".toml", ".typed"} or "sglang" in name:
                continue
            text = path.read_text(encoding="utf-8")
            core = name.startswith(tuple(f"penelope/{package}/" for package in PACKAGES))
            yield name, with_plain_getters(text) if core else text
    yield "pyproject.toml", (ROOT / "pyproject.toml").read_text(encoding="utf-8") + settings()


def prepare(*, keep: bool) -> None:
    """Bring the copy up to date; what was found about another state of it goes, unless kept."""
    files = dict(contents())
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    stamp = WORK / "digest"
    if WORK.exists() and not keep and (not stamp.exists() or stamp.read_text() != digest):
        print("the core or its tests have changed: starting over", flush=True)
        shutil.rmtree(WORK)
    for name, text in files.items():
        path = WORK / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue  # its time of change tells mutmut whether to make its mutants again
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in [p for name in ("penelope", "spec", "tests") for p in (WORK / name).rglob("*.py")]:
        if path.relative_to(WORK).as_posix() not in files:
            path.unlink()
    stamp.write_text(digest)


# --- the run ------------------------------------------------------------------------------------


def mutmut(names: Sequence[str] = ()) -> None:
    """Run what has no verdict yet, or these, one at a time."""
    log = WORK / "log"
    program = str(Path(sys.executable).with_name("mutmut"))
    command = [program, "run", "--max-children", "1", *names]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    with log.open("w") as output:
        try:
            running = subprocess.Popen(
                command,
                cwd=WORK,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_be_modest,  # noqa: PLW1509  (no threads here)
            )
        except FileNotFoundError:
            raise SystemExit(f"{program} is missing: run 'make mutation'") from None
    every, end = (5, "\r") if sys.stdout.isatty() else (60, "\n")
    try:
        while running.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(every)
            seen = Counter(verdict for verdict in verdicts().values() if verdict != "waits")
            print(f"so far {_counted(seen)}", end=end, flush=True)
    except KeyboardInterrupt:
        running.terminate()
        running.wait()
        raise SystemExit("\ninterrupted: run it again to go on") from None
    print()
    if running.returncode:
        print(log.read_text(errors="replace")[-3000:])
        raise SystemExit(2)


def _be_modest() -> None:
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _verdict(exit_code: int | None) -> str:
    match exit_code:
        case None | 2:
            return "waits"
        case 0:
            return "survived"
        case 5 | 33:
            return "untested"
        case 36 | -24 | 24 | 152 | 255:
            return "timed out"
        case 1 | 3:
            return "killed"
        case _:
            return "unclear"


def verdicts() -> dict[str, str]:
    """What is known of each of mutmut's mutants, by mutmut's name."""
    known: dict[str, str] = {}
    for meta in sorted((WORK / "mutants" / "penelope").glob("*/*.meta")):
        try:
            codes = json.loads(meta.read_text())["exit_code_by_key"]
        except json.JSONDecodeError:  # it is being written
            continue
        known |= {name: _verdict(code) for name, code in codes.items()}
    return known


# --- the names ----------------------------------------------------------------------------------


class _Sources:
    """The functions of the mutated modules, mutants and originals."""

    def __init__(self) -> None:
        self._modules: dict[str, tuple[list[str], dict[str, list[int]]]] = {}

    def lines(self, module: str, function: str, plain: str) -> list[str]:
        """Those of one function, under its plain name."""
        if module not in self._modules:
            (path,) = (
                WORK / "mutants" / "penelope" / package / f"{module}.py"
                for package in PACKAGES
                if (ROOT / "penelope" / package / f"{module}.py").exists()
            )
            spans = json.loads(path.with_suffix(".py.spans").read_text())["spans"]
            self._modules[module] = path.read_text(encoding="utf-8").splitlines(), spans
        text, spans = self._modules[module]
        start, end = spans[function]
        return [line.replace(f" {function}(", f" {plain}(") for line in text[start - 1 : end]]


def named(name: str, sources: _Sources) -> Mutant:
    """The mutant that mutmut calls `penelope.PACKAGE.MODULE.x_FUNCTION__mutmut_7`."""
    _, _, module, function = name.split(".", 3)
    base = function.rpartition("__mutmut_")[0]  # x_FUNCTION, xǁCLASSǁMETHOD
    path = base[2:].replace("ǁ", ".").replace(".get_", ".")
    plain = path.rpartition(".")[2]
    original = sources.lines(module, f"{base}__mutmut_orig", plain)
    mutated = sources.lines(module, function, plain)
    changed = [
        line
        for line in difflib.unified_diff(original, mutated, lineterm="", n=0)
        if line[0] in "+-" and not line.startswith(("---", "+++"))
    ]
    return Mutant(
        f"{module}.{path}",
        _even(line[1:] for line in changed if line[0] == "-"),
        _even(line[1:] for line in changed if line[0] == "+"),
    )


def _even(lines: Iterable[str]) -> str:
    return re.sub(r"\s+", " ", " ".join(lines)).strip()


# --- the list -----------------------------------------------------------------------------------


class Survivor(NamedTuple):
    mutant: Mutant
    equivalent: bool
    """Whether it does what the original does, in every state that there can be."""
    why: str


def listed() -> list[Survivor]:
    entries = tomllib.loads(LISTED.read_text(encoding="utf-8")).get("survivor", [])
    return [
        Survivor(Mutant(e["in"], e["line"], e["mutant"]), e["equivalent"], e["why"])
        for e in entries
    ]


def complaints(survived: Collection[Mutant], known: Collection[Survivor]) -> list[str]:
    """What is wrong with the list: a survivor that it lacks, an entry that did not survive."""
    explained = {entry.mutant for entry in known}
    lacking = sorted(set(survived) - explained)
    stale = sorted(explained - set(survived))
    return [
        *(
            f"survived and is not listed: {m.function}\n  - {m.line}\n  + {m.mutant}"
            for m in lacking
        ),
        *(f"listed and did not survive: {m.function}\n  - {m.line}\n  + {m.mutant}" for m in stale),
    ]


def report() -> int:
    found = verdicts()
    seen = Counter(found.values())
    if seen["waits"]:
        print(f"{seen['waits']} of {seen.total()} mutants have not been run: run it again")
        return 2
    sources = _Sources()
    left = [named(name, sources) for name, v in found.items() if v in LEFT]
    wrong = complaints(left, listed())
    print(*wrong, sep="\n", end="\n\n" if wrong else "")
    modules = sorted({name.split(".")[2] for name in found})
    width = max(map(len, modules))
    for module in modules:
        own = Counter(v for name, v in found.items() if name.split(".")[2] == module)
        print(f"{module:{width}}  {_row(own)}")
    print(f"{'all':{width}}  {_row(seen)}")
    equivalent = {entry.mutant for entry in listed() if entry.equivalent}
    same = sum(mutant in equivalent for mutant in left)
    counted = seen.total() - same
    print(f"without the {same} that are equivalent: {100 * _killed(seen) / counted:.1f} %")
    score = 100 * _killed(seen) / seen.total()
    if score < LEAST_SCORE:
        print(f"the score is below {LEAST_SCORE} %: test more, or simplify")
    return 1 if wrong or score < LEAST_SCORE else 0


def _killed(seen: Counter[str]) -> int:
    return seen["killed"] + seen["timed out"]


def _row(seen: Counter[str]) -> str:
    return f"{_counted(seen)}, score {100 * _killed(seen) / seen.total():5.1f} %"


def _counted(seen: Counter[str]) -> str:
    left = sum(seen[verdict] for verdict in LEFT)
    return (
        f"{seen.total():4} mutants, {seen['killed']:4} killed, {seen['timed out']:2} timed out, "
        f"{left:3} survived"
    )


def main(arguments: list[str]) -> int:
    match arguments:
        case []:
            prepare(keep=False)
            mutmut()
        case ["--survivors"]:
            prepare(keep=True)
            sources, same = _Sources(), {entry.mutant for entry in listed() if entry.equivalent}
            left = [name for name, verdict in verdicts().items() if verdict in LEFT]
            if again := [name for name in left if named(name, sources) not in same]:
                mutmut(again)
            mutmut()  # what has changed since
        case ["--report"]:
            pass
        case _:
            print(__doc__)
            return 2
    return report()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
