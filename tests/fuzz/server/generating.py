"""Episodes from a seed: the same seed makes the same episode, everywhere."""

from __future__ import annotations

import random
from typing import Any

from penelope.sglang_adapter.random_model import VOCABULARY
from tests.fuzz.server import models, sizes, wrong
from tests.fuzz.server.episode import ASK, RAW, Episode, Fields, Operation
from tests.fuzz.server.servers import SERVERS, Kind
from tests.fuzz.server.sizes import Limits

SPAN = 0.35
"""Seconds within which the operations of a phase begin."""
CONVERSATIONS = 5
DISALLOW = {
    "callable": (
        b"csglang.srt.sampling.custom_logit_processor\nDisallowedTokensLogitsProcessor\n."
    ).hex()
}
"""SGLang's own logit processor, in the form in which a client sends one."""


def generate(seed: str, server: str) -> Episode:
    """The episode of this seed on this kind of server (a key of `SERVERS`)."""
    source = random.Random(f"{seed}/{server}")
    kind = SERVERS[server]
    limits, settings = sizes.settings(source, kind.page)
    return Episode(seed, server, dict(settings), Writer(source, kind, limits).phases())


class Writer:
    """Draws the operations of one episode."""

    def __init__(self, source: random.Random, kind: Kind, limits: Limits) -> None:
        self.source = source
        self.kind = kind
        self.limits = limits
        self.fresh = 0
        # Together more than the pool holds, so that who returns finds some of it gone.
        self.openings = [
            source.randrange(limits.pool // 5, limits.pool // 2) for _ in range(CONVERSATIONS)
        ]

    def phases(self) -> tuple[tuple[Operation, ...], ...]:
        return tuple(self.phase() for _ in range(self.source.randrange(4, 9)))

    def phase(self) -> tuple[Operation, ...]:
        source = self.source
        choice = source.random()
        if choice < 0.06:
            return (self.weights(),)
        asks = [self.operation() for _ in range(source.choice([1, 2, 3, 4, 6, 9]))]
        if choice < 0.45:
            asks += [self.control() for _ in range(source.choice([1, 1, 2]))]
        return tuple(sorted(asks, key=lambda operation: operation.wait))

    def wait(self) -> float:
        """Mostly at once, so that requests meet in a batch."""
        return round(self.source.random() * SPAN, 4) if self.source.random() < 0.6 else 0.0

    def operation(self) -> Operation:
        if self.source.random() < 0.15:
            return Operation(RAW, self.wait(), wrong.fields(self.source))
        return Operation(ASK, self.wait(), self.ask())

    # Requests for output

    def ask(self) -> Fields:
        source = self.source
        via = source.choice(["generate", "generate", "engine", "engine", "completions", "chat"])
        prompt = self.prompt()
        sampling = self.sampling(prompt["fresh"][1])
        # With a temperature even the log-probabilities of `top_k: 1` depend on the neighbours.
        sampled = float(sampling["temperature"]) > 0
        found: Fields = {
            "via": via,
            "prompt": prompt,
            "sampling": sampling,
            "options": self.options(via, prompt["fresh"][1]),
            "compare": not sampled,
        }
        if source.random() < 0.12:
            found["leaves"] = round(source.random() * 0.3, 4)
        if not sampled and prompt["cut"] is None and source.random() < 0.8:
            found["keep"] = prompt["history"]
        return found

    def prompt(self) -> Fields:
        """What was said before in a conversation, cut somewhere or not, and something new."""
        source = self.source
        self.fresh += 1
        conversation = source.randrange(CONVERSATIONS)
        if source.random() < 0.2:
            length = self.limits.prompt(source)
            return {"history": conversation, "cut": 0, "fresh": [self.fresh, length]}
        length = source.choice([1, 2, 5, self.limits.page, source.randrange(1, 90)])
        cut = None if source.random() < 0.85 else source.randrange(1, self.limits.pool)
        found: Fields = {"history": conversation, "cut": cut, "fresh": [self.fresh, length]}
        found["opening"] = self.openings[conversation]
        if source.random() < 0.1:
            # Up to a limit exactly, whatever was said before.
            found["total"] = self.limits.prompt(source)
        return found

    def sampling(self, prompt: int) -> Fields:
        source = self.source
        found: Fields = {
            "max_new_tokens": self.limits.output(source, prompt),
            "temperature": 0 if source.random() < 0.85 else 0.8,
            "ignore_eos": True,
        }
        for chance, name, draw in (
            (0.08, "min_new_tokens", lambda: min(found["max_new_tokens"], source.choice([1, 3]))),
            (0.08, "frequency_penalty", lambda: source.choice([-2, 0.5, 2])),
            (0.08, "presence_penalty", lambda: source.choice([-2, 0.5, 2])),
            (0.08, "repetition_penalty", lambda: source.choice([0.1, 1.3, 2])),
            (0.08, "logit_bias", lambda: {str(source.randrange(VOCABULARY)): -100.0, "7": 3.5}),
            (0.04, "stop_token_ids", lambda: [source.randrange(VOCABULARY) for _ in range(60)]),
            (0.04, "stop", lambda: ["<", ">"]),
            (0.03, "stop_regex", lambda: "[0-9]"),
            (0.05, "top_p", lambda: 0.7),
            (0.05, "top_k", lambda: source.choice([1, 5, 10**5])),
            (0.03, "min_p", lambda: 0.1),
            (0.05, "n", lambda: 2),
            (0.03, "skip_special_tokens", lambda: False),
            (0.02, "no_stop_trim", lambda: True),
        ):
            if source.random() < chance:
                found[name] = draw()
        choice = source.random()
        if choice < 0.03:
            found["json_schema"] = '{"type": "object", "properties": {"a": {"type": "integer"}}}'
        elif choice < 0.06:
            found["regex"] = "(yes|no|[a-d]{3,9})"
        elif choice < 0.08:
            found["ebnf"] = 'root ::= "a" | "b" root'
        elif choice < 0.14 and self.kind.beams:
            found["beam_width"] = source.choice([2, 3])
            found["n"] = source.choice([1, 2])
            found["temperature"] = 0
        return found

    def options(self, via: str, prompt: int) -> Fields:
        """What a request may ask for beside its tokens, in the native API's names."""
        source = self.source
        found: Fields = {}
        if source.random() < 0.35:
            found["return_logprob"] = True
            if source.random() < 0.3:
                found["top_logprobs_num"] = source.choice([1, 3, VOCABULARY])
            if source.random() < 0.3:
                found["token_ids_logprob"] = [0, 5, VOCABULARY - 1]
            if source.random() < 0.3:
                found["logprob_start_len"] = source.choice([0, -1, prompt // 2, prompt - 1, prompt])
            if source.random() < 0.2:
                found["return_text_in_logprobs"] = True
        for chance, name, value in (
            (0.05, "return_hidden_states", True),
            (0.25 if via != "engine" else 0, "stream", True),
            (0.08, "extra_key", source.choice(["one", "two", "1:one"])),
            (0.05, "custom_logit_processor", DISALLOW),
            (0.3 if self.kind.adapters else 0, "lora_path", source.choice(models.ADAPTERS)),
            (0.5 if self.kind.priority else 0, "priority", source.randrange(-2, 3)),
        ):
            if source.random() < chance:
                found[name] = value
        return found

    # What operators do meanwhile

    def control(self) -> Operation:
        source = self.source
        names = ["flush", "pause", "pause", "abort", "metrics", "weights"]
        if self.kind.adapters:
            names += ["load", "load", "unload", "unload"]
        name = source.choice(names)
        if name == "weights":
            return self.weights()
        fields: dict[str, Any] = {"via": source.choice(["http", "engine"])}
        if name == "pause":
            fields |= {
                "mode": source.choice(["in_place", "retract", "retract", "abort"]),
                "seconds": round(source.random() * 0.2, 4),
                "flush": source.random() < 0.3,
            }
        elif name in ("load", "unload"):
            fields["name"] = source.choice(models.ADAPTERS)
        return Operation(name, self.wait(), fields)

    def weights(self) -> Operation:
        source = self.source
        return Operation(
            "weights",
            self.wait(),
            {
                "name": source.choice(models.WEIGHTS),
                "flush": source.random() < 0.5,
                "pause": source.choice([None, "in_place", "retract"]),
            },
        )
