"""`python -m tests.fuzz.server`: fuzz the running server for so many minutes."""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.server import episode as episodes
from tests.fuzz.server import models
from tests.fuzz.server.answers import HUNG
from tests.fuzz.server.driving import play
from tests.fuzz.server.episode import Episode
from tests.fuzz.server.generating import generate
from tests.fuzz.server.judging import LEAKS, LIVES, WAITS, Finding, judge
from tests.fuzz.server.servers import EPISODES_EACH, SERVERS, Server
from tests.fuzz.server.shrinking import shrink

STORED = Path(__file__).parent / "episodes"
SHRINKING_SECONDS = 240


class Fuzzer:
    """Keeps the server that the next episode needs, and counts what happened."""

    def __init__(self, folder: Path, *, stock: bool, fault: str = "") -> None:
        self.models = models.build(folder / "models")
        self.stock = stock
        self.fault = fault
        self.server: Server | None = None
        self.counted: Counter[str] = Counter()

    def run(self, episode: Episode) -> list[Finding]:
        """Play an episode on both engines; a server that is dead or leaks is not used again."""
        server = self._server(episode.server)
        reference, script = play(server, episode)
        hung = any(answer.status == HUNG for answer in reference.answers.values())
        if reference.died or reference.leaks or hung:
            self.stop()
            return judge(episode, reference, reference)
        run, _ = play(server, episode, script, self.fault)
        found = judge(episode, reference, run)
        if any(finding.rule in (LIVES, WAITS, LEAKS) for finding in found):
            self.stop()
        self.counted["episodes"] += 1
        self.counted["operations"] += episode.size
        self.counted["compared positions"] += len(run.kv.keys() & reference.kv.keys())
        self.counted["answers 200"] += sum(a.status == 200 for a in run.answers.values())
        self.counted["answers 4xx"] += sum(400 <= a.status < 500 for a in run.answers.values())
        self.counted.update(run.statistics)
        self.counted["evictions without pressure"] += reference.statistics.get("evictions", 0)
        return found

    def _server(self, name: str) -> Server:
        if self.server is not None and (self.server.name != name or not self.server.alive()):
            self.stop()
        if self.server is None:
            self.server = Server(name, self.models, stock=self.stock)
        return self.server

    def shrunk(self, episode: Episode, found: list[Finding]) -> Episode:
        """The smallest episode found in a few minutes that breaks one of the same rules."""
        rules = {finding.rule for finding in found}
        end = time.monotonic() + SHRINKING_SECONDS

        def fails(smaller: Episode) -> bool:
            return any(finding.rule in rules for finding in self.run(smaller))

        return shrink(episode, fails, lambda: time.monotonic() < end)

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None


def drawn(seed: int, first: int) -> Iterator[Episode]:
    """All the episodes of a seed, in order: so many on one server, then on the next."""
    names = list(SERVERS)
    for number in itertools.count(first):
        yield generate(f"{seed}:{number}", names[number // EPISODES_EACH % len(names)])


def stored() -> list[Episode]:
    """Episodes that once found something, those of one server together."""
    found = [episodes.load(path.read_text()) for path in sorted(STORED.glob("found-*.json"))]
    return sorted(found, key=lambda episode: list(SERVERS).index(episode.server))


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz-server ARGS=...", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the episodes (default: a new one)")
    parser.add_argument("--first", type=int, default=0, help="number of the first episode")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--episode", type=Path, help="play this file alone, and do not shrink")
    parser.add_argument("--keep-going", action="store_true", help="do not end with a finding")
    parser.add_argument("--no-shrink", action="store_true", help="report episodes as drawn")
    parser.add_argument("--stock", action="store_true", help="SGLang's own cache instead")
    parser.add_argument("--fault", default="", help="to plant, so that something must be found")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz-server"))
    return parser.parse_args(given)


def report(
    fuzzer: Fuzzer, episode: Episode, found: list[Finding], options: argparse.Namespace
) -> None:
    print(f"\nFOUND by episode {episode.name} on {episode.server}:", flush=True)
    for finding in found[:8]:
        print(f"  {finding}", flush=True)
    if not options.no_shrink and options.episode is None:
        episode = fuzzer.shrunk(episode, found)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{episode.name.replace(':', '-')}-{episode.server}.json"
    file.write_text(episodes.dump(episode))
    print(f"smallest episode ({episode.size} operations), in {file}:\n{episodes.dump(episode)}")
    print(f'again: make fuzz-server ARGS="--episode {file}"', flush=True)


def main(given: list[str] | None = None) -> int:
    """0: nothing found; 1: something."""
    options = arguments(given)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    end = time.monotonic() + 60 * options.minutes
    began = time.monotonic()
    findings = 0
    with tempfile.TemporaryDirectory(prefix="penelope-fuzz-") as folder:
        fuzzer = Fuzzer(Path(folder), stock=options.stock, fault=options.fault)
        try:
            if options.episode is not None:
                todo: Iterator[Episode] = iter([episodes.load(options.episode.read_text())])
            else:
                print(f"seed {seed}: {options.minutes:g} minutes", flush=True)
                todo = itertools.chain(
                    () if options.first else stored(), drawn(seed, options.first)
                )
            for episode in todo:
                if options.episode is None and time.monotonic() > end:
                    break
                if found := fuzzer.run(episode):
                    findings += 1
                    report(fuzzer, episode, found, options)
                    if not options.keep_going:
                        break
                _progress(fuzzer, episode, began)
        finally:
            fuzzer.stop()
    minutes = (time.monotonic() - began) / 60
    print(
        f"\n{findings} findings, seed {seed}, {minutes:.1f} minutes, "
        f"{fuzzer.counted['episodes'] / minutes:.1f} episodes a minute"
    )
    for name, count in fuzzer.counted.items():
        print(f"  {name}: {count:,}")
    return 1 if findings else 0


def _progress(fuzzer: Fuzzer, episode: Episode, began: float) -> None:
    print(
        f"{time.monotonic() - began:7.1f} s  {episode.name} on {episode.server}: "
        f"{episode.size} operations; so far {fuzzer.counted['episodes']} episodes",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
