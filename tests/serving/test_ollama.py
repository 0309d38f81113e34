"""Ollama's routes, asked as its clients ask."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from glassformer.ground.errors import SettingError
from glassformer.serving.http.answers import AnswerPiece
from glassformer.serving.http.dialects.ollama import ChatLinesForm, ChatRequest, GenerateRequest
from glassformer.serving.limits import Limits
from glassformer.text.chat.tool_calls import ParsedMessage, ToolCallFormat, ToolCallParser
from tests.serving.tools import TOOLS
from tests.text.tool_templates import HERMES

MESSAGES: Any = [{"role": "user", "content": "how are you?"}]
OPTIONS = {"temperature": 0, "num_predict": 12}
CHAT: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "options": OPTIONS}


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_chat_streams_lines_that_add_up_to_a_run(client: httpx.Client, model: Any) -> None:
    run = model.watch(MESSAGES, max_new_tokens=12, do_sample=False)
    *pieces, last = lines(client.post("/api/chat", json=CHAT))
    assert len(pieces) > 1
    assert "".join(piece["message"]["content"] for piece in pieces) == run.text
    assert all(piece["done"] is False and piece["model"] == "tiny" for piece in pieces)
    assert (last["done"], last["done_reason"], last["message"]["content"]) == (True, "length", "")
    assert (last["prompt_eval_count"], last["eval_count"]) == (len(run.prompt_ids), 12)
    assert last["total_duration"] >= last["prompt_eval_duration"] > 0


def test_a_chat_comes_whole_where_it_is_not_streamed(client: httpx.Client, model: Any) -> None:
    answer = client.post("/api/chat", json={**CHAT, "model": "tiny:latest", "stream": False}).json()
    assert answer["message"] == {"role": "assistant", "content": model.chat(MESSAGES, max_new_tokens=12, do_sample=False)}
    assert (answer["done"], answer["done_reason"], answer["model"]) == (True, "length", "tiny:latest")
    assert answer["created_at"].endswith("Z")


@pytest.mark.parametrize("raw", [True, False])
def test_a_prompt_is_continued_or_answered(client: httpx.Client, model: Any, raw: bool) -> None:
    body = {"model": "tiny", "prompt": "Once upon", "raw": raw, "options": OPTIONS}
    text = model.chat("Once upon", raw=raw, max_new_tokens=12, do_sample=False)
    assert client.post("/api/generate", json={**body, "stream": False}).json()["response"] == text
    *pieces, last = lines(client.post("/api/generate", json=body))
    assert "".join(piece["response"] for piece in pieces) == text
    assert (last["response"], last["done_reason"]) == ("", "length")


def test_without_words_the_model_is_loaded(client: httpx.Client) -> None:
    for path, body in (("chat", {"messages": []}), ("generate", {})):
        answer = client.post(f"/api/{path}", json={"model": "tiny", **body}).json()
        assert (answer["done"], answer["done_reason"]) == (True, "load")
    (loaded,) = [model for model in client.get("/api/ps").json()["models"] if model["name"] == "tiny:latest"]
    assert loaded["expires_at"] > loaded["details"]["family"] == "qwen3" or loaded["context_length"] > 0


def test_json_comes_by_a_schema(client: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    answer = client.post("/api/chat", json={**CHAT, "format": schema, "stream": False}).json()
    assert json.loads(answer["message"]["content"]) in ({"a": 1}, {"a": 2})
    assert answer["done_reason"] == "stop"


def test_models_are_listed_by_name_and_alias(client: httpx.Client) -> None:
    models = client.get("/api/tags").json()["models"]
    assert [model["name"] for model in models][:2] == ["tiny:latest", "gpt-4o:latest"]
    assert all(model.keys() >= {"model", "modified_at", "size", "digest", "details"} for model in models)
    assert client.get("/api/version").json()["version"].count(".") == 2


def test_a_model_is_shown_with_what_it_can_do(client: httpx.Client, model: Any) -> None:
    shown = client.post("/api/show", json={"model": "tiny"}).json()
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert shown["template"] == model.tokenizer.chat_template
    assert shown["model_info"]["qwen3.context_length"] == model.config.context
    assert client.post("/api/show", json={"name": "encoder:latest"}).json()["capabilities"] == ["embedding"]


def test_texts_are_embedded(client: httpx.Client) -> None:
    embedded = client.post("/api/embed", json={"model": "encoder", "input": ["hi", "hello"]}).json()
    reference = client.post("/v1/embeddings", json={"model": "encoder", "input": ["hi", "hello"]}).json()
    assert embedded["embeddings"] == [entry["embedding"] for entry in reference["data"]]
    assert embedded["prompt_eval_count"] == reference["usage"]["prompt_tokens"]


def test_errors_have_ollamas_body(client: httpx.Client) -> None:
    for path in ("chat", "generate", "show"):
        response = client.post(f"/api/{path}", json={"model": "tinny"})
        assert response.status_code == 404
        assert response.json().keys() == {"error"}
        assert "Did you mean 'tiny'" in response.json()["error"]
    response = client.post("/api/show", json={})
    assert (response.status_code, response.json()["error"]) == (400, "model is missing. Name one of GET /api/tags.")
    response = client.post("/api/chat", json={**CHAT, "options": {"temperatur": 1}})
    assert response.status_code == 400
    assert response.json()["error"] == "there is no option 'temperatur'. Did you mean 'temperature'? Leave it out."


def test_calls_come_when_they_are_whole() -> None:
    call_format = ToolCallFormat.of_template(HERMES)
    assert call_format is not None
    parser = ToolCallParser(call_format, TOOLS)
    text: Any = SimpleNamespace(message=ParsedMessage("", ()))
    form = ChatLinesForm(SimpleNamespace(texts=[text]), ChatRequest(model="tiny"))  # type: ignore[arg-type]

    def add(piece: str) -> Any:
        deltas = tuple(parser.feed(piece))
        text.message = parser.message()
        return [json.loads(line)["message"] for line in form.piece(AnswerPiece(0, piece, (), None, deltas))]

    assert add("See: ") == [{"role": "assistant", "content": "See:"}]
    assert add('<tool_call>{"name": "weather", "arguments": {"city": ') == []
    ((call,),) = (message["tool_calls"] for message in add('"Rome"}}</tool_call>'))
    assert call["function"] == {"index": 0, "name": "weather", "arguments": {"city": "Rome"}}
    ((call,),) = (message["tool_calls"] for message in add('<tool_call>{"name": "now"}</tool_call>'))
    assert call["function"] == {"index": 1, "name": "now", "arguments": {}}


def settings(**options: Any) -> dict[str, Any]:
    return ChatRequest.model_validate({"model": "tiny", "options": options}).settings(Limits())


def test_options_become_settings() -> None:
    assert settings(num_predict=-1, num_ctx=4096, seed=3) == {
        "max_new_tokens": Limits().new_tokens, "seed": 3,
    }  # fmt: skip
    drawn = settings(temperature=0.5, top_k=5, repeat_penalty=1.2, repeat_last_n=-1, stop=["a"], num_predict=7)
    assert drawn == {
        "max_new_tokens": 7, "do_sample": True, "stop_strings": ["a"], "temperature": 0.5,
        "top_k": 5, "repetition_penalty": 1.2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeat_penalty": 1.2, "repeat_last_n": 64}, "repeat_last_n is 64; the penalty here covers the whole text: -1"),
        ({"tfs_z": 0.9}, "tfs_z cannot be honoured"),
        ({"temperature": "hot"}, "the option temperature is 'hot'; it must be a number"),
        ({"seed": 1.5}, "the option seed is 1.5; it must be a whole number"),
        ({"stop": [1]}, "the option stop is a text, or a list of texts"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        settings(**options)


def test_calls_and_their_results_share_an_id() -> None:
    calls = [{"function": {"name": name, "arguments": {}}} for name in ("weather", "now")]
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_name": "weather", "content": "Sunny."},
        {"role": "tool", "tool_name": "now", "content": "Noon."},
    ]
    _, called, *results = ChatRequest.model_validate({"model": "tiny", "messages": messages}).conversation()
    assert [call["id"] for call in called["tool_calls"]] == [result["tool_call_id"] for result in results]
    assert [result["name"] for result in results] == ["weather", "now"]


def test_what_models_here_cannot_do_is_refused() -> None:
    for name, value in (("suffix", "."), ("template", "{{ .Prompt }}"), ("context", [1])):
        with pytest.raises(SettingError, match=f"{name} cannot be honoured"):
            GenerateRequest.model_validate({"model": "tiny", "prompt": "a", name: value}).refuse()
