"""What is known of every request when it is over: its id, a line in the access log, its count and time for Prometheus.

Prometheus's format has three kinds of lines (HELP, TYPE, a sample), so it is written here rather than by a library, whose
registries are global and would mix the numbers of two servers in one process.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassformer.serving.registry import Registry

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
Labels = tuple[tuple[str, str], ...]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METHODS = ("GET", "POST", "OPTIONS", "HEAD")
CLIENT_ID = re.compile(r"[\w.:+/=-]{1,128}", re.ASCII)  # an id that a client or a proxy may give to its request
LONGEST_PATH = 200  # characters of it in a line
log = logging.getLogger("glassformer.access")


@dataclass
class Counter:
    name: str
    about: str
    values: dict[Labels, float] = field(default_factory=dict)

    def add(self, amount: float = 1, **labels: str) -> None:
        key = tuple(labels.items())
        self.values[key] = self.values.get(key, 0) + amount

    def lines(self) -> Iterator[str]:
        yield from header(self.name, self.about, "counter")
        for labels, value in self.values.items():
            yield sample(self.name, labels, value)


@dataclass
class SecondsHistogram:
    name: str
    about: str
    bounds: tuple[float, ...] = SECONDS
    values: dict[Labels, tuple[list[int], list[float]]] = field(default_factory=dict)  # counts by bucket; the sum

    def add(self, value: float, **labels: str) -> None:
        counts, total = self.values.setdefault(tuple(labels.items()), ([0] * (len(self.bounds) + 1), [0.0]))
        counts[bisect_left(self.bounds, value)] += 1
        total[0] += value

    def lines(self) -> Iterator[str]:
        yield from header(self.name, self.about, "histogram")
        for labels, (counts, total) in self.values.items():
            upto = 0
            for bound, count in zip((*map(str, self.bounds), "+Inf"), counts, strict=True):
                upto += count
                yield sample(f"{self.name}_bucket", (*labels, ("le", bound)), upto)
            yield sample(f"{self.name}_sum", labels, total[0])
            yield sample(f"{self.name}_count", labels, upto)


class Metrics:
    """One server's numbers. Counted on the event loop, so there is a lock only for who reads them elsewhere."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests = Counter("glass_requests_total", "Requests answered, by route, method and status.")
        self.request_seconds = SecondsHistogram("glass_request_seconds", "From a request's first byte to its answer's last.")
        self.first_token_seconds = SecondsHistogram(
            "glass_first_token_seconds", "From a request to the first token of its answer."
        )
        self.prompt_tokens = Counter("glass_prompt_tokens_total", "Tokens of prompts, cached ones included.")
        self.cached_tokens = Counter("glass_cached_tokens_total", "Tokens of prompts that did not have to be read again.")
        self.generated_tokens = Counter("glass_generated_tokens_total", "Tokens generated.")

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        with self._lock:
            self.requests.add(route=route, method=method, status=str(status))
            self.request_seconds.add(seconds, route=route)

    def count_answer(
        self, model: str, *, prompt_tokens: int, cached_tokens: int, generated_tokens: int, first_token: float | None
    ) -> None:
        with self._lock:
            self.prompt_tokens.add(prompt_tokens, model=model)
            self.cached_tokens.add(cached_tokens, model=model)
            self.generated_tokens.add(generated_tokens, model=model)
            if first_token is not None:
                self.first_token_seconds.add(first_token, model=model)

    def text(self, registry: Registry) -> str:
        """All numbers, those of the registry's models as they are now among them."""
        with self._lock:
            counted = (
                self.requests, self.request_seconds, self.first_token_seconds, self.prompt_tokens, self.cached_tokens,
                self.generated_tokens,
            )  # fmt: skip
            lines = [line for metric in counted for line in metric.lines()]
        statistics = {name: served.scheduler.statistics() for name, served in registry.served().items()}
        running = {name: float(numbers.running) for name, numbers in statistics.items()}
        waiting = {name: float(numbers.waiting) for name, numbers in statistics.items()}
        lines += model_samples("glass_texts_running", "Texts that are being written.", "gauge", running)
        lines += model_samples("glass_requests_waiting", "Requests in the queue.", "gauge", waiting)
        lines += model_samples(
            "glass_drafted_tokens_total", "Tokens drafted, and checked.", "counter",
            {name: float(numbers.drafted_tokens) for name, numbers in statistics.items()},
        )  # fmt: skip
        lines += model_samples(
            "glass_accepted_draft_tokens_total", "Drafted tokens that the model chose too.", "counter",
            {name: float(numbers.accepted_tokens) for name, numbers in statistics.items()},
        )  # fmt: skip
        loaded = {name: float(name in statistics) for name in registry.sources}
        lines += model_samples("glass_model_loaded", "Whether a model is loaded.", "gauge", loaded)
        return "\n".join(lines) + "\n"


