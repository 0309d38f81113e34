"""OpenAI's batch files in and out, read by its own client's types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion

import glassformer
from glassformer.ground.errors import InputError
from glassformer.jobs import run_job
from tests.jobs.models import chat_model, read_rows, write_rows
from tests.see.models import encoder

pytestmark = pytest.mark.usefixtures("one_thread")
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MESSAGES = [{"role": "user", "content": "hi"}]


def request(custom_id: Any, url: str = CHAT, **body: Any) -> dict[str, Any]:
    body = {"messages": MESSAGES, **body} if url == CHAT else body
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "gpt-4o", **body}}


def run(tmp_path: Path, *rows: Any, engine: Any = None, **keywords: Any) -> list[dict[str, Any]]:
    run_job(engine or chat_model(), write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", **keywords)
    return read_rows(tmp_path / "out.jsonl")


def body_of(row: dict[str, Any]) -> dict[str, Any]:
    assert set(row) == {"id", "custom_id", "response", "error"}
    assert row["error"] is None
    assert row["response"]["status_code"] == 200
    body: dict[str, Any] = row["response"]["body"]
    return body


def test_chat_completions(tmp_path: Path) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
    led = [{"role": "developer", "content": "Be brief."}, *MESSAGES]
    plain, in_parts, several, scored, stopped, developer, pair = run(
        tmp_path,
        request("plain", temperature=0, top_p=0.9, max_tokens=6, user="me"),
        request("parts", messages=parts, max_completion_tokens=6),
        request("several", n=2, temperature=1.5, seed=4, max_tokens=6, stop=None),
        request("scored", logprobs=True, top_logprobs=2, max_tokens=6),
        request("stopped", stop=[chat_model().chat("hi", max_new_tokens=6)[-1]], max_tokens=50),
        request("developer", messages=led, max_tokens=6),
        request("pair", n=2, max_tokens=6),
    )
    body = body_of(plain)
    completion = ChatCompletion.model_validate(body, strict=True)
    assert plain["custom_id"] == "plain"
    assert body["model"] == chat_model().name
    assert completion.choices[0].message.content == chat_model().chat("hi", max_new_tokens=6)
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 6
    assert body_of(in_parts)["choices"] == body["choices"]
    drawn = [choice["message"]["content"] for choice in body_of(several)["choices"]]
    sampling: dict[str, Any] = {"do_sample": True, "temperature": 1.5, "seed": 4, "num_return_sequences": 2}
    assert drawn == [run.text for run in chat_model().watch_many("hi", max_new_tokens=6, **sampling)]
    logprobs = ChatCompletion.model_validate(body_of(scored)).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [len(token.top_logprobs) for token in logprobs.content] == [2] * 6
    assert logprobs.content[0].logprob == pytest.approx(logprobs.content[0].top_logprobs[0].logprob)
    assert body_of(stopped)["choices"][0]["finish_reason"] == "stop"
    assert len({choice["message"]["content"] for choice in body_of(pair)["choices"]}) == 2
    instructed = chat_model().chat("hi", system="Be brief.", max_new_tokens=6)
    assert body_of(developer)["choices"][0]["message"]["content"] == instructed
    assert len({row["id"] for row in (plain, in_parts, several, scored, stopped)}) == 5


def test_completions(tmp_path: Path) -> None:
    ids = list(chat_model().tokenizer("the cat")["input_ids"])
    rows = run(
        tmp_path,
        request("text", COMPLETIONS, prompt="the cat", max_tokens=4, logprobs=1),
        request("listed", COMPLETIONS, prompt=["the cat"], max_tokens=4),
        request("ids", COMPLETIONS, prompt=ids, max_tokens=4),
        request("listed ids", COMPLETIONS, prompt=[ids], max_tokens=4),
        request("biased", COMPLETIONS, prompt="the cat", max_tokens=4, logit_bias={"7": 100}),
    )
    first, *others, biased = (Completion.model_validate(body_of(row)) for row in rows)
    assert first.choices[0].text == chat_model().chat("the cat", raw=True, max_new_tokens=4)
    assert [other.choices[0].text for other in others] == [first.choices[0].text] * 3
    logprobs = first.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.text_offset == [sum(map(len, (logprobs.tokens or [])[:number])) for number in range(4)]
    assert biased.choices[0].text == chat_model().tokenizer.decode([7] * 4)


def test_the_token_that_ends_a_text_has_no_logprob(tmp_path: Path) -> None:
    end: dict[str, Any] = {"logit_bias": {str(min(chat_model().settings.eos)): 100}, "temperature": 0}
    chat, completion = run(
        tmp_path,
        request("chat", logprobs=True, top_logprobs=1, **end),
        request("completion", COMPLETIONS, prompt="the cat", logprobs=1, **end),
    )
    for row in (chat, completion):
        assert body_of(row)["choices"][0]["finish_reason"] == "stop"
        assert body_of(row)["usage"]["completion_tokens"] == 1
    assert body_of(chat)["choices"][0]["logprobs"]["content"] == []
    assert set(map(len, body_of(completion)["choices"][0]["logprobs"].values())) == {0}


def test_answers_in_json(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    formats: list[Any] = [
        {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        {"type": "text"},
        {"type": "json_schema"},
        {"type": "xml"},
        "json_schema",
    ]
    fitting, text, *wrong = run(
        tmp_path, *(request(number, response_format=value, max_tokens=40) for number, value in enumerate(formats))
    )
    assert body_of(fitting)["choices"][0]["message"]["content"].replace(" ", "").replace("\n", "") == '{"a":1}'
    assert body_of(text)["usage"]["completion_tokens"] <= 40
    assert [row["response"]["body"]["error"]["message"] for row in wrong] == [
        "response_format of type json_schema needs json_schema: {name, schema}.",
        "response_format is {'type': 'xml'}; its type must be 'text', 'json_object', or 'json_schema'.",
        "response_format of type json_schema needs json_schema: {name, schema}.",
    ]


def test_embeddings(tmp_path: Path) -> None:
    task = glassformer.pipeline("embed", encoder("bert").model)
    single, several, wrong, chat = run(
        tmp_path,
        request("a", EMBEDDINGS, input="the cat"),
        request("b", EMBEDDINGS, input=["the cat", "the dog"], encoding_format="float"),
        request("c", EMBEDDINGS, input=[]),
        request("d"),
        engine=task,
    )
    response = CreateEmbeddingResponse.model_validate(body_of(single))
    assert response.data[0].embedding == pytest.approx(task("the cat").tolist(), abs=1e-6)
    assert response.usage.prompt_tokens == len(task.tokenizer("the cat")["input_ids"])
    assert [entry["index"] for entry in body_of(several)["data"]] == [0, 1]
    assert body_of(several)["data"][0]["embedding"] == pytest.approx(response.data[0].embedding, abs=1e-6)
    assert wrong["response"]["body"]["error"]["message"] == "input must be a text, or a list of texts."
    assert "is no request for the task embed" in chat["response"]["body"]["error"]["message"]


BAD: dict[str, Any] = {
    "no url": ({"custom_id": "x", "body": {}}, "url is None; it must be one of: "),
    "another url": (request("x", "/v1/images"), "url is '/v1/images'; it must be one of: "),
    "method": ({**request("x"), "method": "GET"}, "method is 'GET'; it must be 'POST'."),
    "body": ({**request("x"), "body": 3}, "body must be an object."),
    "custom_id": (request(None), "custom_id is missing. Give each request its own."),
    "id": (request([1]), "custom_id is [1]; it must be a text or a whole number."),
    "duplicate": (request("first"), "the id 'first' is that of an earlier row."),
    "messages": (request("x", messages="hi"), "messages must be a list of messages."),
    "image": (request("x", messages=[{"content": [{"type": "image_url"}]}]), "message 0 has a part of type 'image_url'"),
    "functions": (request("x", functions=[{"name": "a"}]), "functions cannot be honoured: pass tools and tool_choice, "),
    "stream": (request("x", stream=True), "stream is not supported in a batch. Leave it out."),
    "unknown": (request("x", temprature=1), "there is no field 'temprature' in such a body. Did you mean 'temperature'?"),
    "range": (request("x", temperature=-1), "temperature is -1; it must be above 0."),
    "bias": (request("x", logit_bias={"a": 1}), "logit_bias must be an object of token ids and their biases."),
    "prompts": (request("x", COMPLETIONS, prompt=["a", "b"]), "prompt must be a text, or token ids."),
    "embeddings": (request("x", EMBEDDINGS, input="a"), "/v1/embeddings is no request for text. Use the task embed"),
    "ours": ({"id": "x", "prompt": "hi"}, "a row of OpenAI's batch format is an object with custom_id, method, url and"),
}  # fmt: skip


def test_a_bad_request_has_an_error_as_response(tmp_path: Path) -> None:
    rows: list[Any] = []
    for number, (row, _) in enumerate(BAD.values()):
        rows.append({**row, "custom_id": f"bad {number}"} if row.get("custom_id") == "x" else row)
    first, *failed = run(tmp_path, request("first", max_tokens=2), *rows)
    body_of(first)
    for (name, (_, message)), row in zip(BAD.items(), failed, strict=True):
        assert row["response"]["status_code"] == 400, name
        error = row["response"]["body"]["error"]
        assert error["message"].startswith(message), (name, error)
        assert error["type"] == "invalid_request_error"


def test_a_line_that_is_no_request_has_no_response(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", [request("a", max_tokens=2)])
    path.write_text(path.read_text() + "nonsense\n[]\n")
    run_job(chat_model(), path, tmp_path / "out.jsonl")
    _, nonsense, array = read_rows(tmp_path / "out.jsonl")
    for row in (nonsense, array):
        assert (row["custom_id"], row["response"]) == (None, None)
        assert row["error"]["code"] == "invalid_request"
    assert "line 2: not valid JSON" in nonsense["error"]["message"]


def test_a_resumed_batch_is_the_same(tmp_path: Path) -> None:
    rows = [request(f"r{number}", temperature=1, max_tokens=4) for number in range(6)]
    run(tmp_path, *rows)
    ledger = (tmp_path / "out.jsonl.ledger").read_bytes().splitlines(keepends=True)
    (tmp_path / "again.jsonl.ledger").write_bytes(b"".join(ledger[:3]))
    run_job(chat_model(), tmp_path / "in.jsonl", tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()


def test_parquet_is_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", [request("a")])
    with pytest.raises(InputError, match="OpenAI's batch format"):
        run_job(chat_model(), path, tmp_path / "out.parquet")
