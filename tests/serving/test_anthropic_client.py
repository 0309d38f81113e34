"""Anthropic's routes, asked by the official client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from glassformer.serving.http.dialects.anthropic import MessagesRequest
from tests.patience import patience
from tests.serving.tools import CITIES, NOW, WEATHER

MESSAGES: Any = [{"role": "user", "content": "how are you?"}]
GREEDY: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "extra_body": {"temperature": 0}}
TOOLS: Any = [
    {"name": tool["name"], "description": tool.get("description", ""), "input_schema": tool["parameters"]}
    for tool in (WEATHER, NOW)
]
FORCED: Any = {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "weather"}, "max_tokens": 60}


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as client:
        yield client


def test_a_message_has_the_text_and_usage_of_a_run_alone(client: anthropic.Anthropic, model: Any) -> None:
    message = client.messages.create(**GREEDY, system="Be brief.")
    run = model.watch(MESSAGES, system="Be brief.", max_new_tokens=12, do_sample=False)
    assert [block.model_dump(exclude_none=True) for block in message.content] == [{"type": "text", "text": run.text}]
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    assert message.usage.output_tokens == 12
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == len(run.prompt_ids)
    assert (message.role, message.model, message.type) == ("assistant", "tiny", "message")


def test_a_stream_adds_up_to_the_message(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**GREEDY)
    with client.messages.stream(**GREEDY) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 1
    assert "".join(pieces) == whole.content[0].text  # type: ignore[union-attr]
    assert final.content[0].text == whole.content[0].text  # type: ignore[union-attr]
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 12)


def test_the_events_of_a_stream_come_in_order(client: anthropic.Anthropic) -> None:
    kinds = [event.type for event in client.messages.create(**GREEDY, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_a_stop_sequence_ends_the_text_before_it(client: anthropic.Anthropic) -> None:
    text = client.messages.create(**GREEDY).content[0].text  # type: ignore[union-attr]
    stop = text[len(text) // 2 :][:3]
    message = client.messages.create(**GREEDY, stop_sequences=[stop])
    assert message.content[0].text == text[: text.index(stop)]  # type: ignore[union-attr]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)


def test_a_forced_call_comes_whole_and_streamed(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**{**GREEDY, **FORCED})
    (call,) = message.content
    assert call.type == "tool_use"
    assert call.name == "weather"
    assert call.input in CITIES
    assert message.stop_reason == "tool_use"
    with client.messages.stream(**{**GREEDY, **FORCED}) as stream:
        events = [event.type for event in stream]
        (streamed,) = stream.get_final_message().content
    assert streamed.type == "tool_use"
    assert (streamed.name, streamed.input) == (call.name, call.input)
    assert events.count("content_block_start") == events.count("content_block_stop") == 1


def test_a_call_that_is_cut_off_is_never_a_whole_one(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**{**GREEDY, **FORCED, "max_tokens": 8})
    assert message.stop_reason == "max_tokens"
    assert all(block.type == "text" for block in message.content)


def test_any_tool_can_be_required_and_one_at_a_time(client: anthropic.Anthropic) -> None:
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    message = client.messages.create(**{**GREEDY, **FORCED, "tool_choice": choice})
    (call,) = message.content
    assert call.type == "tool_use"
    assert call.name in ("weather", "now")


def test_a_result_goes_back_to_the_model(client: anthropic.Anthropic) -> None:
    call = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "Sunny."}]}
    messages: Any = [*MESSAGES, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    assert client.messages.create(**{**GREEDY, "messages": messages, "tools": TOOLS}).stop_reason == "max_tokens"


def test_tokens_are_counted_with_system_tools_and_template(client: anthropic.Anthropic, model: Any) -> None:
    def count(**more: Any) -> int:
        return client.messages.count_tokens(model="tiny", messages=MESSAGES, **more).input_tokens

    _, ids = model.encode(MESSAGES)
    assert count() == len(ids) > len(model.tokenizer("how are you?")["input_ids"])
    assert count(system="Be brief.") > count()
    assert count(tools=TOOLS) > count(tools=TOOLS[:1]) > count()
    message = client.messages.create(**{**GREEDY, "tools": TOOLS, "system": "Be brief."})
    usage = message.usage
    assert count(tools=TOOLS, system="Be brief.") == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_an_answer_that_is_begun_is_continued(client: anthropic.Anthropic, model: Any) -> None:
    begun: Any = [*MESSAGES, {"role": "assistant", "content": "I am"}]
    message = client.messages.create(**{**GREEDY, "messages": begun})
    template = {"add_generation_prompt": False, "continue_final_message": True}
    run = model.watch(begun, template=template, max_new_tokens=12, do_sample=False)
    assert run.prompt.endswith("I am")
    assert message.content[0].text == run.text  # type: ignore[union-attr]


def test_json_comes_by_a_schema(client: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    config: Any = {"format": {"type": "json_schema", "schema": schema}}
    text = client.messages.create(**GREEDY, output_config=config).content[0].text  # type: ignore[union-attr]
    assert text in ('{"a": 1}', '{"a": 2}')


THOUGHT: Any = {**GREEDY, "max_tokens": 40, "extra_body": {"choices": ["<think>\nIt is easy.\n</think>\n\nYes."]}}


def test_thoughts_are_blocks_of_their_own_where_they_are_asked_for(client: anthropic.Anthropic) -> None:
    asked = client.messages.create(**THOUGHT, thinking={"type": "enabled", "budget_tokens": 1024})
    expected = [("thinking", "It is easy."), ("text", "Yes.")]
    assert [(block.type, getattr(block, block.type)) for block in asked.content] == expected
    with client.messages.stream(**THOUGHT, thinking={"type": "adaptive"}) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_message()
    assert [(block.type, getattr(block, block.type)) for block in streamed.content] == expected
    assert {"thinking", "text"} <= kinds
    (whole,) = client.messages.create(**THOUGHT).content
    assert whole.text.startswith("<think>")  # type: ignore[union-attr]


def test_a_text_without_thoughts_has_no_block_of_them(client: anthropic.Anthropic, model: Any) -> None:
    answer = client.messages.create(**GREEDY, thinking={"type": "enabled", "budget_tokens": 1024})
    run = model.watch(MESSAGES, template={"enable_thinking": True}, max_new_tokens=12, do_sample=False)
    assert [block.model_dump(exclude_none=True) for block in answer.content] == [{"type": "text", "text": run.text}]


def test_a_model_that_does_not_think_says_so(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="this model does not think.*Leave thinking out"):
        client.messages.create(**{**GREEDY, "model": "encoder"}, thinking={"type": "enabled", "budget_tokens": 1024})


def test_errors_are_those_that_the_client_knows(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="'tinny'.*'tiny'"):
        client.messages.create(**{**GREEDY, "model": "tinny"})
    with pytest.raises(anthropic.BadRequestError, match="tool_choice of type tool needs the name of one"):
        client.messages.create(**{**GREEDY, **FORCED, "tool_choice": {"type": "tool"}})
    with pytest.raises(anthropic.BadRequestError, match="'wether'.*'weather'"):
        client.messages.create(**{**GREEDY, **FORCED, "tool_choice": {"type": "tool", "name": "wether"}})
    image: Any = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/"}}
    with pytest.raises(anthropic.BadRequestError, match="'image'"):
        client.messages.create(**{**GREEDY, "messages": [{"role": "user", "content": [image]}]})


def test_an_error_has_anthropics_body(address: str) -> None:
    response = httpx.post(f"{address}/v1/messages", json={"model": "tiny", "messages": MESSAGES}, timeout=patience(5))
    assert response.status_code == 400
    body = response.json()
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert "max_tokens" in body["error"]["message"]


def conversation(messages: list[dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
    return MessagesRequest.model_validate({"model": "tiny", "max_tokens": 1, "messages": messages, **more}).conversation()


def test_blocks_become_messages_by_role() -> None:
    calls = [{"type": "tool_use", "id": f"call_{city}", "name": "weather", "input": {"city": city}} for city in "AB"]
    results = [{"type": "tool_result", "tool_use_id": f"call_{city}", "content": f"Sun in {city}."} for city in "AB"]
    messages = conversation(
        [
            {"role": "user", "content": "Where"},
            {"role": "user", "content": [{"type": "text", "text": "is sun?"}]},
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "See:"}, *calls],
            },
            {"role": "user", "content": [*results, {"type": "text", "text": "So?"}]},
        ],
        system=[{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
    )
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert [message["content"] for message in messages[:3]] == ["Be brief.", "Where\nis sun?", "See:"]
    assert [call["id"] for call in messages[2]["tool_calls"]] == ["call_A", "call_B"]
    assert messages[4] == {"role": "tool", "tool_call_id": "call_B", "name": "weather", "content": "Sun in B."}
