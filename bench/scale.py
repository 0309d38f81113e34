"""What a cluster costs in the one process that all rows or requests go through: the driver of a job, the front of a server.

    python bench/scale.py

Times are CPU seconds of that process, which other work on the machine does not change. Tiny models in two workers: what is
measured is everything but the model.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import ray
from tests.jobs.models import chat_folder

import glassformer
from glassformer.jobs.ledger import Ledger
from glassformer.scale import run_job
from glassformer.scale.cluster import allot, machines
from glassformer.scale.front import create_front, deployed
from glassformer.scale.prefixes import PrefixIndex, prefix_keys
from glassformer.serving.http.security import Security
from glassformer.serving.http.server import GlassServer
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource

ROWS, TOKENS, CLIENTS, REQUESTS = 4000, 32, 16, 320
LOAD = partial(glassformer.load, str(chat_folder()), executor="cpu")


def cpu_seconds(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def measure_ledger(folder: Path) -> None:
    record = {"failed": False, "prompt_tokens": 128, "completion_tokens": 128, "output": {"id": 1, "text": "word " * 128}}
    with Ledger(folder / "ledger") as ledger:
        ledger.start({"job": {}})
        seconds = cpu_seconds(lambda: [ledger.append(row, record) for row in range(20_000)])
    print(f"ledger: {seconds / 20_000 * 1e6:.0f} µs a row")


def measure_job(folder: Path) -> None:
    rows = (json.dumps({"id": number, "prompt": "the cat sat " * 4}) for number in range(ROWS))
    (folder / "in.jsonl").write_text("\n".join(rows), "utf-8")
    job = partial(run_job, LOAD, folder / "in.jsonl", folder / "out.jsonl", workers=2, max_new_tokens=4)
    print(f"driver of a job: {cpu_seconds(job) / ROWS * 1e6:.0f} µs a row")


def measure_router() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "a word and another " * 420}]}).encode()
    seconds = cpu_seconds(lambda: [prefix_keys(body) for _ in range(1000)]) / 1000
    print(f"keys of a prompt of {len(body):,} bytes: {seconds * 1e6:.0f} µs")
    keys = prefix_keys(body)
    for count in (10, 1000):
        index: PrefixIndex[int] = PrefixIndex()
        index.record(keys, count // 2)
        loads = {replica: replica % 7 for replica in range(count)}
        rank = partial(index.rank, keys, loads)
        print(f"router, {count} replicas: {cpu_seconds(lambda: [rank() for _ in range(300)]) / 300 * 1e6:.0f} µs")  # noqa: B023


def measure_front() -> None:
    limits = Limits(stop_seconds=1)
    with (
        deployed(ray, make_sources, limits, allot(machines(ray), 2), "bench") as replicas,
        ProcessPoolExecutor(1, get_context("spawn")) as clients,
    ):
        server = GlassServer(create_front(replicas, limits, Security()), port=0)
        thread = threading.Thread(target=server.run)
        thread.start()
        server.ready.wait()
        clients.submit(ask_all, server.address, CLIENTS).result()
        seconds = cpu_seconds(clients.submit(ask_all, server.address, REQUESTS).result)
        server.stop()
        thread.join()
    print(f"front: {seconds / REQUESTS * 1e3:.2f} ms a request of {TOKENS} tokens")


def ask_all(address: str, count: int) -> None:
    asyncio.run(ask(address, count))


def make_sources() -> list[ModelSource]:
    return [ModelSource("tiny", LOAD)]


async def ask(address: str, count: int) -> None:
    """Streamed texts, some at a time."""
    body = {"model": "tiny", "prompt": "hi", "max_tokens": TOKENS, "temperature": 0, "stream": True}
    places = asyncio.Semaphore(CLIENTS)

    async def request(client: httpx.AsyncClient) -> None:
        async with places, client.stream("POST", "/v1/completions", json=body) as response:
            async for _ in response.aiter_bytes():
                pass

    async with httpx.AsyncClient(base_url=address, timeout=120) as client:
        await asyncio.gather(*(request(client) for _ in range(count)))


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    measure_ledger(folder)
    measure_router()
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False,
        logging_level="ERROR",
    )  # fmt: skip
    measure_job(folder)
    measure_front()
    ray.shutdown()


if __name__ == "__main__":
    main()
