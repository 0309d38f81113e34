"""What the server says of its models: what each is for, its tokens, its parameters, and an encoder-decoder's alignment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from glassformer.see.model_description import ModelDescription
from glassformer.see.schema import schema
from glassformer.serving.http.app import create_app
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.patience import patience
from tests.serving.conftest import serving

NORM = "model.norm.weight"
TEXT = "the cat sat"


@pytest.fixture(scope="module")
def client(sources: tuple[ModelSource, ...], pair_source: ModelSource) -> Iterator[httpx.Client]:
    limits = Limits(seconds=60, stop_seconds=1, parameter_values=1000)
    with (
        serving(create_app(Registry((*sources, pair_source), limits))) as address,
        httpx.Client(base_url=address, timeout=patience(30)) as client,
    ):
        yield client


def post(client: httpx.Client, route: str, status: int = 200, **body: Any) -> Any:
    response = client.post(f"/glass/{route}", json=body)
    assert response.status_code == status, response.text
    return response.json()


@pytest.mark.parametrize(
    ("model", "expected", "tasks"),
    [
        (
            "tiny",
            {"architecture": "decoder", "writes": True, "chat_template": True, "thinking": True, "blocks": 3, "heads": 4},
            {"text-generation", "embed", "similarity", "feature-extraction", "rerank"},
        ),
        (
            "encoder",
            {"architecture": "encoder", "writes": False, "chat_template": False, "thinking": False, "mask_token": "[MASK]"},
            {"embed", "similarity", "feature-extraction"},
        ),
        (
            "pair",
            {"architecture": "encoder-decoder", "writes": True, "blocks": 3, "encoder_blocks": 2},
            {"text2text-generation", "translation", "summarization"},
        ),
    ],
)
def test_a_model_is_described(client: httpx.Client, model: str, expected: dict[str, Any], tasks: set[str]) -> None:
    data = post(client, "model", model=model)
    jsonschema.validate(data, schema(ModelDescription))
    assert {name: data[name] for name in expected} == expected
    assert {task["name"] for task in data["tasks"] if task["fits"]} == tasks
    needs = {task["name"]: (task["needs"], task["suggested"]) for task in data["tasks"]}
    assert needs["fill-mask"] == ("a masked language modeling head", "bert-base-uncased")


def test_a_text_is_written_with_the_same_defaults_everywhere(client: httpx.Client, model: Any) -> None:
    served = post(client, "model", model="tiny")["settings"]
    run = model.watch("hi", max_new_tokens=5)
    in_python = {name: value for name, (value, _) in run.settings.in_force.items()}
    assert served == {**in_python, "max_new_tokens": 256}
    recorded = post(client, "record", model="tiny", prompt="hi", max_tokens=5)
    assert recorded["settings"] == in_python
    assert [step["token"]["id"] for step in recorded["steps"]] == list(run.ids)
    assert post(client, "run", model="tiny", prompt="hi", max_tokens=5)["text"] == run.text
    assert post(client, "model", model="encoder")["settings"] == {}


def test_a_text_is_shown_as_its_tokens(client: httpx.Client, model: Any) -> None:
    for special in (True, False):
        assert post(client, "tokens", model="encoder", text="a 🦜", special=special)["tokens"][0]["special"] is special
    assert post(client, "tokens", model="tiny", text="naïve 🦜") == model.tokens("naïve 🦜").to_dict()


def test_parameters_come_with_a_histogram_where_it_is_asked_for(client: httpx.Client, model: Any) -> None:
    assert post(client, "parameters", model="tiny") == {**model.parameters().to_dict(), "model": "tiny"}
    data = post(client, "parameters", model="tiny", only=NORM, histogram=True)
    assert data == {**model.parameters(only=NORM, histogram=True).to_dict(), "model": "tiny"}
    (tensor,) = data["tree"]["modules"][0]["modules"][0]["parameters"]
    assert sum(tensor["statistics"]["histogram"]["counts"]) == tensor["elements"] == 32


def test_an_alignment_is_the_cross_attention_of_what_is_written(client: httpx.Client, pair_source: ModelSource) -> None:
    run = pair_source.load().watch(TEXT, max_new_tokens=4, do_sample=False)
    ids = {"prompt": list(run.prompt_ids), "answer_ids": list(run.ids)}
    data = post(client, "attention", model="pair", **ids, kind="cross", layer=1)
    assert data["kind"] == "cross"
    assert data["keys"] == ["[CLS]", " the", " cat", " sat", "[SEP]"]
    assert data == {**run.attention(1, kind="cross").to_dict(), "model": "pair"}


@pytest.mark.parametrize(
    ("route", "body", "message"),
    [
        ("parameters", {"histogram": True}, "this server reads 1,000 at most. Name one tensor with 'only'."),
        ("parameters", {"only": "model.nrom"}, "no parameter is called 'model.nrom'. Did you mean: 'model.norm'"),
        ("tokens", {}, "text"),
        ("attention", {"prompt": [1], "answer_ids": [2], "kind": "cross"}, "is no encoder-decoder"),
        ("model", {"name": "tiny"}, "name"),
    ],
)
def test_what_a_model_cannot_do_is_refused(client: httpx.Client, route: str, body: dict[str, Any], message: str) -> None:
    assert message in post(client, route, 400, **body)["error"]["message"]


def test_an_unknown_model_is_named(client: httpx.Client) -> None:
    assert "there is no model 'nobody' here" in post(client, "model", 404, model="nobody")["error"]["message"]
