"""Tools in OpenAI's batch files: calls come out as the API has them, and the same however often the job is broken off."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletion

import glassformer
from glassformer.jobs import run_job
from glassformer.runtime.model import Model
from glassformer.serving.http.app import create_app
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.jobs.models import read_rows, write_rows
from tests.jobs.test_openai_batch import CHAT, COMPLETIONS, body_of, request, run
from tests.patience import patience
from tests.serving.conftest import serving
from tests.serving.tools import TOOLS
from tests.text.tool_templates import MISTRAL_LIST, WITHOUT_TOOLS

pytestmark = pytest.mark.usefixtures("one_thread")
NAMED = {"type": "function", "function": {"name": "now"}}
GREEDY: dict[str, Any] = {"tools": TOOLS, "temperature": 0, "max_tokens": 60}
SINGLE: dict[str, Any] = {**GREEDY, "parallel_tool_calls": False}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
HISTORY = [
    {"role": "user", "content": "How is Rome?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "Sunny."}]},
]
ROWS = [
    request("required", **SINGLE, tool_choice="required"),
    request("named", **SINGLE, tool_choice=NAMED),
    request("history", **SINGLE, tool_choice=NAMED, messages=HISTORY),
    request("free", **{**GREEDY, "max_tokens": 6}),
    request("none", **{**GREEDY, "max_tokens": 6}, tool_choice="none"),
    request("several", **{**SINGLE, "temperature": 1, "n": 2, "seed": 3}, tool_choice="required"),
]


@pytest.fixture(scope="module")
def model(tiny_qwen3: Path) -> Model:
    return glassformer.load(tiny_qwen3, executor="cpu")


@pytest.fixture(scope="module")
def special_model(tiny_qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model whose template marks calls with a special token, wants short ids, and has a variable of its own."""
    template = "{{ greeting }}" + MISTRAL_LIST.replace("[TOOL_CALLS]", "<|vision_start|>")
    return with_template(tiny_qwen3, tmp_path_factory.mktemp("special"), template)


def with_template(folder: Path, target: Path, template: str) -> Model:
    """A copy of a model with another chat template."""
    folder = shutil.copytree(folder, target / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}), "utf-8")
    return glassformer.load(folder, executor="cpu")


