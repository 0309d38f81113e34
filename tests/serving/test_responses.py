"""POST /v1/responses, asked by the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from glassformer.serving.http.app import create_app
from glassformer.serving.http.context import ResponseStore, StoredResponse
from glassformer.serving.http.dialects.openai_responses import ResponsesRequest
from glassformer.serving.http.errors import HttpError
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Permissions, Registry
from tests.serving.conftest import serving
from tests.serving.tools import CITIES, NOW, WEATHER

GREEDY: Any = {"model": "tiny", "input": "how are you?", "temperature": 0, "max_output_tokens": 12}
TOOLS: Any = [{"type": "function", "strict": True, **tool} for tool in (WEATHER, NOW)]
FORCED: Any = {"tools": TOOLS, "tool_choice": {"type": "function", "name": "weather"}, "max_output_tokens": 60}


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_response_has_the_text_and_usage_of_a_run_alone(client: openai.OpenAI, model: Any) -> None:
    response = client.responses.create(**GREEDY, instructions="Be brief.")
    run = model.watch("how are you?", system="Be brief.", max_new_tokens=12, do_sample=False)
    assert response.output_text == run.text
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (len(run.prompt_ids), 12)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.store is False  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def keeping(sources: tuple[ModelSource, ...]) -> Iterator[openai.OpenAI]:
    """A client of a server that keeps three responses."""
    limits = Limits(stop_seconds=1, stored_responses=3)
    app = create_app(Registry(sources, limits), permissions=Permissions(store_responses=True))
    with serving(app) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
def test_a_stored_response_is_gone_on_from(keeping: openai.OpenAI, model: Any, stream: bool) -> None:
    if stream:
        events = list(keeping.responses.create(**GREEDY, instructions="Be brief.", stream=True))
        first = events[-1].response  # type: ignore[union-attr]
    else:
        first = keeping.responses.create(**GREEDY, instructions="Be brief.")
    assert first.store is True  # type: ignore[attr-defined]
    second = keeping.responses.create(**{**GREEDY, "input": "And now?"}, previous_response_id=first.id)
    messages = [
        {"role": "user", "content": "how are you?"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And now?"},
    ]
    assert second.output_text == model.chat(messages, max_new_tokens=12, do_sample=False)
    assert second.previous_response_id == first.id
    assert keeping.responses.retrieve(second.id).output_text == second.output_text
    (item,) = keeping.responses.input_items.list(second.id)
    assert item.content == "And now?"  # type: ignore[union-attr]
    keeping.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError, match="there is no response"):
        keeping.responses.retrieve(second.id)


def test_a_call_and_its_result_stand_in_two_requests(keeping: openai.OpenAI) -> None:
    first = keeping.responses.create(**{**GREEDY, **FORCED})
    (call,) = first.output
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}]  # type: ignore[union-attr]
    second = keeping.responses.create(**{**GREEDY, "input": result}, previous_response_id=first.id)
    asked: Any = [{"role": "user", "content": "how are you?"}, call.model_dump(exclude_none=True), *result]
    assert second.output_text == keeping.responses.create(**{**GREEDY, "input": asked}).output_text


def test_what_is_not_to_be_stored_and_the_oldest_are_not_there(keeping: openai.OpenAI) -> None:
    unstored = keeping.responses.create(**GREEDY, store=False)
    oldest, *others = [keeping.responses.create(**GREEDY) for _ in range(4)]
    for gone in (unstored, oldest):
        with pytest.raises(openai.NotFoundError, match="it was not stored, or is the oldest and forgotten"):
            keeping.responses.create(**GREEDY, previous_response_id=gone.id)
    assert all(keeping.responses.retrieve(kept.id) for kept in others)


def test_stored_responses_take_no_more_bytes_than_they_may() -> None:
    store = ResponseStore(Limits(stored_bytes=1000))
    for number in range(10):
        store.add(StoredResponse({"id": str(number), "text": "x" * 400}, [], []))
    assert store.get("9").body["id"] == "9"
    with pytest.raises(HttpError):
        store.get("7")
    store.add(StoredResponse({"id": "large", "text": "x" * 2000}, [], []))
    with pytest.raises(HttpError):
        store.get("large")


def test_a_server_that_keeps_nothing_says_how_to_make_it(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="start the server with --store-responses"):
        client.responses.create(**GREEDY, previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError, match="nothing is kept between requests. Start the server"):
        client.responses.retrieve("resp_1")


def test_a_stream_adds_up_to_the_response(client: openai.OpenAI) -> None:
    whole = client.responses.create(**GREEDY)
    events = list(client.responses.create(**GREEDY, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete",
    ]  # fmt: skip
    last: Any = events[-1]
    assert last.response.output_text == whole.output_text
    assert last.response.usage.total_tokens == whole.usage.total_tokens  # type: ignore[union-attr]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text


def test_a_forced_call_comes_whole_and_streamed(client: openai.OpenAI) -> None:
    response = client.responses.create(**{**GREEDY, **FORCED})
    (call,) = response.output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments) in CITIES, response.status) == ("weather", True, "completed")
    with client.responses.stream(**{**GREEDY, **FORCED}) as stream:
        kinds = [event.type for event in stream]
        (streamed,) = stream.get_final_response().output
    assert streamed.type == "function_call"
    assert (streamed.arguments, streamed.status) == (call.arguments, "completed")
    assert "response.function_call_arguments.done" in kinds


def test_a_result_goes_back_to_the_model(client: openai.OpenAI) -> None:
    conversation: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "And Rome?"}]},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Rome"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "Sunny."},
    ]
    assert client.responses.create(**{**GREEDY, "input": conversation, "tools": TOOLS}).usage is not None


def test_json_comes_by_a_schema(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    shape: Any = {"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}}
    response = client.responses.create(**GREEDY, text=shape)
    assert json.loads(response.output_text) in ({"a": 1}, {"a": 2})
    assert response.status == "completed"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id cannot be honoured: nothing is kept between requests"),
        ({"background": True}, "background cannot be honoured"),
        ({"truncation": "auto"}, "truncation cannot be 'auto'"),
        ({"top_logprobs": 3}, "ask /v1/chat/completions for log-probabilities"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "needs a schema"),
        ({"input": [{"type": "web_search_call"}]}, "input item 0 is of type 'web_search_call'"),
    ],
)
def test_what_cannot_be_honoured_is_refused(client: openai.OpenAI, more: Any, message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        client.responses.create(**{**GREEDY, **more})


def messages(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return ResponsesRequest.model_validate({"model": "tiny", "input": list(items)}).messages()


def test_items_become_messages() -> None:
    call = {"type": "function_call", "name": "weather", "arguments": "{}"}
    user, called, first, second = messages(
        {"type": "message", "role": "user", "content": "Where is sun?"},
        {"type": "reasoning", "summary": []},
        {**call, "call_id": "A"},
        {**call, "call_id": "B"},
        {"type": "function_call_output", "call_id": "A", "output": "Sun."},
        {"type": "function_call_output", "call_id": "B", "output": [{"type": "input_text", "text": "Rain."}]},
    )
    assert user == {"role": "user", "content": "Where is sun?"}
    assert [each["id"] for each in called["tool_calls"]] == ["A", "B"]
    assert first == {"role": "tool", "tool_call_id": "A", "content": "Sun.", "name": "weather"}
    assert second["content"] == [{"type": "text", "text": "Rain."}]
