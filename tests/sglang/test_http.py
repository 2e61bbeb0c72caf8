"""``penelope serve`` and a client that knows nothing about it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sglang.harness import ROOT, environment

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


def arguments(model: Path, port: int, *more: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "penelope",
        "serve",
        "--model-path",
        str(model),
        "--port",
        str(port),
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--attention-backend",
        "penelope_rows",
        "--sampling-backend",
        "pytorch",
        "--disable-cuda-graph",
        "--mem-fraction-static",
        "0.3",
        "--max-total-tokens",
        "2048",
        "--page-size",
        "16",
        "--max-running-requests",
        "8",
        "--chunked-prefill-size",
        "256",
        "--enable-cache-report",
        "--served-model-name",
        "tiny",
        "--sleep-on-idle",
        "--enable-metrics",
        *more,
    ]


@pytest.fixture(scope="module")
def server(
    model: Path, port: int, tmp_path_factory: pytest.TempPathFactory, engines: Any
) -> Iterator[Path]:
    """The log of a server that answers."""
    import httpx

    engines.stop()
    folder = tmp_path_factory.mktemp("server")
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            arguments(model, port),
            env={
                **environment(folder),
                "PENELOPE_DETERMINISTIC": "0",
                "PENELOPE_HOST_TOKENS": "0",
            },
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
        )
    try:
        for _ in range(240):
            time.sleep(1)
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                continue
        else:
            pytest.fail(f"the server did not answer:\n{log.read_text()[-3000:]}")
        yield log
        assert process.poll() is None, "the server went down"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)  # the session that this test started
        process.wait()


def test_a_chat_of_many_turns(server: Path, port: int) -> None:
    from openai import OpenAI

    with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
        chats: list[list[dict[str, str]]] = [
            [{"role": "system", "content": "Answer briefly. " * 12}] for _ in range(3)
        ]
        cached = []
        for turn in range(5):
            for index, messages in enumerate(chats):
                messages.append(
                    {"role": "user", "content": f"Turn {turn} of {index}: " + "x" * 120}
                )
                answer = client.chat.completions.create(
                    model="tiny", messages=messages, temperature=0, max_tokens=6
                )
                content = answer.choices[0].message.content
                assert answer.usage is not None
                assert answer.usage.completion_tokens <= 6
                details = answer.usage.prompt_tokens_details
                cached.append(details.cached_tokens if details and details.cached_tokens else 0)
                assert cached[-1] < answer.usage.prompt_tokens
                messages.append({"role": "assistant", "content": content or ""})
        assert cached[0] == 0
        assert all(tokens > 0 for tokens in cached[1:]), cached
    assert "Traceback" not in server.read_text()


def test_metrics_are_published_beside_sglangs(server: Path, port: int) -> None:
    """Heads of the chats before were evicted, and refilled when the chats went on."""
    import httpx

    found = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
    values = {
        line.split("{")[0]: float(line.rsplit(" ", 1)[1])
        for line in found.splitlines()
        if line.startswith("sglang:penelope_")
    }
    assert values["sglang:penelope_evicted_tokens_total"] > 0, values
    assert values["sglang:penelope_phantom_tokens_total"] > 0, values
    assert "sglang:penelope_hole_tokens" in values


def test_streaming_and_a_client_that_leaves(server: Path, port: int) -> None:
    from openai import OpenAI

    question: Any = [{"role": "user", "content": "Go on. " + "y" * 500}]
    with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
        pieces = 0
        usage = None
        with client.chat.completions.create(
            model="tiny",
            messages=question,
            temperature=0,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        ) as stream:
            for chunk in stream:
                pieces += bool(chunk.choices)
                usage = chunk.usage or usage
        assert pieces >= 2
        assert usage is not None
        assert usage.completion_tokens <= 12
        for _ in range(5):
            with client.chat.completions.create(
                model="tiny", messages=question, temperature=0, max_tokens=200, stream=True
            ) as stream:
                next(iter(stream))
        answer = client.chat.completions.create(
            model="tiny", messages=question, temperature=0, max_tokens=4
        )
        assert answer.choices[0].finish_reason in ("length", "stop")


def test_malformed_requests_get_the_engines_answer(server: Path, port: int) -> None:
    import httpx

    url = f"http://127.0.0.1:{port}"
    bodies: list[dict[str, Any]] = [
        {},
        {"text": ""},
        {"input_ids": []},
        {"text": 5},
        {"text": "z" * 6000},
    ]
    for body in bodies:
        status = httpx.post(f"{url}/generate", json=body, timeout=60).status_code
        assert 400 <= status < 500, (body, status)
    assert httpx.get(f"{url}/health_generate", timeout=60).status_code == 200
    assert "memory leak" not in server.read_text()


@pytest.mark.parametrize(
    ("flags", "variables", "reason"),
    [
        (["--disable-radix-cache"], {}, "there is no cache without the tree"),
        (["--enable-hierarchical-cache"], {}, "another second tier"),
        (["--prefill-attention-backend", "flashinfer"], {}, "must be written before attention"),
        (["--radix-cache-backend", "flexkv"], {}, "runs the penelope cache"),
        ([], {"PENELOPE_POSITION": "middle"}, "choose from tail, leaf-head, private-head"),
        (["--penelope-order", "fifo"], {}, "choose from lru, expected-cost"),
        (
            ["--penelope-order=expected-cost"],
            {"PENELOPE_POSITION": "tail"},
            "weighs blocks at the head of a private span",
        ),
        ([], {"PENELOPE_BLOKSIZE": "3"}, "PENELOPE_BLOKSIZE is not an option"),
        (["--penelope-host-tokens", "8001"], {}, "not a multiple of page size"),
        (["--penelope-swap-tokens", "100"], {}, "not a whole number of blocks"),
        (["--penelope-host-tokens", "16000000000"], {}, "GB of host memory"),
    ],
)
def test_refused_at_start_up_in_one_line(
    model: Path, port: int, tmp_path: Path, flags: list[str], variables: dict[str, str], reason: str
) -> None:
    ended = subprocess.run(
        arguments(model, port, *flags),
        capture_output=True,
        text=True,
        timeout=200,
        cwd=ROOT,
        env=environment(tmp_path, **variables),
        check=False,
    )
    assert ended.returncode == 2, ended.stderr[-2000:]
    said = [line for line in ended.stderr.splitlines() if line.startswith("penelope serve: ")]
    assert len(said) == 1
    assert reason in said[0]
    assert "Traceback" not in ended.stderr
