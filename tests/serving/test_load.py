"""Many clients at once: nobody is lost, texts are the same as alone, and whoever leaves gives everything back.

Each test has a size for every run and one for `make test-all`.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

import glassformer
from glassformer.serving.http.app import create_app
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from glassformer.serving.scheduler import Scheduler
from tests.patience import patience, wait_until
from tests.serving.conftest import serving
from tests.serving.test_server import connection, raw_request, running

PROMPTS = ["hi", "how are you?", "Name a colour, a town and a fruit.", "tell me a long story " * 12]
PATH = "/v1/chat/completions"
ROUND = 16  # texts in one batch


def sizes(small: int, large: int) -> Any:
    """A number for every run, and one for the sweep."""
    return pytest.mark.parametrize("count", [small, pytest.param(large, marks=pytest.mark.sweep)])


def body(prompt: str, tokens: int = 6, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": tokens, "ignore_eos": True, **more}


@pytest.fixture(scope="module")
def app(sources: tuple[ModelSource, ...]) -> FastAPI:
    return create_app(Registry(sources, Limits(stop_seconds=1, new_tokens=10**5, running=ROUND)))


@pytest.fixture(scope="module")
def address(app: FastAPI) -> Iterator[str]:
    with serving(app) as address:
        httpx.post(f"{address}{PATH}", json=body("hi"), timeout=patience(60)).raise_for_status()
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

        async with httpx.AsyncClient(
            base_url=address, timeout=patience(120), limits=httpx.Limits(max_connections=64)
        ) as client:
            await asyncio.gather(*(one_client(client) for _ in range(min(count, 64))))
        return answers

    answers = asyncio.run(all_clients())
    assert len(answers) == count
    wrong = [(status, text) for prompt, status, text in answers if (status, text) != (200, texts[prompt])]
    assert not wrong


async def exchange(address: str, request: bytes) -> bytes:
    """What the server sends to a connection of its own until it closes it."""
    url = httpx.URL(address)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(request)
    try:
        return await reader.read(-1)
    finally:
        writer.close()


@sizes(small=60, large=1000)
def test_a_burst_beyond_the_queue_is_told_to_come_back(sources: tuple[ModelSource, ...], count: int) -> None:
    queued = count // 4
    app = create_app(Registry(sources, Limits(queued=queued, running=4, stop_seconds=1, connections_per_address=count + 1)))
    request = raw_request(body("hi", 8), Connection="close")

    async def burst(address: str) -> list[bytes]:
        """The scheduler waits for its turn until all that the queue cannot hold have been answered."""
        (await exchange(address, request)).index(b"200 OK")
        turns = app.state.context.registry.served()["tiny"].scheduler._lock
        with turns:
            answers = [asyncio.create_task(exchange(address, request)) for _ in range(count)]
            while sum(task.done() for task in answers) < count - queued:
                await asyncio.sleep(0.01)
        return await asyncio.gather(*answers)

    with serving(app) as address:
        answers = asyncio.run(burst(address))
    refused = [answer for answer in answers if answer.startswith(b"HTTP/1.1 429")]
    assert len(refused) == count - queued
    assert all(b"retry-after: 1\r\n" in answer for answer in refused)
    assert all(b"are waiting for" in answer for answer in refused)  # the model, or preparation before it
    assert sum(b'"finish_reason":"length"' in answer for answer in answers) == queued


@contextmanager
def paused(scheduler: Scheduler) -> Iterator[Callable[[], None]]:
    """A scheduler that stands still between two passes; yields what lets it do one more, if it has come for it."""
    with ExitStack() as turn:
        turn.enter_context(scheduler._lock)

        def do_one_pass() -> None:
            turn.close()
            turn.enter_context(scheduler._lock)  # turns are given in the order in which they were asked for

        yield do_one_pass


@sizes(small=8, large=168)
@pytest.mark.parametrize("moment", ["queued", "reading", "decoding"])
def test_clients_that_leave_free_their_rows(app: FastAPI, address: str, moment: str, count: int) -> None:
    """Half of them streamed. All leave at one moment, and within two passes nothing of them is left."""
    served = app.state.context.registry.served()["tiny"]
    scheduler: Scheduler = served.scheduler

    def begun() -> list[bool]:
        """Of each text in the batch, whether it has tokens."""
        return [bool(generation.runs[number].steps) for generation, number in scheduler._running.values()]

    def leave(numbers: range) -> None:
        moments = {"queued": [], "reading": [False] * len(numbers), "decoding": [True] * len(numbers)}
        story = " tell me a long story" * (40 if moment == "reading" else 1)  # more than one pass reads, or less
        with paused(scheduler) as do_one_pass, ExitStack() as clients:
            for number in numbers:
                client = clients.enter_context(connection(address))
                client.sendall(raw_request(body(f"{moment} {number} of {count}{story}", 3000, stream=number % 2 == 0)))
            wait_until(lambda: scheduler.statistics().waiting == len(numbers))
            generated = scheduler.statistics().generated_tokens
            for _ in range(1000):
                if begun() == moments[moment]:
                    break
                do_one_pass()
                time.sleep(0.002)  # for the tokens to be delivered
            assert begun() == moments[moment]
            clients.close()
            wait_until(lambda: served.users == 0)
            passes = scheduler.statistics().passes
        wait_until(lambda: running(app) == 0)
        after = scheduler.statistics()
        assert after.passes - passes <= 2
        assert (after.generated_tokens > generated) == (moment == "decoding")

    wait_until(lambda: running(app) == 0)
    for start in range(0, count, ROUND):
        leave(range(start, min(start + ROUND, count)))
    assert not app.state.context.deliveries._listeners


@sizes(small=3, large=50)
def test_readers_that_stop_reading_hold_up_nobody(address: str, texts: dict[str, str], count: int) -> None:
    """The server keeps what they do not read, other clients are answered meanwhile, and in the end they get it all."""
    url, tokens = httpx.URL(address), 80  # more than the sockets' buffers hold

    async def seconds_of_others(requests: int) -> list[float]:
        waits = []
        async with httpx.AsyncClient(base_url=address, timeout=patience(120)) as client:
            for number in range(requests):
                began = time.perf_counter()
                assert await answer(client, PROMPTS[number % 4], stream=True) == (200, texts[PROMPTS[number % 4]])
                waits.append(time.perf_counter() - began)
        return sorted(waits)

    async def all_clients() -> None:
        before = await seconds_of_others(2 * count)
        slow = [await asyncio.open_connection(url.host, url.port, limit=1024) for _ in range(count)]
        for number, (_, writer) in enumerate(slow):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            writer.write(raw_request(body(f"{number}", tokens, stream=True), Connection="close"))
        while any(not reader._buffer for reader, _ in slow):  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        beside = await seconds_of_others(2 * count)
        times = [f"{seconds[-1 - count // 10]:.3f} s" for seconds in (before, beside)]
        print(f"{count} slow readers: 95 % of the others took {times[0]} before, {times[1]} beside them")
        for received in await asyncio.gather(*(reader.read(-1) for reader, _ in slow)):
            assert received.count(b'"finish_reason":"length"') == 1
        for _, writer in slow:
            writer.close()

    asyncio.run(all_clients())


@sizes(small=20, large=500)
def test_half_open_connections_are_closed_in_time(sources: tuple[ModelSource, ...], count: int) -> None:
    limits = Limits(stop_seconds=0) if count > 100 else Limits(stop_seconds=0, header_seconds=1)
    beginnings = [b"", b"P", raw_request(body("hi"))[:60]]  # they stop before, within and after the first line

    async def all_clients(address: str) -> list[bytes]:
        waiting = (exchange(address, beginnings[number % 3]) for number in range(count))
        return await asyncio.wait_for(asyncio.gather(*waiting), patience(15))

    with serving(create_app(Registry(sources, limits))) as address:
        assert set(asyncio.run(all_clients(address))) == {b""}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@sizes(small=48, large=20_000)
def test_memory_does_not_grow_with_requests(address: str, count: int) -> None:
    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * 4096

    async def ask(number: int) -> None:
        async with httpx.AsyncClient(base_url=address, timeout=patience(120)) as client:

            async def some() -> None:
                for _ in range(number // 8):
                    await answer(client, random.choice(PROMPTS), stream=random.random() < 0.5)

            await asyncio.gather(*(some() for _ in range(8)))

    asyncio.run(ask(48))
    before = resident()
    asyncio.run(ask(count))
    assert resident() - before < 50 * 2**20
