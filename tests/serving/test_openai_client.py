"""OpenAI's routes, asked by the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

import glassformer

MESSAGES: Any = [{"role": "user", "content": "how are you?"}]
NUMBER = {"type": "object", "properties": {"first": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["first"],
          "additionalProperties": False}  # fmt: skip
TOOLS: Any = [
    {"type": "function", "function": {"name": "add", "description": "Add one.", "parameters": NUMBER}},
    {"type": "function", "function": {"name": "now"}},
]
GREEDY: Any = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 12}
TOOLED: Any = {**GREEDY, "max_tokens": 60, "tools": TOOLS, "parallel_tool_calls": False}


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_chat_has_the_text_and_usage_of_a_run_alone(client: openai.OpenAI, model: Any) -> None:
    completion = client.chat.completions.create(**GREEDY)
    run = model.watch(MESSAGES, max_new_tokens=12, do_sample=False)
    assert completion.choices[0].message.content == run.text
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == len(run.prompt_ids)
    assert completion.usage.completion_tokens == 12
    assert completion.usage.total_tokens == len(run.prompt_ids) + 12
    assert completion.model == "tiny"
    assert completion.id.startswith("chatcmpl-")


def test_a_stream_has_the_same_text_in_pieces_and_usage_at_the_end(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**GREEDY)
    chunks = list(client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert len([piece for piece in pieces if piece]) > 1
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


def test_several_texts_of_one_prompt_differ_and_a_seed_gives_them_again(client: openai.OpenAI) -> None:
    drawn = {**GREEDY, "temperature": 1.5, "n": 3, "seed": 7}
    texts = [choice.message.content for choice in client.chat.completions.create(**drawn).choices]
    assert len(set(texts)) == 3
    assert [choice.message.content for choice in client.chat.completions.create(**drawn).choices] == texts
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**drawn, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


def test_greedy_texts_of_one_prompt_are_equal(client: openai.OpenAI) -> None:
    first, second = client.chat.completions.create(**GREEDY, n=2).choices
    assert first.message.content == second.message.content


def test_logprobs_are_those_of_a_run(client: openai.OpenAI, model: Any) -> None:
    choice = client.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=3).choices[0]
    run = model.watch(MESSAGES, max_new_tokens=12, do_sample=False, logprobs=3)
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    assert [entry.logprob for entry in content] == [step.logprob for step in run.steps]
    assert b"".join(bytes(entry.bytes or []) for entry in content).decode("utf-8", "replace") == run.text
    assert all(len(entry.top_logprobs) == 3 for entry in content)
    assert content[0].top_logprobs[0].token == content[0].token
    streamed = []
    for chunk in client.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=0, stream=True):
        if chunk.choices[0].logprobs is not None:
            streamed += chunk.choices[0].logprobs.content or []
    assert [entry.token for entry in streamed] == [entry.token for entry in content]
    assert all(entry.top_logprobs == [] for entry in streamed)


def test_a_stop_string_ends_the_text_and_is_no_part_of_it(client: openai.OpenAI) -> None:
    text = client.chat.completions.create(**GREEDY).choices[0].message.content or ""
    stop = text[5:7]
    choice = client.chat.completions.create(**GREEDY, stop=[stop, "never"]).choices[0]
    assert choice.message.content == text[: text.index(stop)]
    assert choice.finish_reason == "stop"


def test_logit_bias_and_penalties_are_the_engines(client: openai.OpenAI, model: Any) -> None:
    biased = client.chat.completions.create(**{**GREEDY, "max_tokens": 3}, logit_bias={"100": 100}).choices[0]
    assert biased.message.content == model.tokenizer.decode([100, 100, 100])
    penalized = client.chat.completions.create(**GREEDY, frequency_penalty=2.0, presence_penalty=1.0).choices[0]
    alone = model.chat(MESSAGES, max_new_tokens=12, do_sample=False, frequency_penalty=2.0, presence_penalty=1.0)
    assert penalized.message.content == alone


def test_a_json_schema_shapes_the_answer(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 9}}, "required": ["age"],
              "additionalProperties": False}  # fmt: skip
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    choice = client.chat.completions.create(**{**GREEDY, "max_tokens": 40}, response_format=form).choices[0]
    assert set(json.loads(choice.message.content or "")) == {"age"}
    assert choice.finish_reason == "stop"


def test_extra_settings_of_the_engine_go_in_the_body(client: openai.OpenAI, model: Any) -> None:
    text = client.chat.completions.create(**GREEDY, extra_body={"repetition_penalty": 1.8}).choices[0].message.content
    assert text == model.chat(MESSAGES, max_new_tokens=12, do_sample=False, repetition_penalty=1.8)
    forced = client.chat.completions.create(**GREEDY, extra_body={"choices": ["yes", "no"]})
    assert forced.choices[0].message.content in ("yes", "no")


def test_completions_of_texts_and_of_ids(client: openai.OpenAI, model: Any) -> None:
    settings: Any = {"model": "tiny", "temperature": 0, "max_tokens": 6}
    ids = model.tokenizer("Once upon")["input_ids"]
    alone = model.chat("Once upon", raw=True, max_new_tokens=6, do_sample=False)
    assert client.completions.create(prompt="Once upon", **settings).choices[0].text == alone
    assert client.completions.create(prompt=ids, **settings).choices[0].text == alone
    both = client.completions.create(prompt=["Once upon", "The"], n=2, echo=True, **settings)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert both.choices[1].text == "Once upon" + alone
    assert both.choices[2].text.startswith("The")
    assert both.usage is not None
    assert both.usage.completion_tokens == 24
    streamed = client.completions.create(prompt="Once upon", stream=True, **settings)
    assert "".join(chunk.choices[0].text for chunk in streamed) == alone
    assert len(model.tokenizer.encode(client.completions.create(model="tiny", prompt="Once").choices[0].text)) <= 20


def test_completion_logprobs_have_offsets(client: openai.OpenAI) -> None:
    choice = client.completions.create(model="tiny", prompt="Once", temperature=0, max_tokens=4, logprobs=2).choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.text_offset == [sum(map(len, logprobs.tokens[:n])) for n in range(4)]
    assert all(len(best) == 2 for best in logprobs.top_logprobs or [])


def test_models_are_listed_by_name_and_alias(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {"tiny", "gpt-4o", "text-davinci-003", "encoder"}
    assert client.models.retrieve("gpt-4o").id == "gpt-4o"
    assert client.chat.completions.create(**{**GREEDY, "model": "gpt-4o"}).model == "gpt-4o"


def test_embeddings_are_those_of_the_task(client: openai.OpenAI, tiny_encoder: Path) -> None:
    texts = ["How old are you?", "It rains."]
    response = client.embeddings.create(model="encoder", input=texts)  # the client asks for base64 and decodes it
    expected = glassformer.pipeline("embed", str(tiny_encoder))(texts)
    assert np.allclose([entry.embedding for entry in response.data], expected, atol=1e-6)
    plain = client.embeddings.create(model="encoder", input=texts[0], encoding_format="float")
    assert np.allclose(plain.data[0].embedding, expected[0], atol=1e-6)
    short = client.embeddings.create(model="encoder", input=texts[0], dimensions=8).data[0].embedding
    assert len(short) == 8
    assert sum(value * value for value in short) == pytest.approx(1, abs=1e-5)
    ids = glassformer.AutoTokenizer.from_pretrained(tiny_encoder)(texts[0])["input_ids"]
    by_ids = client.embeddings.create(model="encoder", input=ids, encoding_format="float")
    assert np.allclose(by_ids.data[0].embedding, expected[0], atol=1e-6)
    assert by_ids.usage.prompt_tokens == len(ids)


def test_a_required_tool_is_called_whole_and_streamed(client: openai.OpenAI) -> None:
    request = {**TOOLED, "tools": TOOLS[:1], "tool_choice": "required"}
    whole = client.chat.completions.create(**request).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content is None
    (call, *_) = whole.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "add"
    assert set(json.loads(call.function.arguments)) == {"first"}
    names, arguments, reasons = [], "", []
    for chunk in client.chat.completions.create(**request, stream=True):
        reasons.append(chunk.choices[0].finish_reason)
        for part in chunk.choices[0].delta.tool_calls or []:
            assert part.function is not None
            names += [(part.id, part.function.name)] if part.id else []
            arguments += part.function.arguments or ""
    assert [name for _, name in names] == ["add"]
    assert json.loads(arguments) == json.loads(call.function.arguments)
    assert reasons[-1] == "tool_calls"


def test_a_named_tool_without_arguments_is_called(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "now"}}
    choice = client.chat.completions.create(**TOOLED, tool_choice=named).choices[0]
    assert [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []] == [("now", "{}")]


def test_a_conversation_with_calls_and_results_is_read(client: openai.OpenAI, model: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"first": 1}'}}
    history: Any = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": "call_1",
            "content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}],
        },
    ]
    completion = client.chat.completions.create(**{**TOOLED, "messages": history})
    assert completion.usage is not None
    assert completion.usage.prompt_tokens > client.chat.completions.create(**TOOLED).usage.prompt_tokens + 10
    without = client.chat.completions.create(**TOOLED, tool_choice="none")
    assert without.usage is not None
    assert without.usage.prompt_tokens == client.chat.completions.create(**GREEDY).usage.prompt_tokens


def test_errors_are_those_that_the_client_knows(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'tony'.*'tiny'") as missing:
        client.chat.completions.create(**{**GREEDY, "model": "tony"})
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="this request takes no 'colour'"):
        client.chat.completions.create(**GREEDY, extra_body={"colour": "red"})
    with pytest.raises(openai.BadRequestError, match="writes none"):
        client.chat.completions.create(**{**GREEDY, "model": "encoder"})


def test_an_echoed_prompt_is_scored_token_by_token(client: openai.OpenAI, model: Any) -> None:
    """As evaluation harnesses ask for it: how likely is a text?"""
    settings: dict[str, Any] = {"model": "tiny", "prompt": "Once upon a time", "echo": True, "temperature": 0}
    ids = model.tokenizer("Once upon a time")["input_ids"]
    (whole,) = client.completions.create(logprobs=2, max_tokens=3, **settings).choices
    run = model.watch("Once upon a time", raw=True, max_new_tokens=3, do_sample=False, prompt_logprobs=2, logprobs=2)
    scores = whole.logprobs
    assert scores is not None
    assert scores.tokens is not None
    assert scores.token_logprobs is not None
    assert scores.top_logprobs is not None
    expected = [step.logprob for step in (*run.prompt_steps, *run.steps)]
    assert scores.token_logprobs[0] is None
    assert scores.top_logprobs[0] is None
    assert scores.token_logprobs[1:] == pytest.approx(expected[1:])
    assert "".join(scores.tokens) == whole.text == "Once upon a time" + run.text
    assert scores.text_offset == [len("".join(scores.tokens[:number])) for number in range(len(scores.tokens))]
    assert all(len(best) == 2 for best in scores.top_logprobs[1:])
    (prompt,) = client.completions.create(logprobs=2, max_tokens=0, **settings).choices
    assert prompt.text == "Once upon a time"
    assert prompt.logprobs is not None
    assert prompt.logprobs.token_logprobs == scores.token_logprobs[: len(ids)]


@pytest.mark.parametrize("options", [{"logprobs": 2}, {}, {"stream": True, "stream_options": {"include_usage": True}}])
def test_a_prompt_echoed_alone_has_no_completion_tokens(client: openai.OpenAI, model: Any, options: dict[str, Any]) -> None:
    request: Any = {"model": "tiny", "prompt": "Once upon a time", "echo": True, "max_tokens": 0, "temperature": 0}
    answer: Any = client.completions.create(**request, **options)
    parts = list(answer) if "stream" in options else [answer]
    choices = [choice for part in parts for choice in part.choices]
    assert "".join(choice.text for choice in choices) == "Once upon a time"
    assert choices[-1].finish_reason == "length"
    usage = parts[-1].usage
    prompt_tokens = len(model.tokenizer("Once upon a time")["input_ids"])
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (prompt_tokens, 0, prompt_tokens)
