"""The parts of the fuzzer that need no engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.fuzz.server import driving, judging
from tests.fuzz.server import episode as episodes
from tests.fuzz.server.answers import HUNG, LEFT, Answer, Output, Run, from_native, from_openai
from tests.fuzz.server.asking import Request, Said
from tests.fuzz.server.episode import ASK, CONTROLS, RAW, Episode, Operation
from tests.fuzz.server.generating import generate
from tests.fuzz.server.judging import judge
from tests.fuzz.server.servers import SERVERS
from tests.fuzz.server.shrinking import shrink

MANY = [generate(f"parts:{n}", server) for n in range(40) for server in SERVERS]


# The generator


def test_a_seed_makes_the_same_episode_in_every_process() -> None:
    text = "from tests.fuzz.server import episode, generating as g\n"
    text += "print(episode.dump(g.generate('7:3', 'page-16')), end='')"
    told = [
        subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert told[0] == told[1] == episodes.dump(generate("7:3", "page-16"))


@pytest.mark.parametrize("server", SERVERS)
def test_different_seeds_make_different_episodes(server: str) -> None:
    assert generate("7:3", server).phases != generate("7:4", server).phases


def test_a_file_gives_the_episode_back() -> None:
    for episode in MANY:
        assert episodes.load(episodes.dump(episode)) == episode


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"phases": 5}', '{"phases": [[{}]]}'])
def test_a_file_that_holds_no_episode_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an episode"):
        episodes.load(text)


def test_every_kind_of_operation_and_of_request_is_drawn() -> None:
    operations = [op for e in MANY for phase in e.phases for op in phase]
    assert {op.kind for op in operations} == {ASK, RAW, *CONTROLS}
    asks = [op.fields for op in operations if op.kind == ASK]
    assert {ask["via"] for ask in asks} == {"engine", "generate", "completions", "chat"}
    options = {name for ask in asks for name in ask["options"]}
    assert {"stream", "lora_path", "priority", "custom_logit_processor", "extra_key"} <= options
    assert any("leaves" in ask for ask in asks)
    assert {bool(e.settings.get("host")) for e in MANY} == {True, False}, "one tier and two"


def test_sizes_of_an_episode_go_together() -> None:
    for episode in MANY:
        page = SERVERS[episode.server].page
        settings = episode.settings
        sizes = ("pool", "chunk", "block", "host", "swap")
        assert all(settings.get(name, 0) % page == 0 for name in sizes), settings
        assert settings.get("host", 0) >= settings.get("swap", 0)


# The shrinker


def _only(*kinds: str) -> Episode:
    phases = tuple((Operation(kind, 0.0, {}),) for kind in kinds)
    return Episode("made", "page-16", {}, phases)


def test_what_does_not_matter_is_left_out() -> None:
    long = _only(*["metrics"] * 9, "pause", *["metrics"] * 5, "flush", *["metrics"] * 4)

    def fails(e: Episode) -> bool:
        kinds = [op.kind for phase in e.phases for op in phase]
        return "pause" in kinds and "flush" in kinds

    small = shrink(long, fails, lambda: True)
    assert [op.kind for phase in small.phases for op in phase] == ["pause", "flush"]


def test_without_time_the_best_so_far_is_kept() -> None:
    tries = iter([True] * 2)
    long = _only(*["metrics"] * 15, "pause")

    def fails(e: Episode) -> bool:
        return any(op.kind == "pause" for phase in e.phases for op in phase)

    small = shrink(long, fails, lambda: next(tries, False))
    assert 1 < small.size < long.size
    assert fails(small)


def test_a_fault_that_does_not_come_again_leaves_the_episode_whole() -> None:
    long = _only("pause", "flush", "metrics")
    assert shrink(long, lambda _: False, lambda: True) == long


# The judge

SAID = Output((5, 6, 7), "abc", (-1.0, -2.0, -3.0), "length", 20)
FIELDS: dict[str, Any] = {"sampling": {"temperature": 0}, "options": {}, "compare": True}


def _judged(
    answer: Answer,
    reference: Answer | None = None,
    kind: str = ASK,
    fields: dict[str, Any] | None = None,
    **more: Any,
) -> set[str]:
    operation = Operation(kind, 0.0, FIELDS if fields is None else fields)
    episode = Episode("made", "page-16", {}, ((operation,),))
    first = Run(answers={(0, 0): reference or Answer(200, "", (SAID,))}, limit=2048)
    second = Run(answers={(0, 0): answer}, limit=512, **more)
    return {finding.rule for finding in judge(episode, first, second)}


def _ok(**changes: Any) -> Answer:
    return Answer(200, "", (replace(SAID, **changes),))


def test_equal_runs_are_not_at_fault() -> None:
    assert _judged(_ok()) == set()


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": (5, 6, 8)},
        {"tokens": (5, 6)},
        {"text": "abd"},
        {"logprobs": (-1.0, -2.0, -3.1)},
        {"finish": "stop"},
        {"prompt_tokens": 21},
        {"exact": {"input_token_logprobs": [-1.0]}},
    ],
)
def test_any_difference_of_an_output_is_found(changes: dict[str, Any]) -> None:
    assert _judged(_ok(**changes)) == {judging.EQUAL}


def test_top_tokens_that_tie_come_in_any_order_and_others_do_not() -> None:
    def told(*top: tuple[float, int]) -> Answer:
        entries = [[value, token, None] for value, token in top]
        return _ok(exact={"output_top_logprobs": [None, entries]})

    first = told((-1.0, 7), (-2.0, 8), (-2.0000001, 9))
    assert _judged(told((-1.0, 7), (-2.0, 9), (-2.0000001, 8)), first) == set()
    # Of two that tie for the last place either is told.
    assert _judged(told((-1.0, 7), (-2.0, 8), (-2.0, 10)), first) == set()
    assert _judged(told((-1.0, 8), (-2.0, 7), (-2.0, 9)), first) == {judging.EQUAL}
    assert _judged(told((-1.0, 10), (-2.0, 8), (-2.0, 9)), first) == {judging.EQUAL}
    assert _judged(told((-1.0, 7), (-2.0, 8), (-2.1, 9)), first) == {judging.EQUAL}
    assert _judged(told((-1.0, 7), (-2.0, 8)), first) == {judging.EQUAL}


def test_what_the_pool_may_have_ended_before_the_stop_is_the_same() -> None:
    first = _ok(tokens=None, finish="stop", prompt_tokens=400)
    assert _judged(_ok(tokens=None, finish="length", prompt_tokens=400), first) == set()
    shorter = _ok(tokens=None, finish="length", prompt_tokens=400, logprobs=(-1.0, -2.0))
    assert _judged(shorter, first) == set()
    other = _ok(tokens=None, finish="length", prompt_tokens=400, logprobs=(-1.0, -2.5))
    assert _judged(other, first) == {judging.EQUAL}
    # Far from the pool's size nothing but the request ends it.
    first, early = (_ok(tokens=None, finish=f, prompt_tokens=20) for f in ("stop", "length"))
    assert _judged(early, first) == {judging.EQUAL}


def test_a_probability_of_nothing_is_one_whichever_way_it_is_told() -> None:
    first, least = _ok(logprobs=(-1.0, -107.1)), -3.4028234663852886e38
    assert _judged(_ok(logprobs=(-1.0, least)), first) == set()
    assert _judged(_ok(logprobs=(least, -107.1)), first) == {judging.EQUAL}
    assert _judged(_ok(logprobs=(-1.0, -86.0)), first) == {judging.EQUAL}


def test_what_was_cut_off_is_compared_as_far_as_it_goes() -> None:
    assert _judged(_ok(tokens=(5,), logprobs=(-1.0,), text="a", finish="abort")) == set()
    assert _judged(_ok(tokens=(6,), text="b", finish="abort")) == {judging.EQUAL}


def test_outputs_of_chance_are_not_compared() -> None:
    assert _judged(_ok(tokens=(1,)), fields={**FIELDS, "compare": False}) == set()
    penalty = {**FIELDS, "sampling": {"presence_penalty": 1}}
    assert _judged(_ok(tokens=(1,)), fields=penalty) == set(), "a fault of the engine's, by name"


def test_an_output_that_the_pool_ended_is_compared_as_far_as_it_goes() -> None:
    long = replace(SAID, prompt_tokens=500, tokens=(5, 6, 7, 8))
    short = replace(long, tokens=(5, 6, 7))
    assert _judged(Answer(200, "", (short,)), Answer(200, "", (long,))) == set()


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (Answer(HUNG), judging.WAITS),
        (Answer(500, "oops"), judging.CLEAR),
        (Answer(400, ""), judging.CLEAR),
        (Answer(400, "Traceback (most recent call last)"), judging.CLEAR),
    ],
)
def test_answers_that_nobody_should_get(answer: Answer, rule: str) -> None:
    assert rule in _judged(answer)


def test_ids_outside_the_vocabulary_must_be_refused() -> None:
    fields = {"path": "/generate", "body": {"input_ids": [3, 2**32 + 5]}}
    refused = Answer(400, "token 1 has the id 4294967301")
    assert _judged(refused, refused, RAW, fields) == set()
    assert _judged(Answer(200), Answer(200), RAW, fields) == {judging.CLEAR}


def test_what_was_aborted_was_not_accepted() -> None:
    fields = {"path": "/v1/completions", "body": {"prompt": [3, -1]}}
    aborted = Answer(200, "", (replace(SAID, finish="abort"),))
    refused = Answer(400, "token 1 has the id -1")
    assert _judged(aborted, aborted, RAW, fields) == set()
    assert _judged(aborted, refused, RAW, fields) == set()
    assert _judged(aborted, refused) == set()
    assert _judged(_ok(), refused) == {judging.ALIKE}


def test_a_prompt_may_be_refused_only_next_to_the_pool() -> None:
    refused = Answer(400, "Input length (495 tokens) exceeds the maximum allowed length")
    near = Answer(200, "", (replace(SAID, prompt_tokens=495),))
    far = Answer(200, "", (replace(SAID, prompt_tokens=400),))
    assert _judged(refused, near) == set()
    assert _judged(Answer(400, "too long"), far) == {judging.ALIKE}


def test_death_leaks_tracebacks_and_wrong_kv_are_found() -> None:
    assert _judged(_ok(), died="SIGQUIT") == {judging.LIVES}
    assert _judged(_ok(), leaks=["a page has two owners"]) == {judging.LEAKS}
    assert _judged(_ok(), log="Traceback (most recent call last):\n  oops") == {judging.QUIET}
    known = (
        "Traceback (most recent call last):\nlora_id must be either a string or a list of strings\n"
    )
    assert _judged(_ok(), log=known) == set()
    operation = Operation(ASK, 0.0, FIELDS)
    episode = Episode("made", "page-16", {}, ((operation,),))
    first, second = Run(kv={b"a": b"1", b"b": b"2"}), Run(kv={b"a": b"1", b"b": b"3", b"c": b"4"})
    assert [finding.rule for finding in judge(episode, first, second)] == [judging.INTACT]


# What goes over the wire and comes back


def test_a_conversation_goes_on_with_what_was_answered() -> None:
    said = Said()
    fields = {
        **FIELDS,
        "via": "generate",
        "prompt": {"history": 1, "cut": 0, "fresh": [1, 9]},
        "keep": 1,
    }
    first = said.request(fields)
    answer = Answer(200, "", (replace(SAID, prompt_tokens=len(first.tokens)),))
    said.learn(fields, first, answer)
    later = said.request({**fields, "prompt": {"history": 1, "cut": None, "fresh": [2, 3]}})
    assert later.tokens[:12] == (*first.tokens, 5, 6, 7)
    assert len(later.tokens) == 15
    total = {"history": 1, "cut": None, "fresh": [3, 2], "total": 100}
    assert len(said.request({**fields, "prompt": total}).tokens) == 100


def test_answers_are_read_alike_whatever_the_protocol() -> None:
    meta = {"finish_reason": {"type": "length"}, "prompt_tokens": 4}
    native = from_native(200, {"text": "ab", "output_ids": [1, 2], "meta_info": meta})
    assert native.outputs[0].tokens == (1, 2)
    choice = {"text": "ab", "finish_reason": "length", "logprobs": {"token_logprobs": [-1.0]}}
    told = from_openai(200, {"choices": [choice], "usage": {"prompt_tokens": 4}})
    assert (told.outputs[0].text, told.outputs[0].logprobs) == ("ab", (-1.0,))
    assert from_native(400, {"error": {"message": "no"}}) == Answer(400, "no")
    ended = {"type": "abort", "status_code": 503, "message": "late"}
    late = from_native(200, {"text": "", "meta_info": {**meta, "finish_reason": ended}})
    assert (late.status, late.message) == (503, "late")


def test_rows_that_are_told_again_after_a_retraction_count_once() -> None:
    def told(hidden: list[Any]) -> Any:
        meta = {"finish_reason": {"type": "length"}, "hidden_states": hidden}
        return from_native(200, {"text": "", "meta_info": meta}).outputs[0].exact["hidden_states"]

    plain = told([[[0.0], [0.1]], [1.0], [2.0]])
    assert plain == [[1.0], [2.0]]
    assert told([[[0.1]], [1.0], [[0.0], [0.1], [1.0], [2.0]]]) == plain


def test_a_difference_is_told_by_its_place() -> None:
    assert (
        judging._where({"a": [1, [2.0, 3.0]]}, {"a": [1, [2.0, 4.0]]}) == "['a'][1][1] 4.0, not 3.0"
    )
    assert judging._where([1, 2], [1]) == " of length 1, not 2: [1], not [1, 2]"


# The driver


class Slow:
    """An engine of which every look shows another step until so many, and then none."""

    def __init__(self, steps: int) -> None:
        self.looks = 0
        self.steps = steps

    async def look(self, *, kv: bool) -> dict[str, Any]:
        assert not kv
        self.looks += 1
        return {"steps": min(self.looks, self.steps), "queued": [], "running": ["a"]}


@pytest.mark.parametrize("steps", [1, 50])
def test_a_client_waits_for_ever_only_where_nothing_happens(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driving, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(driving, "PATIENCE", 9)
    engine = Slow(steps)
    player = driving.Player.__new__(driving.Player)
    player.engine = engine  # type: ignore[assignment]

    async def play() -> bool:
        waits = asyncio.ensure_future(asyncio.Event().wait())
        left = await player._wait([waits])  # type: ignore[list-item]
        waits.cancel()
        return bool(left)

    assert asyncio.run(play())
    assert engine.looks == steps + 9


class Aborting:
    """An engine whose every request waits until it is aborted by the beginning of its name."""

    def __init__(self) -> None:
        self.aborted: list[str] = []
        self.called = asyncio.Event()

    async def ask(self, operation: str, rid: str, **_: Any) -> Any:
        if operation == "abort":
            self.aborted.append(rid)
            self.called.set()
            return None
        await self.called.wait()
        raise RuntimeError("ValueError: Aborted by AbortReq.")


@pytest.mark.parametrize(("leaves", "status"), [(0.01, LEFT), (None, 400)])
def test_a_client_that_left_is_told_from_one_that_was_refused(
    leaves: float | None, status: int
) -> None:
    async def play() -> tuple[Answer, list[str]]:
        engine = Aborting()
        player = driving.Player.__new__(driving.Player)
        player.engine, player.number = engine, 7  # type: ignore[assignment]
        player.script = {(1, 1): Request("engine", "", {}, ())}
        if leaves is None:
            engine.called.set()  # somebody else aborts it
        return await player._ask((1, 1), {"leaves": leaves}), engine.aborted

    answer, aborted = asyncio.run(play())
    assert answer.status == status
    assert not any("7.1.10.".startswith(name) for name in aborted)
