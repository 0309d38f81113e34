"""LangChain's and LiteLLM's calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict, SecretStr

import glassformer

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
