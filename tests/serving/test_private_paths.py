"""Where a model lies on the server is nobody's business: no route tells, in answers or errors; receipts can be replayed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import glassformer
from glassformer.see.receipt import weight_hash
from glassformer.serving.http.app import create_app
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.cli.test_cli import failed, glass
from tests.jobs.models import chat_folder
from tests.patience import patience
from tests.serving.conftest import serving
from tests.serving.test_matrix import ROUTES, ListedRoute

WRONG: tuple[dict[str, Any], ...] = (
    {"model": "encoder"},
    {"model": "tiny", "prompt": "", "first": "", "inputs": [5], "max_tokens": 10**9},
    {"model": "tiny", "change": {"nowhere": {"scale": 0}}, "options": {"nothing": 1}},
    {"model": "broken"},
    {"model": "nobody"},
)
RECEIPTS: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]] = {
    "run": ("/glass/run", {"prompt": "hi", "max_tokens": 4}, ("receipt",)),
    "record": ("/glass/record", {"prompt": "hi", "max_tokens": 4}, ()),
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "glass": {"receipt": True}},
        ("choices", 0, "glass", "receipt"),
    ),
}


@pytest.fixture(scope="module")
def folders(tiny_qwen3: Path, tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return str(tiny_qwen3), str(tiny_encoder), str(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def client(
    sources: tuple[ModelSource, ...], tmp_path_factory: pytest.TempPathFactory, training: Path
) -> Iterator[httpx.Client]:
    broken = tmp_path_factory.mktemp("broken")
    (broken / "config.json").write_text("{")
    registry = Registry([*sources, ModelSource("broken", lambda: glassformer.load(broken))], Limits(stop_seconds=1))
    with (
        serving(create_app(registry, training=training)) as address,
        httpx.Client(base_url=address, timeout=patience(60)) as client,
    ):
        yield client


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_no_answer_tells_where_a_model_lies(client: httpx.Client, folders: tuple[str, ...], route: ListedRoute) -> None:
    bodies = [route.body] if route.body is None else [route.body, *({**route.body, **wrong} for wrong in WRONG)]
    for body in bodies:
        response = client.request(route.method, route.path, json=body)
        leaks = [folder for folder in folders if folder in response.text or json.dumps(folder) in response.text]
        assert not leaks, response.text


@pytest.mark.parametrize("name", RECEIPTS)
def test_a_receipt_names_the_model_as_it_is_served_and_its_weights(client: httpx.Client, model: Any, name: str) -> None:
    path, body, place = RECEIPTS[name]
    data = client.post(path, json={"model": "tiny", "temperature": 0, **body}).raise_for_status().json()
    for key in place:
        data = data[key]
    assert data["model"] == "tiny"
    if name != "record":
        assert data["path"] is None
        assert data["weights"] == weight_hash(model)
        assert model.replay(data).identical


def test_a_servers_receipt_is_replayed_by_whoever_says_where_the_model_lies(
    client: httpx.Client, tiny_qwen3: Path, tmp_path: Path
) -> None:
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 4}
    receipt = tmp_path / "receipt.json"
    receipt.write_text(json.dumps(client.post("/glass/run", json=body).json()["receipt"]))
    again = glass("run", "--replay", str(receipt), "--model", str(tiny_qwen3))
    assert again.stdout == "identical: every token is the same\n"
    message = failed(glass("run", "--replay", str(receipt)))
    assert "If the run is a server's, say where its model lies: --model PATH." in message
    assert "other weights" in failed(glass("run", "--replay", str(receipt), "--model", str(chat_folder())))
