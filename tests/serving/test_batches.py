"""Files and batches, by the official clients: each row is answered as it would be alone."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from fastapi import FastAPI

from glassformer.serving.batches import RequestBatches
from glassformer.serving.file_store import FileStore
from glassformer.serving.http.app import create_app
from glassformer.serving.http.dialects import batches
from glassformer.serving.http.dialects.openai_files import parts_of
from glassformer.serving.http.security import Security
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Permissions, Registry
from tests.serving.conftest import KEY, serving

CHAT = "/v1/chat/completions"
MESSAGES: Any = [{"role": "user", "content": "how are you?"}]
GREEDY: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def app(sources: tuple[ModelSource, ...]) -> FastAPI:
    limits = Limits(stop_seconds=1, stored_bytes=2**20, batches=2)
    return create_app(Registry(sources, limits), security=Security(api_key=KEY))


@pytest.fixture(scope="module")
def address(app: FastAPI) -> Iterator[str]:
    with serving(app) as address:
        yield address


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as client:
        yield client
        for file in client.files.list().data:
            client.files.delete(file.id)


def row(custom_id: Any, body: Any = None, url: str = CHAT) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": GREEDY if body is None else body}


def upload(client: openai.OpenAI, *rows: Any) -> str:
    content = "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in rows)
    return client.files.create(file=("in.jsonl", io.BytesIO(content.encode())), purpose="batch").id


def ended(client: openai.OpenAI, batch: Any) -> Any:
    """The batch when it has ended."""
    waiting = threading.Event()
    while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
        waiting.wait(0.05)  # between two questions
        batch = client.batches.retrieve(batch.id)
    return batch


def lines(client: openai.OpenAI, file_id: str | None) -> dict[Any, Any]:
    if file_id is None:
        return {}
    return {(line := json.loads(text))["custom_id"]: line for text in client.files.content(file_id).text.splitlines()}


def started(client: openai.OpenAI, *rows: Any, endpoint: Any = CHAT) -> Any:
    return client.batches.create(input_file_id=upload(client, *rows), endpoint=endpoint, completion_window="24h")


def test_a_file_is_kept_listed_read_and_deleted(client: openai.OpenAI) -> None:
    content = b'{"a": "\r\n--x"}\n\x00\xff'
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    assert (file.filename, file.bytes, file.purpose) == ("in.jsonl", len(content), "batch")
    assert [each.id for each in client.files.list().data] == [file.id]
    assert client.files.content(file.id).read() == content
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError, match="no file"):
        client.files.retrieve(file.id)


def test_rows_are_answered_as_they_would_be_alone(client: openai.OpenAI) -> None:
    alone = client.chat.completions.create(**GREEDY)
    batch = ended(client, started(client, row("a"), row("b", {**GREEDY, "n": 2, "temperature": 1, "seed": 3})))
    assert (batch.status, batch.request_counts.total, batch.request_counts.completed) == ("completed", 2, 2)
    assert batch.error_file_id is None
    answers = lines(client, batch.output_file_id)
    assert list(answers) == ["a", "b"]
    body = answers["a"]["response"]["body"]
    assert body["choices"][0]["message"]["content"] == alone.choices[0].message.content
    assert len(answers["b"]["response"]["body"]["choices"]) == 2
    assert batch.id in [each.id for each in client.batches.list().data]


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"model": "tiny", "prompt": "hi", "max_tokens": 2}),
        ("/v1/embeddings", {"model": "encoder", "input": "hi"}),
        ("/v1/responses", {"model": "tiny", "input": "hi", "max_output_tokens": 2}),
    ],
)
def test_every_endpoint_can_be_asked(client: openai.OpenAI, endpoint: Any, body: dict[str, Any]) -> None:
    batch = ended(client, started(client, row("a", body, endpoint), endpoint=endpoint))
    assert lines(client, batch.output_file_id)["a"]["response"]["status_code"] == 200


def test_a_row_that_cannot_be_honoured_fails_alone(client: openai.OpenAI) -> None:
    bad = {
        "model": row("model", {**GREEDY, "model": "nobody"}),
        "field": row("field", {**GREEDY, "temprature": 1}),
        "url": row("url", url="/v1/completions"),
        "stream": row("stream", {**GREEDY, "stream": True}),
    }
    batch = ended(client, started(client, *bad.values(), "{", row("good"), row("good")))
    counts = batch.request_counts
    assert (batch.status, counts.total, counts.completed, counts.failed) == ("completed", 7, 1, 6)
    errors = lines(client, batch.error_file_id)
    assert errors["model"]["response"]["status_code"] == 404
    assert "temprature" in errors["field"]["response"]["body"]["error"]["message"]
    assert errors["url"]["error"]["message"] == f"url is '/v1/completions'; it must be one of: {CHAT}."
    assert errors["stream"]["error"]["message"] == "a batch's answers come whole. Leave stream out."
    assert errors["good"]["error"]["message"].startswith("the id 'good' is that of an earlier row")
    assert list(lines(client, batch.output_file_id)) == ["good"]


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No row is answered before the event is set."""
    released, asking = threading.Event(), batches._Exchange.receive

    async def receive(self: Any) -> Any:
        import asyncio

        await asyncio.to_thread(released.wait)
        return await asking(self)

    with monkeypatch.context() as patch:
        patch.setattr(batches._Exchange, "receive", receive)
        yield released
        released.set()


