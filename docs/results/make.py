"""Make everything that the documents say about recorded sessions, or only write it down again.

    python docs/results/make.py replay weka-500.jsonl.gz  # some ten minutes, then as below
    python docs/results/make.py tiers weka-500.jsonl.gz   # with a host: six minutes, ditto
    python docs/results/make.py demo                      # half a minute, then as below
    python docs/results/make.py tables                    # the tables, from the files
    python docs/results/make.py                           # says what there is, changes nothing

The results go to `weka-500.json`, `weka-500-tiers.json`, `weka-500.png` and `demo.txt` beside this
file, and from there to what stands between `<!-- table NAME -->` and `<!-- end -->` in the
documents named below.  Tests compare the documents with the files, and `demo.txt` with the demo.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import geometric_mean
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULTS = HERE / "weka-500.json"
TIER_RESULTS = HERE / "weka-500-tiers.json"
PICTURE = HERE / "weka-500.png"
DEMO = HERE / "demo.txt"
DOCUMENTS = (
    ROOT / "README.md",
    HERE / "README.md",
    ROOT / "docs/decisions/0007-shared-is-judged-now.md",
)

POLICIES = ("sglang-lru", "tail-block", "leaf-head-block", "private-head-node", "penelope")
TIER_POLICIES = (
    "sglang-hicache",
    "sglang-hicache-device-lpm",
    "sglang-hicache-block",
    "sglang-hicache-write-back",
    "sglang-hicache-write-back-block",
    "independent-tiers",
    "tail-block",
    "penelope",
)
COMMON = (
    "--format auto --sessions 24 --replicates 15 --max-context 131072 --shared-prefix all:15616 "
    "--model qwen3-8b"
)
DEVICE = 262_144
RUNS = {
    **{
        f"lpm-{n}": f"--scheduler lpm --concurrency {n} --device-tokens {DEVICE}"
        for n in (2, 4, 6, 8, 10, 12)
    },
    "fcfs-8": f"--scheduler fcfs --concurrency 8 --device-tokens {DEVICE}",
    "sticky-8": f"--scheduler lpm --concurrency 8 --device-tokens {DEVICE} --sticky-shared",
    "ample-8": "--scheduler lpm --concurrency 8 --device-tokens 4194304",
}
PICTURED = "lpm-8"
TIER_RUNS = {
    f"host-{host}": f"--scheduler lpm --concurrency 12 --device-tokens {DEVICE} "
    f"--host-tokens {tokens} --swap-tokens 1024 --host-gbps 50 --transfers {transfers}"
    for host, tokens, transfers in (
        ("half", DEVICE // 2, "overlapped"),
        ("equal", DEVICE, "overlapped"),
        ("serial", DEVICE, "serial"),
        ("four", 4 * DEVICE, "overlapped"),
    )
}
HOSTS = {
    "host-half": "half the device",
    "host-equal": "as large",
    "host-serial": "as large, `serial`",
    "host-four": "four times",
}

Run = dict[str, Any]


def command(name: str, trace: str) -> list[str]:
    """The arguments of `penelope` for one run."""
    policies, options = (
        (TIER_POLICIES, TIER_RUNS[name]) if name in TIER_RUNS else (POLICIES, RUNS[name])
    )
    common = [*COMMON.split(), "--policy", ",".join(policies)]
    return ["replay", "--trace", trace, *common, *options.split()]


def replay(trace: Path, names: Iterable[str], results: Path) -> None:
    """Run these, and keep what the documents use of it."""
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        for name in names:
            arguments = command(name, trace.name)
            sys.stdout.write(f"penelope {' '.join(arguments)}\n")
            sys.stdout.flush()
            # From the trace's own folder, so that no result names a place on this machine.
            subprocess.run(
                [sys.executable, "-m", "penelope", *arguments, "--json", str(out)]
                + (["--plot", str(PICTURE)] if name == PICTURED else []),
                cwd=trace.resolve().parent,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                check=True,
            )
            runs[name] = _kept(json.loads(out.read_text()), " ".join(["penelope", *arguments]))
    document = {
        "made": {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "machine": f"{os.cpu_count()} cores, {_processor()}, Python "
            f"{platform.python_version()}",
        },
        "runs": runs,
    }
    results.write_text(
        re.sub(r"\n {6,}|\n {5}(?=[\]}])", " ", json.dumps(document, indent=1)) + "\n"
    )


def demo_output() -> str:
    """The table that `penelope demo` prints in 80 columns, without its legend."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "penelope", "demo"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    shown = done.stdout.partition("\nTTFT:")[0]
    return "".join(f"{line.rstrip()}\n" for line in shown.rstrip().splitlines())


