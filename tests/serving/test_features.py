"""Features over HTTP: read, listed, and named in `steer`, out of the operator's folder alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from glassformer.serving.registry import ModelSource
from glassformer.steering.library import Library
from tests.features.dictionaries import random_tensors, write_folder
from tests.serving.conftest import client_with

CHAT: Any = {"model": "tiny", "messages": [{"role": "user", "content": "how are you?"}], "temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model: Any) -> Path:
    place, width = tmp_path_factory.mktemp("features"), model.config.hidden_size
    write_folder(place / "resid-0", "jumprelu", random_tensors("jumprelu", width, width))
    hooks = {"hook_name": "blocks.0.ln2.hook_normalized", "hook_name_out": "blocks.0.hook_mlp_out"}
    write_folder(place / "mlp-0", "transcoder", random_tensors("transcoder", width, width), metadata=hooks)
    return place


@pytest.fixture(scope="module")
def features_client(sources: tuple[ModelSource, ...], folder: Path) -> Iterator[httpx.Client]:
    with client_with(Library(features=folder), sources) as client:
        yield client


def test_the_features_of_a_text(features_client: httpx.Client, model: Any, folder: Path) -> None:
    body = {"model": "tiny", "prompt": "Once upon a time", "raw": True, "dictionary": "resid-0", "best": 4}
    view = features_client.post("/glass/features", json=body).json()
    expected = model.read("Once upon a time", raw=True).features(model.dictionary(folder / "resid-0"), 4)
    assert view == expected.to_dict()
    listed = features_client.post("/glass/feature-dictionaries", json={"model": "tiny"}).json()["dictionaries"]
    assert [(each["name"], each["size"], each["problem"]) for each in listed] == [("mlp-0", 96, None), ("resid-0", 96, None)]


@pytest.mark.parametrize("name", ["resid-0", "mlp-0"])
def test_a_request_is_steered_by_features(features_client: httpx.Client, model: Any, folder: Path, name: str) -> None:
    for how in ({"strength": 9.0}, {"clamp": 9.0}):
        steer = {"feature": f"{name}/5", **how}
        response = features_client.post("/v1/chat/completions", json={**CHAT, "glass": {"steer": steer}})
        assert response.status_code == 200, response.text
        local = [{"feature": f"{folder}/{name}/5", **how}]
        expected = model.steered(local).watch(CHAT["messages"], max_new_tokens=6, do_sample=False)
        assert response.json()["choices"][0]["message"]["content"] == expected.text


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/glass/features", {"dictionary": "nowhere"}, "there is no dictionary of features 'nowhere'"),
        ("/glass/features", {"dictionary": "../features"}, "there is no dictionary"),
        ("/glass/features", {"dictionary": "resid-0", "best": 1000}, "best"),
        ("/glass/trace", {"steer": {"feature": "/etc/1", "clamp": 1}}, "there is no dictionary"),
        ("/glass/trace", {"steer": {"feature": "resid-0/96", "clamp": 1}}, "has no feature 96"),
        ("/glass/trace", {"steer": {"feature": "resid-0/9"}}, "needs a strength"),
    ],
    ids=str,
)
def test_what_cannot_be_named_is_refused(features_client: httpx.Client, path: str, fields: Any, message: str) -> None:
    response = features_client.post(path, json={"model": "tiny", "prompt": "how", **fields})
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]
