"""A replica that is lost in the middle of an answer: no client takes half a text for a whole one, whatever API it speaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, cast

import anthropic
import httpx
import openai
import pytest
from ray.exceptions import RayActorError
from ray.serve.exceptions import RayServeException

from glassformer.scale.front import Replicas, create_front
from glassformer.scale.replica import ForwardedRequest, Message, Replica
from glassformer.serving.http.app import create_app
from glassformer.serving.http.security import Security
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.jobs.models import chat_model
from tests.patience import patience
from tests.serving.conftest import serving

MESSAGES: Any = [{"role": "user", "content": "hi"}]
BODY: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 40, "stream": True}
LIMITS = Limits(seconds=60, stop_seconds=0)
LOST = "the replica that wrote this text was lost before its end. Ask again."


class LocalReplica(Replica):
    """A replica in this process."""

    def __init__(self) -> None:
        self.registry = Registry([ModelSource("tiny", chat_model)], LIMITS)
        self.app = create_app(self.registry, LIMITS, guarded=False)
        self._lifespan = None
        self._starting = asyncio.Lock()


class MortalReplicas:
    """Stands in for the replicas of a cluster: their answers break off."""

    def __init__(self) -> None:
        self.replica = LocalReplica()
        self.messages = 3  # of an answer that come through
        self.losses = 100  # answers that break off; the next ones are whole
        self.handle = self

    def options(self, **options: Any) -> MortalReplicas:
        return self

    def remote(self, request: ForwardedRequest) -> BrokenAnswer:
        self.losses -= 1
        return BrokenAnswer(self.replica, request, self.messages if self.losses >= 0 else 10**6)

    def close(self, seconds: float = 0) -> None:
        self.replica.registry.close(seconds)


class BrokenAnswer:
    """The first messages of an answer, and then the error that Ray has for a lost actor."""

    def __init__(self, replica: Replica, request: ForwardedRequest, messages: int) -> None:
        self.replica, self.request, self.messages = replica, request, messages

    def cancel(self) -> None: ...

    async def __aiter__(self) -> AsyncIterator[list[Message]]:
        left = self.messages
        answer: Any = self.replica.answer(self.request)
        async with aclosing(answer):
            async for messages in answer:
                yield messages[:left]
                left -= len(messages)
                if left <= 0:
                    raise RayActorError


@pytest.fixture
def replicas() -> MortalReplicas:
    return MortalReplicas()


@pytest.fixture
def address(replicas: MortalReplicas) -> Iterator[str]:
    front: Any = create_front(replicas, LIMITS, Security())  # type: ignore[arg-type]
    with serving(front) as address:
        yield address


def test_openais_client_raises_what_happened(address: str) -> None:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(**BODY)
        pieces = [next(stream) for _ in range(2)]
        with pytest.raises(openai.APIError, match=LOST):
            next(stream)
        assert {piece.choices[0].finish_reason for piece in pieces} == {None}


def test_the_stream_of_a_response_ends_with_an_error_of_the_next_number(address: str) -> None:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        events: list[Any] = list(client.responses.create(model="tiny", input="hi", stream=True))
    assert events[-1].type == "error"
    assert events[-1].message == LOST
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_anthropics_client_raises_what_happened(address: str) -> None:
    with (
        anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as client,
        pytest.raises(anthropic.APIStatusError, match=LOST) as raised,
    ):
        for _ in client.messages.create(**BODY):
            pass
    error: Any = raised.value.body
    assert (error["type"], error["error"]["type"]) == ("error", "overloaded_error")


def test_the_last_line_of_ollamas_stream_is_the_error(address: str) -> None:
    response = httpx.post(f"{address}/api/chat", json=BODY, timeout=patience(60))
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert lines[-1] == {"error": LOST}
    assert [line["done"] for line in lines[:-1]] == [False] * 2


def test_an_answer_in_one_piece_is_cut_off(address: str, replicas: MortalReplicas) -> None:
    replicas.messages = 1
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{address}/v1/chat/completions", json={**BODY, "stream": False}, timeout=patience(60))


def test_a_request_that_nothing_was_answered_to_goes_to_another_replica(address: str, replicas: MortalReplicas) -> None:
    replicas.messages, replicas.losses = 0, 2
    response = httpx.post(f"{address}/v1/chat/completions", json={**BODY, "stream": False}, timeout=patience(60))
    assert response.json()["choices"][0]["finish_reason"] == "length"


def test_numbers_of_lost_replicas_are_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    class LostHandle:
        def options(self, **options: Any) -> LostHandle:
            return self

        def broadcast(self, method: str, *arguments: Any) -> Any:
            raise RayServeException("there are no replicas")

    monkeypatch.setattr("glassformer.scale.front.fronts", lambda ray, besides: [])
    with serving(cast(Any, create_front(Replicas(None, LostHandle(), "front"), LIMITS, Security()))) as address:
        response = httpx.get(f"{address}/metrics", timeout=patience(5))
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "a replica was lost while it counted. Ask again."


def test_a_request_that_no_replica_survives_is_unavailable(address: str, replicas: MortalReplicas) -> None:
    replicas.messages = 0
    response = httpx.post(f"{address}/v1/messages", json=BODY, timeout=patience(60))
    assert response.status_code == 503
    assert "the replicas that this request was given to were lost" in response.json()["error"]["message"]
