"""The routes of a training that is followed: what they tell is what its folder holds, and no other folder is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import glassformer
from glassformer.checkpoint.training_layout import METRICS
from glassformer.see.learning import learning
from glassformer.see.training_curves import read_training
from glassformer.serving.http.app import create_app
from glassformer.serving.registry import ModelSource, Registry
from tests.patience import patience
from tests.serving.conftest import serving
from tests.training.folders import step_line, training_folder, write_lines

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return training_folder(tmp_path / "book", [step_line(1, 5.0), step_line(2, 4.5)], ("gpt2", "gpt2"), steps=9)


@pytest.fixture
def client(sources: tuple[ModelSource, ...], folder: Path) -> Iterator[httpx.Client]:
    app = create_app(Registry(sources), training=folder)
    with serving(app) as address, httpx.Client(base_url=address, timeout=patience(60)) as client:
        yield client


def test_curves_grow_with_the_file(client: httpx.Client, folder: Path) -> None:
    assert client.get("/glass/training").json() == read_training(folder).to_dict()
    write_lines(folder / METRICS, [step_line(3, 4.0)])
    curves = client.get("/glass/training").json()
    assert [point["value"] for point in curves["loss"]] == [5.0, 4.5, 4.0]
    (folder / METRICS).write_text("")
    response = client.get("/glass/training")
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("book/metrics.jsonl: no step of a training stands in it.")


def test_a_text_under_the_snapshots(client: httpx.Client, folder: Path) -> None:
    answer = client.post("/glass/learning", json={"prompt": "the cat", "position": 1, "layer": 1, "head": 1})
    view = learning(folder, lambda path: glassformer.load(path).read("the cat", raw=True), position=1, layer=1, head=1)
    assert answer.json() == view.to_dict()
    for body in ({"prompt": "the cat", "layer": 9}, {"prompt": ""}, {"prompt": "a", "folder": "/"}, {}):
        refused = client.post("/glass/learning", json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"]


def test_a_server_that_follows_none_says_how_to(sources: tuple[ModelSource, ...]) -> None:
    with serving(create_app(Registry(sources))) as address, httpx.Client(base_url=address, timeout=patience(60)) as client:
        for response in (client.get("/glass/training"), client.post("/glass/learning", json={"prompt": "a"})):
            assert response.status_code == 404
            assert (
                "follows no training. Start it with one: glass studio --training DIR" in response.json()["error"]["message"]
            )