def test_a_cancelled_batch_keeps_what_was_answered_and_says_so_of_the_rest(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held(monkeypatch) as released:
        batch = started(client, *(row(str(number)) for number in range(20)))
        cancelled = client.batches.cancel(batch.id)
        assert cancelled.status == "cancelling"
        released.set()
        batch = ended(client, cancelled)
    assert batch.status == "cancelled"
    errors = lines(client, batch.error_file_id)
    assert errors["19"]["error"]["code"] == "batch_cancelled"
    assert batch.request_counts.completed + batch.request_counts.failed == 20


def test_no_more_batches_wait_than_may(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    with held(monkeypatch) as released:
        batches = [started(client, row("a")) for _ in range(2)]
        with pytest.raises(openai.RateLimitError, match="2 batches wait already"):
            started(client, row("a"))
        released.set()
        for batch in batches:
            ended(client, batch)


def test_there_is_room_for_so_many_bytes(client: openai.OpenAI) -> None:
    client.files.create(file=("in.jsonl", b" " * 2**19), purpose="batch")
    with pytest.raises(openai.RateLimitError, match="files take 1,048,576 bytes here at most"):
        client.files.create(file=("in.jsonl", b" " * (2**19 + 1)), purpose="batch")


def test_answers_for_which_there_is_no_room_are_left_out(client: openai.OpenAI) -> None:
    client.files.create(file=("fill.jsonl", b" " * (2**20 - 3 * 4096)), purpose="batch")
    batch = ended(client, started(client, *(row(str(number)) for number in range(24))))
    reasons = {(line["error"] or {}).get("code") for line in lines(client, batch.error_file_id).values()}
    assert reasons == {"no_room"}
    assert 0 < batch.request_counts.completed < 24


def test_the_form_of_an_upload_is_checked(client: openai.OpenAI, address: str) -> None:
    with pytest.raises(openai.BadRequestError, match="the purpose is 'assistants'; files are for batches here"):
        client.files.create(file=("a.txt", b"a"), purpose="assistants")
    key = {"Authorization": f"Bearer {KEY}"}
    for content, kind, message in (
        (b"{}", "application/json", "a file is sent as multipart/form-data"),
        (b"x", "multipart/form-data; boundary=x", "the body is not from 1 to 16 parts of a form"),
        (b"--x\r\nA: b\r\n\r\nc\r\n--x--", "multipart/form-data; boundary=x", "a part of the form has no name"),
        (b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nc\r\n--x--', "multipart/form-data; boundary=x",
         "a file needs the fields file and purpose"),
    ):  # fmt: skip
        response = httpx.post(f"{address}/v1/files", content=content, headers={**key, "Content-Type": kind})
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(message)


def test_a_part_keeps_every_byte() -> None:
    content = bytes(range(256)) + b"\r\n--y\r\n\r\n"
    head = b'Content-Disposition: form-data; name="file"; filename="a b.jsonl"\r\nContent-Type: x'
    body = b"--x\r\n" + head + b"\r\n\r\n" + content + b"\r\n--x--\r\n"
    part = parts_of(body, 'multipart/form-data; boundary="x"')["file"]
    assert (part.content, part.filename) == (content, "a b.jsonl")


def test_messages_are_answered_in_a_batch(address: str) -> None:
    with anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0) as client:
        params: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 6, "temperature": 0}
        sampling = {"temperature": params.pop("temperature")}  # which this client no longer knows
        alone = client.messages.create(**params, extra_body=sampling)
        params |= sampling
        wrong = {**params, "model": "nobody"}
        batch = client.messages.batches.create(
            requests=[{"custom_id": "a", "params": params}, {"custom_id": "b", "params": wrong}]
        )
        waiting = threading.Event()
        while batch.processing_status != "ended":
            waiting.wait(0.05)
            batch = client.messages.batches.retrieve(batch.id)
        assert (batch.request_counts.succeeded, batch.request_counts.errored) == (1, 1)
        results: Any = {result.custom_id: result.result for result in client.messages.batches.results(batch.id)}
        assert results["a"].message.content == alone.content
        assert results["b"].error.error.type == "not_found_error"
        assert [each.id for each in client.messages.batches.list()] == [batch.id]
        client.messages.batches.delete(batch.id)
        with pytest.raises(anthropic.NotFoundError, match="there is no batch"):
            client.messages.batches.retrieve(batch.id)
        with pytest.raises(anthropic.BadRequestError, match="two requests of the batch have one custom_id"):
            client.messages.batches.create(requests=[{"custom_id": "a", "params": params}] * 2)


