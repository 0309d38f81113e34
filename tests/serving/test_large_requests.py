"""Large requests: others are answered meanwhile, what cannot be read is refused at once, and the refusal is read."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.testclient import TestClient

import glassformer
from glassformer.serving.http import body as body_module
from glassformer.serving.http.app import create_app
from glassformer.serving.http.body import LARGE_BODY, json_values
from glassformer.serving.http.security import Security
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from glassformer.text import Tokenizer
from tests.parity.reference import write
from tests.serving.conftest import KEY, ask, serving
from tests.serving.test_server import connection

LONGEST_WAIT = 60
MESSAGE, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.fixture(scope="module")
def short_context(tmp_path_factory: pytest.TempPathFactory, qwen3_tokenizer: Path) -> Path:
    """A model with the real tokenizer, and room for few tokens."""
    folder = tmp_path_factory.mktemp("short-context")
    write(folder, "qwen3", vocab_size=151936, hidden_size=32, intermediate_size=64, head_dim=8, tie_word_embeddings=True,
          max_position_embeddings=64)  # fmt: skip
    for file in qwen3_tokenizer.iterdir():
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def app(short_context: Path, sources: tuple[ModelSource, ...]) -> FastAPI:
    return create_app(Registry([*sources, ModelSource("short", lambda: glassformer.load(short_context))]))


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[httpx.Client]:
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def address(sources: tuple[ModelSource, ...]) -> Iterator[str]:
    """A server with its model loaded."""
    with serving(create_app(Registry(sources, Limits(stop_seconds=1)))) as address:
        httpx.post(f"{address}/tokenize", json={"content": "a"}, timeout=LONGEST_WAIT).raise_for_status()
        yield address


def test_others_are_answered_while_a_long_text_is_encoded(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    began, order, encode = threading.Event(), list[str](), Tokenizer._encodings

    def noted(self: Tokenizer, batch: list[Any], *rest: Any) -> Any:
        began.set()
        try:
            return encode(self, batch, *rest)
        finally:
            order.append("encoded")

    monkeypatch.setattr(Tokenizer, "_encodings", noted)
    text = "the quick brown fox jumps over the lazy dog. " * 20_000
    answers: list[httpx.Response] = []
    asking = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{address}/tokenize", json={"content": text}, timeout=LONGEST_WAIT))
    )
    asking.start()
    assert began.wait(LONGEST_WAIT)
    assert httpx.get(f"{address}/health", timeout=LONGEST_WAIT).status_code == 200
    order.append("health")
    asking.join(LONGEST_WAIT)
    assert order == ["health", "encoded"]
    assert answers[0].status_code == 400
    assert "tokens; this server lists 131,072 at most. Send it in parts." in answers[0].json()["error"]["message"]


DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "{}"}]},
    "/v1/completions": {"prompt": "{}"},
    "/v1/responses": {"input": "{}"},
    "/v1/messages": {"messages": [{"role": "user", "content": "{}"}], "max_tokens": 1},
    "/api/chat": {"messages": [{"role": "user", "content": "{}"}]},
    "/api/generate": {"prompt": "{}"},
    "/glass/trace": {"prompt": "{}"},
}


@pytest.mark.parametrize("path", DIALECTS)
def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(
    client: httpx.Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = Tokenizer._encodings

    def short_ones(self: Tokenizer, batch: list[Any], *rest: Any) -> Any:
        assert all(len(text) < 1000 for text in batch if isinstance(text, str))
        return encode(self, batch, *rest)

    monkeypatch.setattr(Tokenizer, "_encodings", short_ones)
    body = json.dumps({"model": "short", **DIALECTS[path]}).replace("{}", "fox " * 50_000)
    answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert "tokens does not fit into the model's context of 64. Shorten it." in message
    if "code" in error and not isinstance(error, str):
        assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/completions", {"prompt": ["a"] * 200_000}, "the body has 200,003 values; this server reads 131,072 at most"),
        ("/v1/chat/completions", {"messages": [MESSAGE] * 60_000}, "values; this server reads 131,072 at most."),
        ("/v1/chat/completions", {"messages": [MESSAGE] * 4097}, "messages has 4097 entries; this server allows 4096"),
        ("/v1/messages", {"messages": [MESSAGE, ANSWER] * 2049, "max_tokens": 1}, "messages has 4098 entries"),
        ("/v1/messages/count_tokens", {"messages": [MESSAGE, ANSWER] * 2049}, "messages has 4098 entries"),
        ("/api/chat", {"messages": [MESSAGE] * 4097}, "messages has 4097 entries"),
        ("/apply-template", {"messages": [MESSAGE] * 4097}, "messages has 4097 entries"),
        ("/glass/trace", {"prompt": [MESSAGE] * 4097}, "messages has 4097 entries"),
        ("/v1/chat/completions", {"messages": [MESSAGE],
         "tools": [{"type": "function", "function": {"name": f"f{number}"}} for number in range(129)]},
         "tools has 129 entries; this server allows 128 at most."),
        ("/v1/completions", {"prompt": "a", "bad_words": ["b"] * 4097}, "bad_words has 4097 entries"),
        ("/v1/completions", {"prompt": "a", "choices": ["b"] * 4097}, "choices has 4097 entries"),
    ],
)  # fmt: skip
def test_long_lists_are_refused(client: httpx.Client, path: str, body: dict[str, Any], message: str) -> None:
    answer = client.post(path, json={"model": "tiny", **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert message in (error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/completions", {"prompt": [None] * 20_000}, "prompt.str: Input should be a valid string"),
        ("/v1/chat/completions", {"messages": [{}] * 40_000}, "messages.0.role: Field required"),
        ("/detokenize", {"tokens": ["x"] * 20_000}, "tokens.0: Input should be a valid integer"),
    ],
)
def test_a_large_body_is_refused_for_its_first_mistake(
    app: FastAPI, client: httpx.Client, path: str, body: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    told = app.exception_handlers[RequestValidationError]

    async def counted(request: Any, error: Any) -> Any:
        counts.append(len(error.errors()))
        return await told(request, error)  # type: ignore[misc]

    monkeypatch.setitem(app.exception_handlers, RequestValidationError, counted)
    monkeypatch.setattr(app, "middleware_stack", None)  # made anew, with this handler
    answer = client.post(path, json={"model": "tiny", **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)
    assert counts == [1]


@pytest.mark.parametrize(
    ("value", "count"),
    [({}, 2), ([], 2), ([1, [2], {"a": 3}], 6), ('a, [b], {"c"}', 1), (["\\", ",", '"', ',"[', "\\\\"], 6), ("ö,", 1)],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_values_are_counted_outside_of_texts(value: Any, count: int, ascii_only: bool) -> None:
    assert json_values(json.dumps(value, ensure_ascii=ascii_only).encode()) == count


def test_large_json_is_utf8(client: httpx.Client) -> None:
    body = json.dumps({"model": "tiny", "prompt": ["a"] * 100_000}).encode("utf-16")
    answer = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "the body is not JSON in UTF-8."


def test_memory_is_given_back_after_a_large_body_alone(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(body_module, "malloc_trim", lambda: calls.append)
    assert client.post("/detokenize", json={"tokens": [1]}).status_code == 200
    assert calls == []
    assert client.post("/detokenize", json={"tokens": [1], "ignored": "x" * LARGE_BODY}).status_code == 200
    assert calls == [0]


@pytest.mark.parametrize(("key", "status"), [(KEY, b"413"), ("wrong", b"401")])
def test_who_sends_all_of_a_refused_body_reads_the_answer(sources: tuple[ModelSource, ...], key: str, status: bytes) -> None:
    """A connection that is closed with unread bytes is reset, and what was sent before may be lost."""
    security = Security(api_key=KEY)
    with (
        serving(create_app(Registry(sources, Limits(body_bytes=2**20)), security=security)) as address,
        connection(address) as client,
    ):
        size = 6 * 2**20
        headers = ("POST /tokenize HTTP/1.1", "Host: localhost", f"x-api-key: {key}", f"Content-Length: {size}", "", "")
        client.sendall("\r\n".join(headers).encode() + b"x" * size)
        received = b"".join(iter(lambda: client.recv(2**16), b""))
    assert received.startswith(b"HTTP/1.1 " + status)
    assert b"connection: close" in received.lower()


def test_who_asks_first_is_refused_without_sending(sources: tuple[ModelSource, ...]) -> None:
    with serving(create_app(Registry(sources, Limits(body_bytes=100)))) as address, connection(address) as client:
        client.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200\r\nExpect: 100-continue\r\n\r\n")
        received = b"".join(iter(lambda: client.recv(2**16), b""))
    assert received.startswith(b"HTTP/1.1 413")


def test_a_body_without_an_end_is_refused_in_the_end(sources: tuple[ModelSource, ...]) -> None:
    """Of a refused body some times the largest is read, and no more."""
    app = create_app(Registry(sources, Limits(body_bytes=100)))
    sent = 0

    async def endless():  # type: ignore[no-untyped-def]
        nonlocal sent
        for _ in range(1000):
            sent += 100
            yield b"x" * 100

    assert ask(app, "POST", "/tokenize", content=endless()).status_code == 413
    assert sent <= 100 * (body_module.DISCARDED_BODIES + 2)
