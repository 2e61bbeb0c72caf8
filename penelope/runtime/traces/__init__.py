"""Traces of LLM serving in one in-memory form: read from files, or generated from a seed."""

from penelope.runtime.traces.errors import TraceError
from penelope.runtime.traces.generate import GeneratorOptions, generate
from penelope.runtime.traces.loading import FORMATS, load
from penelope.runtime.traces.model import (
    Omitted,
    Request,
    Session,
    Stream,
    Trace,
    Turn,
)
from penelope.runtime.traces.options import Selection, SharedPrefix
from penelope.runtime.traces.summary import Summary, summarise

__all__ = [
    "FORMATS",
    "GeneratorOptions",
    "Omitted",
    "Request",
    "Selection",
    "Session",
    "SharedPrefix",
    "Stream",
    "Summary",
    "Trace",
    "TraceError",
    "Turn",
    "generate",
    "load",
    "summarise",
]
