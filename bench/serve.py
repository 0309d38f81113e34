"""The server beside others: the same model, the same requests over OpenAI's API, in one run.

    python bench/serve.py [--llama-server PATH] [--transformers] [--model NAME] [--clients 1,4,16,64] [--rounds 3]
    python bench/serve.py --scheduler gpu [--clients 256]

Each server is a process of its own, started in turn, on a free port of this machine; the client is this process. Requests
are streamed chats, greedy, of up to `--tokens` tokens, each with a prompt of its own. Servers that are not
named are left out.

    load       tokens/s and the time to the first token (median, 95 %) with so many clients, each of which asks again as soon
               as it is answered
    beside     the time to the first token of short requests (95 %) while somebody's prompt of 4,000 tokens is read
    second     the time to the first token of a chat's second turn, after 2,000 tokens of history, ÷ that of an empty chat:
               one with as long a question, and nothing before it but a system message, as both have. `ratio`: the system
               message is new to the server, as the whole chat is; `known`: it knows the message from other chats

`--scheduler EXECUTOR` measures the load without HTTP, by the scheduler alone in this process: so without fastapi. Weights
are random, on the GPU of Qwen3-0.6B's shape and tiny elsewhere; prompts have 128 tokens, and so have answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from common import report

TOPICS = ["lighthouses", "glass", "rivers", "bread", "clocks", "trains", "bees", "maps", "snow", "violins"]
LONG_WORD = "The keeper of the lighthouse told me how the storm came in that night. "  # some 15 tokens
START_SECONDS = 180.0
Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Answer:
    """What one request gave: when each piece came, in seconds since it was sent, and its text."""

    times: tuple[float, ...]
    tokens: int
    text: str

    @property
    def first(self) -> float:
        return self.times[0]


@dataclass(frozen=True)
class Server:
    name: str
    port: int
    model: str

    async def ask(self, messages: Messages, tokens: int) -> Answer:
        """One streamed chat, over a connection of its own."""
        body: dict[str, Any] = {
            "model": self.model, "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        )
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(head.encode() + data)
            await writer.drain()
            times, pieces, count = [], [], 0
            async for event in _events(reader):
                count = (event.get("usage") or {}).get("completion_tokens", count)
                delta = event["choices"][0].get("delta", {}) if event.get("choices") else {}
                if content := delta.get("content"):
                    times.append(time.perf_counter() - began)
                    pieces.append(content)
        finally:
            writer.close()
        if not pieces:
            raise RuntimeError(f"{self.name} gave no text")
        return Answer(tuple(times), count or len(pieces), "".join(pieces))


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The JSON events of a stream; an answer that is none is an error."""
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError((status + await reader.read(2000)).decode(errors="replace"))
    async for line in reader:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            yield json.loads(line[6:])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(name: str, command: Sequence[str], model: str, port: int) -> Iterator[Server]:
    """A server's process, once it answers."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ})
    server = Server(name, port, model)
    try:
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                asyncio.run(server.ask([{"role": "user", "content": "Hello"}], 4))
                break
            except (OSError, RuntimeError):
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{name} does not answer: {' '.join(command)}") from None
                time.sleep(0.5)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def question(number: int) -> Messages:
    topic = TOPICS[number % len(TOPICS)]
    return [{"role": "user", "content": f"Tell me a long story about {topic}, in {number + 3} parts, with many details."}]


async def load(server: Server, clients: int, requests: int, tokens: int) -> dict[str, float]:
    """So many clients, each of which sends its requests one after the other."""
    answers: list[Answer] = []

    async def client(number: int) -> None:
        answers.extend([await server.ask(question(clients * turn + number), tokens) for turn in range(requests)])

    began = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    seconds = time.perf_counter() - began
    firsts = sorted(answer.first for answer in answers)
    return {
        "tokens/s": sum(answer.tokens for answer in answers) / seconds,
        "first": statistics.median(firsts),
        "first95": firsts[min(len(firsts) - 1, int(0.95 * len(firsts)))],
    }


async def beside(server: Server, tokens: int) -> float:
    """The 95 % first-token time of short requests that come while a long prompt is read."""
    long = [{"role": "user", "content": f"[{time.time()}] " + LONG_WORD * 260 + "What happened?"}]
    reading = asyncio.create_task(server.ask(long, tokens))
    firsts: list[float] = []
    number = 0
    while not reading.done():
        number += 1
        firsts.append((await server.ask([{"role": "user", "content": f"What is {number} plus one?"}], 4)).first)
    await reading
    return sorted(firsts)[min(len(firsts) - 1, int(0.95 * len(firsts)))]


async def second_turn(server: Server, tokens: int) -> dict[str, float]:
    """The first token's time of a second turn after a long first one, ÷ that of an empty chat."""
    number = time.time()  # so that nothing of it has been read before
    system, other = ({"role": "system", "content": f"You help reader {number} of {club}."} for club in ("our club", "yours"))
    history = [system, {"role": "user", "content": LONG_WORD * 130 + "What happened?"}]
    first = await server.ask(history, tokens)
    questions = [
        {"role": "user", "content": f"And what did {name} do then, when all of it was over?"} for name in TOPICS[:3]
    ]
    unknown, known = [(await server.ask([other, question], 4)).first for question in questions[:2]]
    turn = [*history, {"role": "assistant", "content": first.text}, questions[2]]
    second = (await server.ask(turn, 4)).first
    return {"ratio": second / unknown, "known": second / known}


