"""What each route takes and refuses, and what is counted; OpenAI's routes with its client are in test_openai_client.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

import glassformer
from glassformer.serving.http.app import create_app
from glassformer.serving.http.metrics import Metrics, SecondsHistogram
from glassformer.serving.http.settings import limited_settings
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.serving.conftest import ask

CHAT: Any = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
TEXTS = ["What is your age?", "My phone is broken.", "How old are you?"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages.0.role: Input should be 'system'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "a part of type 'image_url'",
        ),
        ({"temperature": 3}, "temperature: Input should be less than or equal to 2"),
        ({"temperature": float("nan")}, "temperature"),
        ({"n": 17}, "n is 17; this server allows 16 at most."),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21; this server allows 20 at most."),
        ({"top_logprobs": 2}, "top_logprobs need logprobs: true."),
        ({"stop": ["x"] * 17}, "stop has 17 texts; this server allows 16 at most."),
        ({"stream_options": {"include_usage": True}}, "stream_options are for a stream."),
        ({"max_tokens": 0}, "max_tokens is 0; it must be"),
        ({"tool_choice": "required"}, "tool_choice needs tools."),
        ({"functions": [{"name": "f"}]}, "functions cannot be honoured: pass tools and tool_choice"),
        ({"audio": {"voice": "alloy"}}, "audio cannot be honoured"),
        ({"modalities": ["text", "audio"]}, "modalities can only be ['text']."),
        ({"verbosity": "high"}, "verbosity cannot be honoured."),
        ({"response_format": {"type": "json_schema"}}, "response_format of type json_schema needs json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type: Input should be 'text'"),
        ({"assistant_model": "/etc/passwd"}, "this request takes no 'assistant_model'."),
        ({"logits_processor": ["x"]}, "this request takes no 'logits_processor'."),
        ({"temprature": 1}, "this request takes no 'temprature'. Did you mean 'temperature'?"),
        (
            {"steer": {"name": "formal", "strength": 2}},
            "this request takes no 'steer'. Put it into 'glass': {\"glass\": {\"steer\": …}}.",
        ),
        ({"repetition_penalty": -1}, "repetition_penalty is -1; it must be"),
        ({"regex": "("}, "regex"),
        ({"logit_bias": {"no such token at all": 1}}, "logit_bias"),
        ({"logit_bias": {"999999999": 1}}, "logit_bias"),
        ({"chat_template_kwargs": {"messages": []}}, ""),
        ({"messages": [{"role": "user", "content": "hi \ud800"}]}, ""),
        ({"messages": [{"role": "user", "content": "word " * 400}]}, "tokens"),
    ],
)
def test_chats_that_cannot_be_honoured_are_400(client: httpx.Client, change: dict[str, Any], message: str) -> None:
    import json

    content = json.dumps({**CHAT, **change}).encode()
    response = client.post("/v1/chat/completions", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": []}, "prompt is empty."),
        ({"prompt": [[]]}, "the prompt has no tokens."),
        ({"prompt": ""}, "the prompt is empty."),
        ({"prompt": ["a"] * 65}, "prompt has 65 texts; this server allows 64 at most."),
        ({"prompt": [10**9]}, "1000000000"),
        ({"suffix": "end"}, "suffix cannot be honoured"),
        ({"best_of": 3}, "best_of cannot be other than n"),
        ({"echo": True, "logprobs": 1, "stream": True}, "a prompt's logprobs come with the whole answer."),
    ],
)
def test_completions_that_cannot_be_honoured_are_400(client: httpx.Client, change: dict[str, Any], message: str) -> None:
    response = client.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 1, **change})
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": []}, "input has 0 texts"),
        ({"input": " "}, "the text is empty"),
        ({"dimensions": 10**6}, "dimensions is 1000000; the model's vectors have 48."),
        ({"top_k": 3}, "embeddings take no 'top_k'."),
        ({"prompt_name": "query"}, "encoder has no prompt 'query'. It has: none."),
        ({"input": ["a", 1]}, "input"),
    ],
)
def test_embeddings_that_cannot_be_made_are_400(client: httpx.Client, change: dict[str, Any], message: str) -> None:
    response = client.post("/v1/embeddings", json={"model": "encoder", "input": "a", **change})
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]


def test_neutral_fields_are_ignored(client: httpx.Client) -> None:
    neutral = {
        "user": "me",
        "store": False,
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "prediction": {"type": "content"},
    }
    response = client.post("/v1/chat/completions", json={**CHAT, **neutral, "verbosity": "medium", "audio": None})
    assert response.status_code == 200


def test_a_second_turn_has_its_history_from_the_cache(client: httpx.Client) -> None:
    history = [{"role": "user", "content": "tell me " + "a long story " * 20}]
    first = client.post("/v1/chat/completions", json={**CHAT, "messages": history}).json()
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] < 10  # the template's beginning
    again = client.post("/v1/chat/completions", json={**CHAT, "messages": history}).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 40
    assert again["choices"][0]["message"] == first["choices"][0]["message"]


def test_documents_are_ranked_by_similarity(client: httpx.Client, tiny_encoder: Path) -> None:
    body = {"model": "encoder", "query": "How old are you?", "documents": [*TEXTS[:2], {"text": TEXTS[2]}]}
    answer = client.post("/v1/rerank", json={**body, "return_documents": True}).json()
    scores = glassformer.pipeline("similarity", str(tiny_encoder))("How old are you?", TEXTS)
    assert answer["results"][0]["index"] == 2
    assert answer["results"][0]["document"] == {"text": TEXTS[2]}
    for result in answer["results"]:
        assert result["relevance_score"] == pytest.approx(float(scores[result["index"]]), abs=1e-5)
    assert answer["usage"]["total_tokens"] > 10
    (best,) = client.post("/v1/rerank", json={**body, "top_n": 1}).json()["results"]
    assert best["index"] == 2
    assert "document" not in best
    assert client.post("/v1/rerank", json={**body, "documents": []}).status_code == 400


def test_a_chat_model_ranks_only_by_an_instruction(client: httpx.Client) -> None:
    body = {"model": "tiny", "query": "How old are you?", "documents": TEXTS}
    refused = client.post("/v1/rerank", json=body)
    assert refused.status_code == 400
    assert "tiny" in refused.json()["error"]["message"]
    answer = client.post("/v1/rerank", json={**body, "instruction": "Is it an answer?"})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["results"]) == len(TEXTS)


def test_texts_become_tokens_and_tokens_texts(client: httpx.Client, tiny_qwen3: Path) -> None:
    tokenizer = glassformer.AutoTokenizer.from_pretrained(tiny_qwen3)
    answer = client.post("/tokenize", json={"content": "Hello wörld"}).json()
    assert answer["tokens"] == tokenizer("Hello wörld", add_special_tokens=False)["input_ids"]
    assert answer["count"] == len(answer["tokens"])
    assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"content": "Hello wörld"}
    pieces = client.post("/tokenize", json={"content": "a🦜", "with_pieces": True}).json()["tokens"]
    assert pieces[0]["piece"] == "a"
    joined = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert joined.decode() == "a🦜"
    by_other_names = client.post("/tokenize", json={"model": "encoder", "prompt": "hi", "add_special_tokens": True}).json()
    assert len(by_other_names["tokens"]) == 3


def test_a_conversation_is_rendered(client: httpx.Client, tiny_qwen3: Path) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    prompt = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert prompt == glassformer.load(tiny_qwen3).render("hi")
    tool = {"type": "function", "function": {"name": "look_up"}}
    assert "look_up" in client.post("/apply-template", json={"messages": messages, "tools": [tool]}).json()["prompt"]
    refused = client.post("/apply-template", json={"model": "encoder", "messages": messages})
    assert refused.status_code == 400
    assert "has no chat template" in refused.json()["error"]["message"]


def test_metrics_count_requests_and_tokens(client: httpx.Client) -> None:
    def counted(line: str) -> float:
        lines = client.get("/metrics").text.splitlines()
        return next((float(other.rpartition(" ")[2]) for other in lines if other.startswith(line)), 0.0)

    requests = 'glass_requests_total{route="/v1/chat/completions",method="POST",status="200"}'
    tokens = 'glass_generated_tokens_total{model="tiny"}'
    before = counted(requests), counted(tokens)
    client.post("/v1/chat/completions", json={**CHAT, "ignore_eos": True}).raise_for_status()
    assert (counted(requests), counted(tokens)) == (before[0] + 1, before[1] + 2)
    client.get("/no/such/path/at/all")
    assert counted('glass_requests_total{route="other",method="GET",status="404"}') >= 1
    assert counted('glass_model_loaded{model="tiny"}') == 1
    assert counted('glass_texts_running{model="tiny"}') == 0
    assert counted('glass_first_token_seconds_count{model="tiny"}') >= 1
    assert counted('glass_drafted_tokens_total{model="tiny"}') >= counted('glass_accepted_draft_tokens_total{model="tiny"}')
    assert '\nglass_accepted_draft_tokens_total{model="tiny"} ' in client.get("/metrics").text
    assert client.get("/metrics").headers["Content-Type"].startswith("text/plain; version=0.0.4")


def test_buckets_of_a_histogram_are_cumulative() -> None:
    histogram = SecondsHistogram("h", "about", bounds=(1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.add(value, route='a"b')
    assert list(histogram.lines()) == [
        "# HELP h about", "# TYPE h histogram", 'h_bucket{route="a\\"b",le="1.0"} 2', 'h_bucket{route="a\\"b",le="2.0"} 3',
        'h_bucket{route="a\\"b",le="+Inf"} 4', 'h_sum{route="a\\"b"} 12', 'h_count{route="a\\"b"} 4',
    ]  # fmt: skip
    assert Metrics().requests.values == {}


def test_settings_of_requests_become_the_engines() -> None:
    limits = Limits(new_tokens=100)
    assert limited_settings(limits) == {"max_new_tokens": 100}
    assert limited_settings(limits, max_tokens=500)["max_new_tokens"] == 100
    greedy = limited_settings(limits, temperature=0, top_p=0.5, top_k=3)
    assert greedy == {"max_new_tokens": 100, "do_sample": False}
    drawn = limited_settings(limits, temperature=0.5, seed=-1, stop="x", logit_bias={"5": 1.0, "a": 2.0}, min_p=0.1)
    assert drawn == {
        "max_new_tokens": 100, "do_sample": True, "temperature": 0.5, "seed": 2**64 - 1, "stop_strings": "x",
        "logit_bias": {5: 1.0, "a": 2.0}, "min_p": 0.1,
    }  # fmt: skip
    assert limited_settings(limits, n=2)["do_sample"] is True


class TestRequestIds:
    def test_an_answer_has_a_new_one(self, client: httpx.Client) -> None:
        ids = {client.get(path).headers["X-Request-Id"] for path in ("/health", "/health", "/nowhere")}
        assert len(ids) == 3
        assert all(value.startswith("req_") for value in ids)

    def test_or_that_of_the_request(self, client: httpx.Client) -> None:
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/chat/completions", {**CHAT, "stream": True})):
            assert client.post(path, json=body, headers={"X-Request-Id": "trace-7"}).headers["X-Request-Id"] == "trace-7"
        strange = {"X-Request-Id": "a b" + "c" * 200}
        assert client.get("/health", headers=strange).headers["X-Request-Id"].startswith("req_")

    def test_anthropics_clients_find_it(self, client: httpx.Client) -> None:
        headers = client.post("/v1/messages", json={**CHAT, "model": "nobody"}).headers
        assert headers["Request-Id"] == headers["X-Request-Id"]


def test_the_access_log_has_a_line_for_each_request(
    sources: tuple[ModelSource, ...], caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(Registry(sources), access_log=True)
    with caplog.at_level("INFO", logger="glassformer.access"):
        ask(app, "GET", "/health", headers={"X-Request-Id": "seven"})
        ask(app, "GET", "/no%0Awhere")
    lines = [record.getMessage() for record in caplog.records if record.name == "glassformer.access"]
    assert [line.split()[1:4] for line in lines] == [["GET", "/health", "200"], ["GET", "/no%0Awhere", "404"]]
    assert lines[0].endswith(" s seven")