def test_a_cancelled_batch_of_messages_says_so(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 2}
    with anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0) as client, held(monkeypatch) as released:
        requests: Any = [{"custom_id": str(number), "params": params} for number in range(12)]
        batch = client.messages.batches.create(requests=requests)
        with pytest.raises(anthropic.BadRequestError, match="has not ended. Cancel it first"):
            client.messages.batches.delete(batch.id)
        assert client.messages.batches.cancel(batch.id).processing_status == "canceling"
        released.set()
        waiting = threading.Event()
        while batch.processing_status != "ended":
            waiting.wait(0.05)
            batch = client.messages.batches.retrieve(batch.id)
        assert batch.request_counts.canceled > 0
        assert {result.result.type for result in client.messages.batches.results(batch.id)} >= {"canceled"}


def test_the_files_are_gone_with_the_server(sources: tuple[ModelSource, ...]) -> None:
    app = create_app(Registry(sources, Limits(stop_seconds=1)))
    with serving(app) as address:
        response = httpx.post(f"{address}/v1/files", files={"file": ("a", b"a")}, data={"purpose": "batch"})
        assert response.status_code == 200
        folder: Path = app.state.context.batches.store.folder
        assert folder.stat().st_mode & 0o077 == 0
        assert any(folder.iterdir())
    assert not folder.exists()


def test_a_server_of_several_keeps_no_files(sources: tuple[ModelSource, ...]) -> None:
    app = create_app(Registry(sources, Limits(stop_seconds=1)), permissions=Permissions(files=False))
    with serving(app) as address:
        response = httpx.get(f"{address}/v1/files")
        assert response.status_code == 403
        assert "keeps no files" in response.json()["error"]["message"]


def test_files_and_batches_are_for_the_client_alone_that_left_them(sources: tuple[ModelSource, ...]) -> None:
    app = create_app(Registry(sources, Limits(stop_seconds=1)), security=Security(api_key="mine,yours"))
    with (
        serving(app) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="mine", max_retries=0) as mine,
        openai.OpenAI(base_url=f"{address}/v1", api_key="yours", max_retries=0) as yours,
        anthropic.Anthropic(base_url=address, api_key="mine", max_retries=0) as my_messages,
        anthropic.Anthropic(base_url=address, api_key="yours", max_retries=0) as your_messages,
    ):
        batch = ended(mine, started(mine, row("a")))
        messages = my_messages.messages.batches.create(
            requests=[{"custom_id": "a", "params": {"model": "tiny", "messages": MESSAGES, "max_tokens": 2}}]
        )
        for file_id in (batch.input_file_id, batch.output_file_id):
            assert mine.files.content(file_id).text
            for look in (yours.files.content, yours.files.retrieve, yours.files.delete):
                with pytest.raises(openai.NotFoundError):
                    look(file_id)
        assert (len(mine.files.list().data), len(mine.batches.list().data)) == (2, 1)
        assert (yours.files.list().data, yours.batches.list().data) == ([], [])
        for ask in (yours.batches.retrieve, yours.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                ask(batch.id)
        with pytest.raises(openai.NotFoundError):
            yours.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h")
        assert [each.id for each in my_messages.messages.batches.list()] == [messages.id]
        assert list(your_messages.messages.batches.list()) == []
        with pytest.raises(anthropic.NotFoundError):
            your_messages.messages.batches.retrieve(messages.id)


def test_the_oldest_batches_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from glassformer.serving import batches as module

    monkeypatch.setattr(module, "MAX_KEPT", 2)

    async def run() -> list[str]:
        batches = RequestBatches(FileStore(2**20), 10)
        for number in range(4):
            batch = module.RequestBatch(f"b{number}", "somebody", "x", _answer, lambda row, outcome: {}, frozenset(), {})
            batches.start(batch, b"")
            await asyncio.gather(*batches._tasks)
        kept = [batch.id for batch in batches.list("somebody", "x")]
        await batches.close()
        return kept

    assert asyncio.run(run()) == ["b3", "b2"]


async def _answer(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return 200, {}