def scheduler_load(executor: str, clients: int, requests: int, tokens: int = 128) -> dict[str, float]:
    """As `load`, by the scheduler alone: clients are callbacks on a thread of their own."""
    import glassformer
    from glassformer.serving.scheduler import Event, Generation, Scheduler, SchedulerLimits
    from gpu import checkpoint, prompt

    model = glassformer.load(checkpoint("qwen3" if executor == "gpu" else "tiny"), executor=executor)
    options: dict[str, Any] = {"raw": True, "max_new_tokens": tokens, "eos_token_id": None, "do_sample": False}
    arrived: SimpleQueue[Sequence[Event]] = SimpleQueue()
    limits = SchedulerLimits(running=clients, queued=clients, cached_tokens=2 * clients * (tokens + 128))
    scheduler = Scheduler(model, arrived.put, limits)

    def measure(first: int, answers: int) -> tuple[float, list[float]]:
        """Tokens a second of so many answers, and their times to the first token."""
        runs = [model.start(prompt(128, first + number), **options) for number in range(answers)]
        running = {scheduler.submit([runs.pop()], client=str(number)): str(number) for number in range(clients)}
        firsts: dict[Generation, float] = {}
        began, count, ended = time.perf_counter(), 0, 0
        while ended < answers:
            for event in arrived.get():
                if event.error is not None:
                    raise event.error
                firsts.setdefault(event.generation, event.seconds)
                count += 1
                if event.step is not None and event.step.finish is not None:
                    ended += 1
                    if runs:
                        client = running[event.generation]
                        running[scheduler.submit([runs.pop()], client=client)] = client
        return count / (time.perf_counter() - began), [*firsts.values()]

    measure(0, clients)  # kernels are compiled, and graphs captured
    rate, seconds = measure(clients, clients * requests)
    statistics_now = scheduler.statistics()
    scheduler.close()
    firsts = sorted(seconds)
    passes = statistics_now.pass_seconds
    return {
        "tokens/s": round(rate, 1), "first": round(statistics.median(firsts), 3),
        "first95": round(firsts[int(0.95 * (len(firsts) - 1))], 3), "pass": round(statistics.median(passes), 5),
    }  # fmt: skip


def contestants(options: argparse.Namespace) -> Iterator[tuple[str, list[str], str, int]]:
    """Each server's name, command, what it calls the model, and its port."""
    from glassformer.checkpoint.locate import locate

    path = locate(options.model)
    port = free_port()
    glass = [sys.executable, "-m", "glassformer", "serve", "--port", str(port), "--model", str(options.model)]
    yield "ours", [*glass, *options.serve_option], str(options.model), port
    if options.llama_server:
        port = free_port()
        slots = max(options.clients)
        yield "llama.cpp", [
            str(options.llama_server), "-m", str(_file(path)), "--port", str(port), "-t", str(options.threads),
            "-np", str(slots), "-c", str(slots * 512 + 8192), "--kv-unified", "--no-webui",
        ], "model", port  # fmt: skip
    if options.transformers:
        port, model = free_port(), str(unpacked(_file(path)))
        yield "transformers", [
            str(Path(sys.executable).with_name("transformers")), "serve", model, "--host", "127.0.0.1", "--port", str(port),
            "--device", "cpu",
        ], model, port  # fmt: skip


def _file(path: Path) -> Path:
    """A GGUF file, or the one in a folder; a folder without one as it is."""
    return next(iter(sorted(path.glob("*.gguf"))), path) if path.is_dir() else path


def unpacked(file: Path) -> Path:
    """A GGUF file's model as a folder in float32, since `transformers serve` reads no such file; a folder as it is."""
    if file.is_dir():
        return file
    from glassformer import AutoModelForCausalLM, AutoTokenizer
    from glassformer.ground.files import home

    folder = home() / "bench" / f"{file.stem}-unpacked"
    if not (folder / "model.safetensors").exists():
        AutoTokenizer.from_pretrained(file).save_pretrained(folder)
        AutoModelForCausalLM.from_pretrained(file).save_pretrained(folder)
    return folder


def measure(server: Server, options: argparse.Namespace, clients: int) -> dict[str, float]:
    return asyncio.run(load(server, clients, options.requests, options.tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--transformers", action="store_true", help="beside `transformers serve` too")
    parser.add_argument("--clients", type=lambda text: [int(part) for part in text.split(",")], default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=2, help="of each client in a round")
    parser.add_argument("--tokens", type=int, default=48, help="of each answer at most")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--serve-option", action="append", default=[], help="a further option of glass serve")
    parser.add_argument("--scheduler", metavar="EXECUTOR", help="no servers: the scheduler alone, on 'gpu' or another")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.scheduler:
        rows = [
            {"clients": clients, **scheduler_load(options.scheduler, clients, options.requests)}
            for clients in options.clients
        ]
        report("scheduler", rows)
        return
    for name, command, model, port in contestants(options):
        with running(name, command, model, port) as server:
            for clients in options.clients:
                runs = [measure(server, options, clients) for _ in range(options.rounds)]
                medians = {key: round(statistics.median(run[key] for run in runs), 3) for key in runs[0]}
                rows.append({"server": name, "part": "load", "clients": clients, **medians})
                print(rows[-1], file=sys.stderr, flush=True)
            waits = [asyncio.run(beside(server, options.tokens)) for _ in range(options.rounds)]
            rows.append({"server": name, "part": "beside", "first95": round(statistics.median(waits), 3)})
            turns = [asyncio.run(second_turn(server, options.tokens)) for _ in range(options.rounds)]
            ratios = {key: round(statistics.median(turn[key] for turn in turns), 2) for key in turns[0]}
            rows.append({"server": name, "part": "second", **ratios})
            print(rows[-2], rows[-1], file=sys.stderr, flush=True)
    report("serve", rows)


if __name__ == "__main__":
    main()
