"""A tuned lens that a request names: the same as in Python, and nothing but the operator's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from glassformer.serving.registry import ModelSource
from glassformer.steering.library import Library
from tests.serving.conftest import client_with

ASKED: Any = {"model": "tiny", "prompt": "the cat sat", "raw": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model: Any) -> Path:
    place = tmp_path_factory.mktemp("lenses")
    model.read_many(["the cat sat on the mat", "how are you today"]).train_lens(steps=1).save(place / "calm.safetensors")
    (place / "broken.safetensors").write_bytes(b"nothing")
    return place


@pytest.fixture(scope="module")
def lens_client(sources: tuple[ModelSource, ...], folder: Path) -> Iterator[httpx.Client]:
    with client_with(Library(lenses=folder), sources) as client:
        yield client


def test_the_lens_is_that_of_python(lens_client: httpx.Client, model: Any, folder: Path) -> None:
    shown = lens_client.post("/glass/lens", json={**ASKED, "tuned": "calm"}).json()
    expected = model.read("the cat sat", raw=True).lens(tuned=model.load_lens(folder / "calm.safetensors"))
    assert shown["tuned"] is True
    assert shown["predictions"] == expected.to_dict()["predictions"]
    for name in ({}, {"tuned": None}, {"tuned": "none"}, {"tuned": "auto"}):  # none comes with the package for this model
        plain = lens_client.post("/glass/lens", json={**ASKED, **name}).json()
        assert not plain["tuned"]
        assert plain["predictions"] != shown["predictions"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("clam", "there is no tuned lens 'clam'. Did you mean 'calm'?"),
        ("../lenses/calm", "there is no tuned lens"),
        ("broken", "the tuned lens 'broken' cannot be opened; the server's log says why."),
    ],
)
def test_other_names_are_refused(lens_client: httpx.Client, folder: Path, name: str, said: str) -> None:
    response = lens_client.post("/glass/lens", json={**ASKED, "tuned": name})
    assert response.status_code >= 400
    assert said in response.json()["error"]["message"]
    assert str(folder) not in response.text