def sum_metrics(texts: Sequence[str]) -> str:
    """The numbers of several servers as those of one: every sample is the sum of theirs."""
    sums: dict[str, float] = {}
    about: dict[str, str] = {}  # HELP and TYPE, by metric
    order: dict[str, list[str]] = {}  # samples, by metric
    for line in (line for text in texts for line in text.splitlines()):
        if line.startswith("#"):
            metric = line.split(" ", 3)[2]
            about.setdefault(metric, "")
            about[metric] += "" if line in about[metric] else f"{line}\n"
            order.setdefault(metric, [])
            continue
        sample_name, _, value = line.rpartition(" ")
        if sample_name not in sums:
            order[metric].append(sample_name)
        sums[sample_name] = sums.get(sample_name, 0.0) + float(value)
    return "".join(about[name] + "".join(f"{each} {sums[each]:.12g}\n" for each in order[name]) for name in about)


def model_samples(name: str, about: str, kind: str, values: Mapping[str, float]) -> list[str]:
    """A number of each model, as it is now."""
    return [*header(name, about, kind), *(sample(name, (("model", model),), value) for model, value in values.items())]


def header(name: str, about: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"


def sample(name: str, labels: Labels, value: float) -> str:
    """A line of the format.

    >>> sample("glass_requests_total", (("route", "/health"),), 2)
    'glass_requests_total{route="/health"} 2'
    """
    inner = ",".join(f'{label}="{_escape(text)}"' for label, text in labels)
    return f"{name}{{{inner}}} {value:.12g}" if labels else f"{name} {value:.12g}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class RequestLog:
    """The outermost middleware: gives each request an id, counts it by its route, and logs it."""

    def __init__(self, app: ASGIApp, metrics: Metrics | None, lines: bool = False) -> None:
        """`metrics`: where requests are counted, if they are; `lines`: whether each is a line in the log."""
        self.app, self.metrics, self.lines = app, metrics, lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, request_id = time.perf_counter(), 500, request_id_of(scope)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                if scope["path"].startswith("/v1/messages"):  # as Anthropic's clients look for it
                    headers["Request-Id"] = request_id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - began
            route: Any = scope.get("route")
            name = getattr(route, "path", "other")  # never what a client wrote, which would be endless
            method = scope["method"] if scope["method"] in METHODS else "other"
            if self.metrics is not None:
                self.metrics.count_request(name, method, status, seconds)
            if self.lines:
                path = scope.get("raw_path", b"").decode("ascii", "backslashreplace")[:LONGEST_PATH]
                host, _ = scope.get("client") or ("-", 0)
                log.info("%s %s %s %d %.3f s %s", host, method, path, status, seconds, request_id)


def request_id_of(scope: Scope) -> str:
    """The id that a request brings, or a new one."""
    brought = Headers(scope=scope).get("x-request-id", "")
    return brought if CLIENT_ID.fullmatch(brought) else f"req_{secrets.token_hex(12)}"