def _kept(result: Run, line: str) -> Run:
    """A run's totals and per-group changes, without times that differ from one run to another."""
    groups = [group["policies"] for group in result["replicates"]]
    return {
        "command": line,
        "sessions": result["config"]["sessions"] * len(groups) - result["refused_sessions"],
        "omitted": result["config"]["omitted"],
        "refused_sessions": result["refused_sessions"],
        "timing": result["config"]["timing"],
        "policies": {
            name: {
                field: short(value) for field, value in summary.items() if "policy_" not in field
            }
            for name, summary in result["policies"].items()
        },
        "groups": {
            name: {
                metric: [short(group[name][metric]) for group in groups]
                for metric in ("ttft_mean_s", "ttft_p50_s", "recomputed_units")
            }
            for name in result["policies"]
        },
    }


def short(value: Any) -> Any:
    """Six digits of a float: what a table shows, and a little more."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return found[1].strip() if found else platform.machine()


# Tables


def change(run: Run, metric: str, name: str, against: str = POLICIES[0]) -> tuple[float, int, int]:
    """Geometric mean of the per-group ratios less one, the groups that are better, the groups."""
    own, base = run["groups"][name][metric], run["groups"][against][metric]
    ratios = [a / b for a, b in zip(own, base, strict=True) if b] or [1.0]
    return geometric_mean(ratios) - 1, sum(a < b for a, b in zip(own, base, strict=True)), len(own)


def percent(run: Run, metric: str, name: str, against: str = POLICIES[0]) -> str:
    """A change as `−23 % (15/15)`."""
    mean, better, groups = change(run, metric, name, against)
    if not mean and not better:
        return "0 %"  # nothing happened at all
    size = f"{100 * mean:+.0f}".replace("-", "−")
    return f"{'0' if size in {'+0', '−0'} else size} % ({better}/{groups})"


def setting(name: str) -> str:
    scheduler, concurrency = name.split("-")
    said = {"lpm": "", "fcfs": ", `fcfs`", "sticky": ", `--sticky-shared`", "ample": ", ample KV"}
    return f"{concurrency}{said[scheduler]}"


def table(header: str, rows: Iterator[list[str]]) -> str:
    columns = header.count("|") + 1
    lines = [f"| {header} |", "|---|" + "---:|" * (columns - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def headline(runs: dict[str, Run]) -> str:
    def row(name: str) -> list[str]:
        run = runs[name]
        stock, ours = run["policies"]["sglang-lru"], run["policies"]["penelope"]
        return [
            setting(name),
            f"{stock['ttft_mean_s']:.2f} → {ours['ttft_mean_s']:.2f}",
            f"**{percent(run, 'ttft_mean_s', 'penelope')}**",
            percent(run, "ttft_mean_s", "tail-block"),
            f"{stock['ttft_p50_s']:.2f} → {ours['ttft_p50_s']:.2f}",
            percent(run, "recomputed_units", "penelope"),
            f"{100 * stock['hit_rate']:.1f} → {100 * ours['hit_rate']:.1f} %",
        ]

    header = (
        "sessions at a time | mean TTFT, s | change | `tail-block` alone | median TTFT, s "
        "| recompute cost | hit rate"
    )
    return table(header, (row(name) for name in runs if not name.startswith("sticky")))


def by_policy(metric: str) -> Callable[[dict[str, Run]], str]:
    def made(runs: dict[str, Run]) -> str:
        header = "sessions at a time | " + " | ".join(f"`{name}`" for name in POLICIES[1:])
        header += " | `penelope` against `tail-block`"
        rows = (
            [
                setting(name),
                *(percent(run, metric, policy) for policy in POLICIES[1:]),
                percent(run, metric, "penelope", "tail-block"),
            ]
            for name, run in runs.items()
        )
        return table(header, rows)

    return made


def sticky(runs: dict[str, Run]) -> str:
    """The switch changes the two policies that walk towards the root."""
    header = "change against `sglang-lru` | judged now | sticky"
    rows = (
        [f"{what}, `{name}`", *(percent(runs[run], metric, name) for run in ("lpm-8", "sticky-8"))]
        for metric, what in (("ttft_mean_s", "mean TTFT"), ("recomputed_units", "recompute cost"))
        for name in ("penelope", "private-head-node")
    )
    return table(header, rows)


def absolute(runs: dict[str, Run]) -> str:
    header = (
        "sessions at a time, policy | mean | median | p99 TTFT, s | JCT, s | hit rate "
        "| recomputed, 10¹² units | evicted, 10⁶ tokens | holes a request | nodes at most"
    )
    rows = (
        [
            f"{setting(name)}, `{policy}`",
            f"{s['ttft_mean_s']:.2f}",
            f"{s['ttft_p50_s']:.2f}",
            f"{s['ttft_p99_s']:.1f}",
            f"{s['jct_mean_s']:.0f}",
            f"{100 * s['hit_rate']:.1f} %",
            f"{s['recomputed_units'] / 1e12:.2f}",
            f"{s['evicted_tokens'] / 1e6:.1f}",
            f"{s['holes_per_request']:.3f}",
            f"{s['nodes_max']:,}",
        ]
        for name, run in runs.items()
        for policy, s in run["policies"].items()
    )
    return table(header, rows)


def demo(runs: dict[str, Run]) -> str:
    del runs
    return f"```text\n{DEMO.read_text()}```"


def commands(runs: dict[str, Run]) -> str:
    return "\n".join(["```", *(run["command"] for run in runs.values()), "```"])


def tier_runs() -> dict[str, Run]:
    found: dict[str, Run] = json.loads(TIER_RESULTS.read_text())["runs"]
    return found


def tiers_headline(runs: dict[str, Run]) -> str:
    del runs
    header = (
        "host | mean TTFT, s: write-through → `penelope` | against write-through "
        "| against write-back by blocks | against `independent-tiers`"
    )

    def row(name: str, run: Run) -> list[str]:
        mean = [run["policies"][p]["ttft_mean_s"] for p in (TIER_POLICIES[0], "penelope")]
        against = (TIER_POLICIES[0], "sglang-hicache-write-back-block", "independent-tiers")
        first, *others = (percent(run, "ttft_mean_s", "penelope", p) for p in against)
        return [HOSTS[name], f"{mean[0]:.2f} → {mean[1]:.2f}", f"**{first}**", *others]

    return table(header, (row(*item) for item in tier_runs().items()))


def tiers_by_policy(metric: str) -> Callable[[dict[str, Run]], str]:
    def made(runs: dict[str, Run]) -> str:
        del runs
        found = tier_runs()
        header = "policy | " + " | ".join(HOSTS[name] for name in found)
        rows = (
            [f"`{policy}`", *(percent(r, metric, policy, TIER_POLICIES[0]) for r in found.values())]
            for policy in TIER_POLICIES[1:]
        )
        return table(header, rows)

    return made


def tiers_absolute(runs: dict[str, Run]) -> str:
    del runs
    header = (
        "host, policy | mean | median | p99 TTFT, s | hits: device | host "
        "| recomputed, 10¹² units | promoted | demoted, 10⁶ tokens | through the buffer | nodes"
    )

    def row(name: str, policy: str, s: Run) -> list[str]:
        prompts = s["device_hit_tokens"] + s["host_hit_tokens"] + s["computed_tokens"]
        core = policy in {"tail-block", "penelope"}
        return [
            f"{HOSTS[name]}, `{policy}`",
            f"{s['ttft_mean_s']:.2f}",
            f"{s['ttft_p50_s']:.2f}",
            f"{s['ttft_p99_s']:.1f}",
            f"{100 * s['device_hit_tokens'] / prompts:.1f} %",
            f"{100 * s['host_hit_tokens'] / prompts:.1f} %",
            f"{s['recomputed_units'] / 1e12:.2f}",
            f"{s['promoted_tokens'] / 1e6:.0f}",
            f"{s['demoted_tokens'] / 1e6:.0f}",
            f"{100 * s['swapped_share']:.0f} %" if core else "–",
            f"{s['nodes_max']:,}",
        ]

    rows = (
        row(name, policy, s)
        for name, run in tier_runs().items()
        for policy, s in run["policies"].items()
    )
    return table(header, rows)


def tiers_commands(runs: dict[str, Run]) -> str:
    del runs
    return commands(tier_runs())


TABLES: dict[str, Callable[[dict[str, Run]], str]] = {
    "demo": demo,
    "headline": headline,
    "mean TTFT": by_policy("ttft_mean_s"),
    "median TTFT": by_policy("ttft_p50_s"),
    "recompute cost": by_policy("recomputed_units"),
    "sticky": sticky,
    "absolute": absolute,
    "commands": commands,
    "tiers headline": tiers_headline,
    "tiers mean TTFT": tiers_by_policy("ttft_mean_s"),
    "tiers recompute cost": tiers_by_policy("recomputed_units"),
    "tiers absolute": tiers_absolute,
    "tiers commands": tiers_commands,
}


def rendered(text: str, runs: dict[str, Run]) -> str:
    """A document with its tables as `runs` has them."""
    return filled(text, {name: made(runs) for name, made in TABLES.items()})


def filled(text: str, tables: dict[str, str]) -> str:
    """A document with these between `<!-- table NAME -->` and `<!-- end -->`."""

    def one(found: re.Match[str]) -> str:
        return f"<!-- table {found[1]} -->\n{tables[found[1]]}\n<!-- end -->"

    return re.sub(r"<!-- table ([\w ]+) -->\n.*?<!-- end -->", one, text, flags=re.DOTALL)


def write_tables() -> None:
    runs = json.loads(RESULTS.read_text())["runs"]
    for path in DOCUMENTS:
        path.write_text(rendered(path.read_text(), runs))


def chosen(doc: str | None, ways: dict[str, tuple[str, ...]], arguments: list[str] | None) -> Any:
    """The way that a command line names, with its files; None, after the help, if it names none.

    `ways` are the names of what can be done, each with the names of the files that it needs, and
    `out` for a folder that it makes.  A script that is only looked at, with `--help` or without a
    word, changes nothing.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = parser.add_subparsers(dest="way", metavar="|".join(ways))
    for way, files in ways.items():
        one = known.add_parser(way)
        for file in files:
            one.add_argument(file, type=Path)
    given = parser.parse_args(arguments)
    if given.way is None:
        parser.print_help()
        return None
    for file in ways[given.way]:
        if file != "out" and not getattr(given, file).is_file():
            parser.error(f"{getattr(given, file)} is no file: give the {file}")
    return given


def main(arguments: list[str] | None = None) -> int:
    """Do one of these things; without a word which, say what there is and change nothing."""
    ways = {"replay": ("trace",), "tiers": ("trace",), "demo": (), "tables": ()}
    given = chosen(__doc__, ways, arguments)
    if given is None:
        return 2
    if given.way == "demo":
        DEMO.write_text(demo_output())
    elif given.way == "tiers":
        replay(given.trace, TIER_RUNS, TIER_RESULTS)
    elif given.way == "replay":
        replay(given.trace, RUNS, RESULTS)
    write_tables()
    return 0


if __name__ == "__main__":
    sys.exit(main())
