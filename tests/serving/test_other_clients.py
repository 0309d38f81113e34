"""LangChain's and LiteLLM's calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict, SecretStr

import glassformer
from glassformer.serving.http.app import create_app
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.jobs.test_tool_rows import with_template
from tests.serving.conftest import serving
from tests.text.tool_templates import WITHOUT_TOOLS

KEY = SecretStr("none")


@pytest.fixture(scope="module")
def expected(tiny_qwen3: Path) -> str:
    return str(glassformer.load(tiny_qwen3).chat("how are you?", max_new_tokens=10, do_sample=False))


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    adult: bool


def chat_model(address: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{address}/v1", api_key=KEY, model="tiny", temperature=0, max_retries=0, **options)


def test_langchain_invokes_streams_and_batches(address: str, expected: str) -> None:
    model = chat_model(address, max_completion_tokens=10)
    answer = model.invoke("how are you?")
    assert answer.content == expected
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 10
    assert "".join(str(chunk.content) for chunk in model.stream("how are you?")) == expected
    assert [answer.content for answer in model.batch(["how are you?"] * 4)] == [expected] * 4


def test_langchain_gets_structured_output_and_tool_calls(address: str) -> None:
    model = chat_model(address, max_completion_tokens=60)
    assert isinstance(model.with_structured_output(Person, method="json_schema").invoke("Are you of age?"), Person)
    called: Any = model.bind_tools([Person], tool_choice="Person").invoke("Are you of age?")
    assert [call["name"] for call in called.tool_calls] == ["Person"]


def test_langchain_embeds(address: str, tiny_encoder: Path) -> None:
    embeddings = OpenAIEmbeddings(
        base_url=f"{address}/v1", api_key=KEY, model="encoder", check_embedding_ctx_length=False, max_retries=0
    )
    vector = embeddings.embed_query("It rains.")
    assert vector == pytest.approx(glassformer.pipeline("embed", str(tiny_encoder))("It rains.").tolist(), abs=1e-6)
    assert len(embeddings.embed_documents(["a", "b", "c"])) == 3


def test_litellm_speaks_ollamas_routes(address: str, expected: str) -> None:
    import litellm

    call: Any = {"api_base": address, "temperature": 0, "max_tokens": 10, "num_retries": 0,
                 "messages": [{"role": "user", "content": "how are you?"}]}  # fmt: skip
    answer: Any = litellm.completion(model="ollama_chat/tiny", **call)
    assert answer.choices[0].message.content == expected
    assert litellm.completion(model="ollama/tiny", **call).choices[0].message.content  # type: ignore[union-attr]
    vectors: Any = litellm.embedding(model="ollama/encoder", input=["a"], api_base=address)
    assert len(vectors.data) == 1


@pytest.fixture(scope="module")
def without_tools(tiny_qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose model has a template that knows no tools."""
    model = with_template(tiny_qwen3, tmp_path_factory.mktemp("without-tools"), WITHOUT_TOOLS)
    with serving(create_app(Registry([ModelSource("tiny", lambda: model)], Limits(stop_seconds=1)))) as address:
        yield address


def test_an_agents_first_call_works_with_a_template_that_knows_no_tools(without_tools: str) -> None:
    model = chat_model(without_tools, max_completion_tokens=60)
    assert model.bind_tools([Person]).invoke("Are you of age?").content is not None
    called: Any = model.bind_tools([Person], tool_choice="Person").invoke("Are you of age?")
    assert [call["name"] for call in called.tool_calls] == ["Person"]
    result = ToolMessage("True", tool_call_id=called.tool_calls[0]["id"])
    assert model.bind_tools([Person]).invoke([HumanMessage("Are you of age?"), called, result]).content is not None


def test_litellm_completes_and_streams(address: str, expected: str) -> None:
    import litellm

    call: Any = {
        "model": "openai/tiny", "api_base": f"{address}/v1", "api_key": "none", "temperature": 0, "max_tokens": 10,
        "messages": [{"role": "user", "content": "how are you?"}], "num_retries": 0,
    }  # fmt: skip
    answer: Any = litellm.completion(**call)
    assert answer.choices[0].message.content == expected
    assert answer.usage.completion_tokens == 10
    chunks: Any = litellm.completion(**call, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    vectors: Any = litellm.embedding(model="openai/encoder", input=["a"], api_base=f"{address}/v1", api_key="none")
    assert len(vectors.data) == 1
