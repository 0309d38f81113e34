"""Many clients at once: nobody is lost, texts are the same as alone, and whoever leaves gives everything back.

Each test has a size for every run and one for `make test-all`.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

import glassformer
from glassformer.serving.http.app import create_app
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.serving.conftest import serving
from tests.serving.test_server import raw_request, running, wait_until

PROMPTS = ["hi", "how are you?", "Name a colour, a town and a fruit.", "tell me a long story " * 12]
PATH = "/v1/chat/completions"


def sizes(small: int, large: int) -> Any:
    """A number for every run, and one for the sweep."""
    return pytest.mark.parametrize("count", [small, pytest.param(large, marks=pytest.mark.sweep)])


def body(prompt: str, tokens: int = 6, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": tokens, "ignore_eos": True, **more}


@pytest.fixture(scope="module")
def app(sources: tuple[ModelSource, ...]) -> FastAPI:
    return create_app(Registry(sources, Limits(stop_seconds=1, new_tokens=10**5, running=16)))


@pytest.fixture(scope="module")
def address(app: FastAPI) -> Iterator[str]:
    with serving(app) as address:
        httpx.post(f"{address}{PATH}", json=body("hi"), timeout=60).raise_for_status()
        yield address


@pytest.fixture(scope="module")
def texts(tiny_qwen3: Path) -> dict[str, str]:
    """What the model writes alone."""
    model = glassformer.load(tiny_qwen3)
    return {prompt: model.chat(prompt, max_new_tokens=6, do_sample=False, eos_token_id=[]) for prompt in PROMPTS}


async def answer(client: httpx.AsyncClient, prompt: str, stream: bool) -> tuple[int, str]:
    """The status and the text of one request."""
    if not stream:
        response = await client.post(PATH, json=body(prompt))
        return response.status_code, response.json()["choices"][0]["message"]["content"] if response.is_success else ""
    text = ""
    async with client.stream("POST", PATH, json=body(prompt, stream=True)) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                text += event["choices"][0]["delta"].get("content", "")
    return response.status_code, text


@sizes(small=64, large=5000)
def test_everybody_gets_the_text_of_a_run_alone(address: str, texts: dict[str, str], count: int) -> None:
    async def all_clients() -> list[tuple[str, int, str]]:
        numbers, answers = iter(range(count)), list[tuple[str, int, str]]()

        async def one_client(client: httpx.AsyncClient) -> None:
            for number in numbers:
                prompt = PROMPTS[number % len(PROMPTS)]
                answers.append((prompt, *await answer(client, prompt, stream=number % 2 == 0)))

        async with httpx.AsyncClient(base_url=address, timeout=120, limits=httpx.Limits(max_connections=64)) as client:
            await asyncio.gather(*(one_client(client) for _ in range(min(count, 64))))
        return answers

    answers = asyncio.run(all_clients())
    assert len(answers) == count
    wrong = [(status, text) for prompt, status, text in answers if (status, text) != (200, texts[prompt])]
    assert not wrong


@sizes(small=60, large=1000)
def test_a_burst_beyond_the_queue_is_told_to_come_back(sources: tuple[ModelSource, ...], count: int) -> None:
    limits = Limits(queued=count // 4, running=4, stop_seconds=1)

    async def burst(address: str) -> list[httpx.Response]:
        connections = httpx.Limits(max_connections=count)
        async with httpx.AsyncClient(base_url=address, timeout=120, limits=connections) as client:
            (await client.post(PATH, json=body("hi"))).raise_for_status()
            return await asyncio.gather(*(client.post(PATH, json=body("hi", 8)) for _ in range(count)))

    with serving(create_app(Registry(sources, limits))) as address:
        responses = asyncio.run(burst(address))
    statuses = Counter(response.status_code for response in responses)
    assert set(statuses) == {200, 429}
    assert statuses[200] >= count // 4
    for response in responses:
        if response.status_code == 429:
            assert response.headers["Retry-After"] == "1"
            assert "requests are waiting for" in response.json()["error"]["message"]


@sizes(small=24, large=500)
def test_clients_that_leave_at_any_moment_free_their_rows(app: FastAPI, address: str, count: int) -> None:
    url, draw = httpx.URL(address), random.Random(3)

    async def leave(number: int) -> None:
        request = raw_request(body(PROMPTS[number % 4] + str(number), 3000, stream=number % 2 == 0))
        await asyncio.sleep(draw.random() * 0.2)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(request)
        await writer.drain()
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(10**6), draw.random() * 0.4)
        writer.transport.abort()

    async def all_clients() -> None:
        for start in range(0, count, 100):
            await asyncio.gather(*(leave(number) for number in range(start, min(start + 100, count))))

    asyncio.run(all_clients())
    wait_until(lambda: running(app) == 0, seconds=30)
    assert not app.state.context.deliveries._listeners


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@sizes(small=48, large=20_000)
def test_memory_does_not_grow_with_requests(address: str, count: int) -> None:
    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * 4096

    async def ask(number: int) -> None:
        async with httpx.AsyncClient(base_url=address, timeout=120) as client:

            async def some() -> None:
                for _ in range(number // 8):
                    await answer(client, random.choice(PROMPTS), stream=random.random() < 0.5)

            await asyncio.gather(*(some() for _ in range(8)))

    asyncio.run(ask(48))
    before = resident()
    asyncio.run(ask(count))
    assert resident() - before < 50 * 2**20