def calls_of(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = choice["message"].get("tool_calls", [])
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def test_calls_are_answered_as_the_api_does(tmp_path: Path, model: Model) -> None:
    bodies = [body_of(row) for row in run(tmp_path, *ROWS, engine=model)]
    for body in bodies:
        ChatCompletion.model_validate(body, strict=True)
    required, named, history, free, none, several = bodies
    (choice,) = required["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    ((name, arguments),) = calls_of(choice)
    assert arguments in ({"now": [{}], "weather": [{"city": "Paris"}, {"city": "Rome"}]}[name])
    for body in (named, history):
        assert calls_of(body["choices"][0]) == [("now", {})]
        assert body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert [body["choices"][0]["finish_reason"] for body in (free, none)] == ["length", "length"]
    assert "tool_calls" not in free["choices"][0]["message"]
    assert none["usage"]["prompt_tokens"] < free["usage"]["prompt_tokens"]
    assert [len(calls_of(choice)) for choice in several["choices"]] == [1, 1]
    ids = [call["id"] for body in bodies for choice in body["choices"] for call in choice["message"].get("tool_calls", [])]
    assert len(set(ids)) == 5
    assert all(call_id.startswith("call_") and len(call_id) == 29 for call_id in ids)


def test_a_broken_off_job_gives_the_same_bytes(tmp_path: Path, model: Model) -> None:
    run(tmp_path, *ROWS, engine=model)
    ledger = (tmp_path / "out.jsonl.ledger").read_bytes().splitlines(keepends=True)
    for kept in (1, 4):
        again = tmp_path / f"again{kept}.jsonl"
        again.with_name(again.name + ".ledger").write_bytes(b"".join([*ledger[:kept], ledger[kept][:20]]))
        run_job(model, tmp_path / "in.jsonl", again)
        assert again.read_bytes() == (tmp_path / "out.jsonl").read_bytes()


def test_the_server_makes_the_same_calls(tmp_path: Path, tiny_qwen3: Path, model: Model) -> None:
    registry = Registry(
        [ModelSource("gpt-4o", lambda: glassformer.load(tiny_qwen3, executor="cpu"))], Limits(stop_seconds=1)
    )
    greedy = [row for row in ROWS if row["body"]["temperature"] == 0]
    with serving(create_app(registry)) as address, httpx.Client(base_url=address, timeout=patience(60)) as client:
        served = [client.post(CHAT, json=row["body"]).raise_for_status().json() for row in greedy]
    for online, row in zip(served, run(tmp_path, *greedy, engine=model), strict=True):
        batched = body_of(row)
        assert online["usage"]["prompt_tokens"] == batched["usage"]["prompt_tokens"]
        (first,), (second,) = online["choices"], batched["choices"]
        assert calls_of(first) == calls_of(second)
        assert first["message"]["content"] == second["message"]["content"]
        assert first["finish_reason"] == second["finish_reason"]


def test_calls_with_special_tokens_and_short_ids(tmp_path: Path, special_model: Model) -> None:
    rows = [request(name, **SINGLE, tool_choice=NAMED, messages=HISTORY) for name in "ab"]
    choices = [body_of(row)["choices"][0] for row in run(tmp_path, *rows, engine=special_model)]
    assert [calls_of(choice) for choice in choices] == [[("now", {})]] * 2
    ids = {choice["message"]["tool_calls"][0]["id"] for choice in choices}
    assert [len(call_id) for call_id in ids] == [9, 9]


def test_variables_of_the_template_stand_beside_the_tools(tmp_path: Path, special_model: Model) -> None:
    path = write_rows(tmp_path / "in.jsonl", [request("a", **SINGLE, tool_choice=NAMED)])
    lengths = []
    for number, greeting in enumerate(("", "A good day to you. ")):
        run_job(special_model, path, tmp_path / f"{number}.jsonl", template={"greeting": greeting})
        (answer,) = read_rows(tmp_path / f"{number}.jsonl")
        assert calls_of(body_of(answer)["choices"][0]) == [("now", {})]
        lengths.append(body_of(answer)["usage"]["prompt_tokens"])
    assert lengths[0] < lengths[1]


def chat(*messages: Any) -> dict[str, Any]:
    return request("x", messages=list(messages))


BAD: dict[str, Any] = {
    "no list": (request("x", tools="weather"), "tools is 'weather'; it must be a list of tools."),
    "no tool": (request("x", tools=[{"type": "web_search"}]), "tool 0 is {'type': 'web_search'}; it must be"),
    "no schema": (
        request("x", tools=[{"type": "function", "function": {"name": "now", "parameters": 3}}]),
        "the parameters of 'now' are 3; they must be a JSON schema.",
    ),
    "choice": (request("x", tools=TOOLS, tool_choice="any"), "tool_choice is 'any'; it must be 'none', 'auto'"),
    "choice alone": (request("x", tool_choice="required"), "tool_choice needs tools. Pass them, or leave it out."),
    "misspelt": (
        request("x", tools=TOOLS, tool_choice={"function": {"name": "wether"}}),
        "tool_choice names 'wether', which is none of the tools. Did you mean 'weather'?",
    ),
    "parallel": (request("x", tools=TOOLS, parallel_tool_calls=1), "parallel_tool_calls is 1; it must be true or false."),
    "completion": (request("x", COMPLETIONS, prompt="a", tools=TOOLS), "there is no field 'tools' in such a body."),
    "message": (chat("hi"), "message 0 is 'hi'; it must be an object with role and content."),
    "content": (chat({"role": "user", "content": 3}), "message 0 has the content 3; it must be a text, or a list of parts."),
    "calls": (chat({"role": "assistant", "tool_calls": {}}), "message 0 has the tool_calls {}; they must be a list."),
    "call": (chat({"role": "assistant", "tool_calls": [{"id": "1"}]}), "message 0 has the call {'id': '1'}; it must be"),
    "id": (chat({"role": "tool", "tool_call_id": 3, "content": ""}), "message 0 has the call id 3; it must be a text."),
}  # fmt: skip


def test_what_is_no_tool_and_no_call_is_refused(tmp_path: Path, model: Model) -> None:
    rows = [{**row, "custom_id": name} for name, (row, _) in BAD.items()]
    for (name, (_, message)), row in zip(BAD.items(), run(tmp_path, *rows, engine=model), strict=True):
        assert row["response"]["status_code"] == 400, name
        assert row["response"]["body"]["error"]["message"].startswith(message), row


def test_a_template_without_tools_is_told_of_them_in_words(tmp_path: Path, tiny_qwen3: Path) -> None:
    model = with_template(tiny_qwen3, tmp_path, WITHOUT_TOOLS)
    rows = (request("free", **{**SINGLE, "max_tokens": 4}), request("forced", **SINGLE, tool_choice=NAMED))
    free, forced = run(tmp_path, *rows, engine=model)
    assert body_of(free)["choices"][0]["message"]["role"] == "assistant"
    assert [call["function"]["name"] for call in body_of(forced)["choices"][0]["message"]["tool_calls"]] == ["now"]
