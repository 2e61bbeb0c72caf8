"""An episode: what is asked of a server, as plain data that a file can keep.

Operations of one phase overlap; a phase begins when the one before has ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

Fields = dict[str, Any]

ASK = "ask"
"""A request for output: `via`, `prompt`, `sampling`, `options`, `leaves`, `keep`, `compare`."""
RAW = "raw"
"""A request that the server must refuse: `path`, and `body` or `text`."""
CONTROLS = ("flush", "pause", "weights", "load", "unload", "abort", "metrics")


@dataclass(frozen=True)
class Operation:
    kind: str
    wait: float
    """Seconds after its phase began."""
    fields: Fields


@dataclass(frozen=True)
class Episode:
    name: str
    server: str
    """Which of `servers.SERVERS`."""
    settings: Fields
    """What the scheduler is changed to for the run under pressure: sizes, policy, schedule."""
    phases: tuple[tuple[Operation, ...], ...]

    @property
    def size(self) -> int:
        return sum(len(phase) for phase in self.phases)

    def places(self) -> Iterator[tuple[int, int]]:
        """(phase, index) of every operation."""
        for phase, operations in enumerate(self.phases):
            for index in range(len(operations)):
                yield phase, index

    def only(self, kept: set[tuple[int, int]]) -> Episode:
        """The same without the operations at other places, and without phases that are empty."""
        phases = (
            tuple(op for index, op in enumerate(operations) if (phase, index) in kept)
            for phase, operations in enumerate(self.phases)
        )
        return replace(self, phases=tuple(phase for phase in phases if phase))


def dump(episode: Episode) -> str:
    """As JSON, one operation a line."""
    head = {"name": episode.name, "server": episode.server, "settings": episode.settings}
    phases = ",\n".join(
        "  [" + ",\n   ".join(json.dumps(asdict(operation)) for operation in phase) + "]"
        for phase in episode.phases
    )
    return f'{json.dumps(head)[:-1]}, "phases": [\n{phases}\n]}}\n'


def load(text: str) -> Episode:
    """Raises `ValueError` with the reason if the text is no episode."""
    try:
        found = json.loads(text)
        phases = tuple(
            tuple(Operation(op["kind"], float(op["wait"]), dict(op["fields"])) for op in phase)
            for phase in found["phases"]
        )
        return Episode(found["name"], found["server"], dict(found["settings"]), phases)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"not an episode: {type(error).__name__}: {error}") from None
