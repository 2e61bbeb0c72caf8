"""Plays one episode on a server and reports what was seen."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from tests.fuzz.server import models
from tests.fuzz.server.answers import (
    CUT,
    HUNG,
    LEFT,
    Answer,
    Place,
    Run,
    from_native,
    from_openai,
)
from tests.fuzz.server.asking import Request, Said
from tests.fuzz.server.episode import ASK, RAW, Episode, Operation
from tests.fuzz.server.servers import POOL, Server
from tests.sglang.conftest import DEFAULTS
from tests.sglang.harness import EngineDied

PATIENCE = 90
"""Looks at a scheduler that does nothing and answers nobody until a client waits for ever.

Each look is answered by the scheduler itself and takes half a second or, on a busy machine, longer.
One that stands still is ended by its own watchdog.
"""
LOOK_SECONDS = 0.5
ROUTES = ("/metrics", "/get_server_info", "/get_model_info", "/v1/models", "/v1/loads")
READERS = {
    "/generate": from_native,
    "/v1/completions": from_openai,
    "/v1/chat/completions": from_openai,
}
ENOUGH = {**DEFAULTS, "pool": POOL, "chunk": 2048, "rows": 32}
"""Settings under which nothing is ever evicted."""

Script = dict[Place, Request]
_runs = itertools.count()


def play(
    server: Server, episode: Episode, script: Script | None = None, fault: str = ""
) -> tuple[Run, Script]:
    """The never-evicting run if there is no script yet, else the same requests under pressure.

    `fault` is planted under pressure, as `tests/sglang/engine_rpc.py` names it.
    """
    settings = ENOUGH if script is None else {**DEFAULTS, **episode.settings}
    player = Player(server, episode, script, "" if script is None else fault)
    server.engine.run(player.run(dict(settings)))
    return player.found, player.script


class Player:
    def __init__(self, server: Server, episode: Episode, script: Script | None, fault: str) -> None:
        self.fault = fault
        self.server = server
        self.engine = server.engine
        self.episode = episode
        self.given = script
        self.script: Script = dict(script or {})
        self.said = Said()
        self.found = Run()
        self.number = next(_runs)
        self.http: Any = None

    async def run(self, settings: dict[str, Any]) -> None:
        self.found.limit = min(int(settings["pool"]), models.CONTEXT)
        limits = httpx.Limits(max_connections=200)
        try:
            async with httpx.AsyncClient(
                base_url=self.server.url, timeout=None, limits=limits
            ) as self.http:
                await self._reset(settings)
                for index, phase in enumerate(self.episode.phases):
                    await self._phase(index, phase)
                    if any(a.status == HUNG for a in self.found.answers.values()):
                        break
                else:
                    await self._inspect()
        except (EngineDied, httpx.TransportError) as error:
            self.found.died = f"{type(error).__name__}: {error}"
        except (AssertionError, RuntimeError) as error:
            self.found.leaks.append(f"{error}")
        self.found.log = self.server.new_log()
        if not self.server.alive():
            self.found.died = self.found.died or self.engine.tail(60)

    async def _reset(self, settings: dict[str, Any]) -> None:
        """The first weights, the first adapter alone, nothing in the cache."""
        await self.engine.ask("continue")
        await self._idle()
        if self.server.weights != models.WEIGHTS[0]:
            await self._update(models.WEIGHTS[0], flush=True)
        if self.server.kind.adapters:
            for name in models.ADAPTERS:
                await self._post("/unload_lora_adapter", {"lora_name": name})
            await self._adapter("/load_lora_adapter", models.ADAPTERS[0])
        await self.engine.ask("call", method="penelope_configure", **settings)
        await self.engine.ask("call", method="penelope_fault", name=self.fault)

    async def _idle(self) -> None:
        for _ in range(10 * PATIENCE):
            now = await self.engine.look(kv=False)
            if not now["queued"] and not now["running"]:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the server is not idle though nobody waits for anything")

    async def _phase(self, index: int, phase: tuple[Operation, ...]) -> None:
        places = [(index, at) for at in range(len(phase))]
        if self.given is None:
            for place, operation in zip(places, phase, strict=True):
                if operation.kind == ASK:
                    self.script[place] = self.said.request(operation.fields)
        started = [
            asyncio.ensure_future(self._perform(place, operation))
            for place, operation in zip(places, phase, strict=True)
        ]
        for task in started:
            task.add_done_callback(_noticed)
        controls = [
            task for task, op in zip(started, phase, strict=True) if op.kind not in (ASK, RAW)
        ]
        if controls:
            await self._wait(controls)
            await self.engine.ask("continue")
        late = await self._wait(started)
        for task in late:
            task.cancel()
        for place, operation, task in zip(places, phase, started, strict=True):
            if task in late:
                self.found.answers[place] = Answer(HUNG, f"nothing happened in {PATIENCE} looks")
                continue
            self.found.answers[place] = task.result()
            if operation.kind == ASK:
                self.said.learn(operation.fields, self.script[place], task.result())

    async def _wait(self, tasks: list[asyncio.Task[Answer]]) -> set[asyncio.Task[Answer]]:
        """Wait until all have ended or nothing happens any more; those that have not ended."""
        before: Any = None
        still = 0
        left = set(tasks)
        while left and still < PATIENCE:
            done, left = await asyncio.wait(left, timeout=LOOK_SECONDS)
            if left:
                now = await self.engine.look(kv=False)
                seen = (now["steps"], now["queued"], now["running"])
                still = 0 if done or seen != before else still + 1
                before = seen
        return left

    async def _perform(self, place: Place, operation: Operation) -> Answer:
        await asyncio.sleep(operation.wait)
        fields = operation.fields
        if operation.kind == ASK:
            return await self._ask(place, fields)
        if operation.kind == RAW:
            if "text" in fields:
                headers = {"content-type": "application/json"}
                answer = await self.http.post(
                    fields["path"], content=fields["text"], headers=headers
                )
                return _told(answer)
            return await self._post_wrong(fields["path"], fields["body"])
        done: Answer = await getattr(self, f"_do_{operation.kind}")(fields)
        return done

    # Requests for output

    async def _ask(self, place: Place, fields: dict[str, Any]) -> Answer:
        request = self.script[place]
        rid = f"{self.number}.{place[0]}.{place[1]}."  # an abort goes by the beginning of a name
        leaves: float | None = fields.get("leaves")
        if request.via == "engine":
            return await self._ask_engine(request, rid, leaves)
        body = {**request.body, "rid": rid}
        sending = self._stream(request, body) if body.get("stream") else self._whole(request, body)
        if leaves is None:
            return await sending
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(sending, leaves)
        return Answer(LEFT)

    async def _ask_engine(self, request: Request, rid: str, leaves: float | None) -> Answer:
        task = asyncio.ensure_future(self.engine.ask("generate", rid=rid, **request.body))
        left = False
        if leaves is not None:
            await asyncio.wait([task], timeout=leaves)
            if left := not task.done():
                await self.engine.ask("abort", rid=rid)
        try:
            return from_native(200, await task)
        except RuntimeError as error:
            if left and "Aborted by AbortReq" in str(error):
                return Answer(LEFT)
            kind, _, message = str(error).partition(": ")
            return Answer(400 if kind == "ValueError" else _code(kind, message), message)

    async def _whole(self, request: Request, body: dict[str, Any]) -> Answer:
        answer = await self.http.post(request.path, content=json.dumps(body), headers=JSON)
        read = from_native if request.via == "generate" else from_openai
        return read(answer.status_code, _body(answer))

    async def _stream(self, request: Request, body: dict[str, Any]) -> Answer:
        native = request.via == "generate"
        async with self.http.stream(
            "POST", request.path, content=json.dumps(body), headers=JSON
        ) as answer:
            if answer.status_code != 200:
                await answer.aread()
                return _told(answer)
            try:
                if native:
                    return from_native(200, await _last(_events(answer)))
                return from_openai(200, await _joined(_events(answer)))
            except httpx.RemoteProtocolError:
                return Answer(CUT, "the stream was cut off")

    async def _post_wrong(self, path: str, body: Any) -> Answer:
        """Where it is not refused it may have been aborted: what came of it is told."""
        answer = await self.http.post(path, content=json.dumps(body), headers=JSON)
        if answer.status_code == 200 and path in READERS:
            return READERS[path](200, _body(answer))
        return _told(answer)

    # What operators do

    async def _post(self, path: str, body: Any) -> Answer:
        return _told(await self.http.post(path, content=json.dumps(body), headers=JSON))

    async def _do_flush(self, fields: dict[str, Any]) -> Answer:
        if fields["via"] == "http":
            return await self._post("/flush_cache", {})
        await self.engine.ask("flush")
        return Answer(200)

    async def _do_pause(self, fields: dict[str, Any]) -> Answer:
        answer = await self._pause(fields["mode"])
        await asyncio.sleep(fields["seconds"])
        if fields["flush"]:
            await self.engine.ask("flush")
        await self.engine.ask("continue")
        return answer

    async def _pause(self, mode: str) -> Answer:
        return await self._post("/pause_generation", {"mode": mode})

    async def _do_abort(self, fields: dict[str, Any]) -> Answer:
        if fields["via"] == "http":
            return await self._post("/abort_request", {"abort_all": True})
        await self.engine.ask("abort", abort_all=True)
        return Answer(200)

    async def _do_metrics(self, _: dict[str, Any]) -> Answer:
        for route in ROUTES:
            answer = await self.http.get(route, follow_redirects=True)
            if answer.status_code != 200:
                return Answer(answer.status_code, f"{route}: {answer.text[:300]}")
        return Answer(200)

    async def _do_weights(self, fields: dict[str, Any]) -> Answer:
        if fields["pause"] is None:
            return await self._update(fields["name"], flush=fields["flush"])
        await self._pause(fields["pause"])
        try:
            return await self._update(fields["name"], flush=fields["flush"])
        finally:
            await self.engine.ask("continue")

    async def _update(self, name: str, *, flush: bool) -> Answer:
        answer = await self._post(
            "/update_weights_from_disk",
            {"model_path": str(self.server.folder / name), "flush_cache": flush},
        )
        self.server.weights = name if answer.status == 200 else ""
        return answer

    async def _do_load(self, fields: dict[str, Any]) -> Answer:
        return await self._adapter("/load_lora_adapter", fields["name"])

    async def _do_unload(self, fields: dict[str, Any]) -> Answer:
        return await self._post("/unload_lora_adapter", {"lora_name": fields["name"]})

    async def _adapter(self, path: str, name: str) -> Answer:
        folder = self.server.folder / name
        return await self._post(path, {"lora_name": name, "lora_path": str(folder)})

    # Afterwards

    async def _audit(self) -> None:
        """A request whose client has just left may still be in a step: what leaks stays."""
        for _ in range(40):
            try:
                await self.engine.ask("call", method="penelope_audit")
                return
            except RuntimeError:
                await asyncio.sleep(0.1)
        await self.engine.ask("call", method="penelope_audit")

    async def _inspect(self) -> None:
        """Raises `AssertionError` or `RuntimeError` in the words of the first thing amiss."""
        await self._idle()
        await self._audit()
        found = await self.engine.look()
        tiers = (found.get("resident", {}), found.get("host_resident", {}))
        if self.server.weights:  # an update that has failed leaves nobody knows which
            of = self.server.weights.encode()
            self.found.kv = {of + h: kept for tier in tiers for h, kept in tier.items()}
        self.found.statistics = found.get("statistics", {})
        for name, right in (
            ("live_receipts", 0),
            ("refilling", None),
            ("free_rows", found["rows"]),
        ):
            if found.get(name, right) != right:
                self.found.leaks.append(f"{name} is {found[name]}, not {right}")


def _noticed(task: asyncio.Task[Answer]) -> None:
    """Python complains of exceptions that nobody has asked for: a server that died told of them."""
    if not task.cancelled():
        task.exception()


JSON = {"content-type": "application/json"}


def _code(kind: str, message: str) -> int:
    """The status that the engine API's exception stands for."""
    if kind == "HTTPException" and message[:3].isdigit():
        return int(message[:3])
    return 500


def _body(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return answer.text


def _told(answer: httpx.Response) -> Answer:
    from tests.fuzz.server.answers import message_of

    body = _body(answer)
    return Answer(answer.status_code, message_of(body) if answer.status_code != 200 else "")


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[6:])


async def _last(events: AsyncIterator[dict[str, Any]]) -> Any:
    """The last event of each output: a native stream repeats all that was said before."""
    found: dict[int, dict[str, Any]] = {}
    async for event in events:
        if "error" in event:
            return event
        found[event.get("index", 0)] = event
    items = [found[index] for index in sorted(found)]
    return items[0] if len(items) == 1 else items


async def _joined(events: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    """A stream's pieces put together as the answer that is not streamed."""
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    usage: dict[str, Any] = {}
    async for event in events:
        if "error" in event:
            return event
        usage = event.get("usage") or usage
        for choice in event.get("choices", ()):
            index = choice["index"]
            piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            texts[index] = texts.get(index, "") + piece
            ends[index] = choice.get("finish_reason") or ends.get(index, "none")
    choices = [{"text": texts[i], "finish_reason": ends[i]} for i in sorted(texts)]
    return {"choices": choices, "usage": usage}
