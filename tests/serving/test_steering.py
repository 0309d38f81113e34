"""`steer` in a request: by name, for its own text alone, in every request that takes a change."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from glassformer.serving.registry import ModelSource
from glassformer.steering.library import Library
from tests.serving.conftest import client_with

MESSAGES: Any = [{"role": "user", "content": "how are you?"}]
CHAT: Any = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 6}
SITE = "blocks.0.residual"
STEER: Any = {"name": "formal", "strength": 8.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model: Any) -> Path:
    place = tmp_path_factory.mktemp("steering")
    model.steering([("Good day, Sir.", "yo dude"), ("I am most grateful.", "thx")], SITE).save(place / "formal.safetensors")
    return place


@pytest.fixture(scope="module")
def steering_client(sources: tuple[ModelSource, ...], folder: Path) -> Iterator[httpx.Client]:
    with client_with(Library(folder), sources) as client:
        yield client


def post(client: httpx.Client, path: str, **fields: Any) -> Any:
    response = client.post(path, json=fields)
    assert response.status_code == 200, response.text
    return response.json()


def test_every_request_that_takes_a_change_can_be_steered(steering_client: httpx.Client, model: Any, folder: Path) -> None:
    vector = str(folder / "formal.safetensors")
    settings: Any = {"max_new_tokens": 6, "do_sample": False}
    expected = model.steered({vector: 8.0}).watch(MESSAGES, **settings)
    assert expected.text != model.watch(MESSAGES, **settings).text
    glass = {"steer": STEER, "receipt": True}
    chat = post(steering_client, "/v1/chat/completions", **CHAT, glass=glass)["choices"][0]
    assert chat["message"]["content"] == expected.text
    assert model.replay(chat["glass"]["receipt"]).identical
    listed = post(steering_client, "/v1/chat/completions", **CHAT, glass={"steer": [STEER, {**STEER, "strength": 0}]})
    assert listed["choices"][0]["message"]["content"] == expected.text
    run = post(steering_client, "/glass/run", model="tiny", prompt=MESSAGES, max_tokens=6, temperature=0, steer=STEER)
    assert run["text"] == expected.text
    raw = model.steered({vector: 8.0}).watch("Once upon", raw=True, **settings).text
    completion = {"model": "tiny", "prompt": "Once upon", "max_tokens": 6, "temperature": 0, "glass": glass}
    assert post(steering_client, "/v1/completions", **completion)["choices"][0]["text"] == raw


def test_rows_beside_a_steered_one_are_the_same(steering_client: httpx.Client) -> None:
    """Bit for bit: the probabilities too."""
    glass = {"candidates": 3}

    def ask(steer: Any) -> Any:
        body = {**CHAT, "max_tokens": 12, "glass": glass | ({"steer": steer} if steer else {})}
        return post(steering_client, "/v1/chat/completions", **body)["choices"][0]

    alone, steered_alone = ask(None), ask(STEER)
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(ask, [None, STEER, None, {**STEER, "strength": -8.0}, STEER, None]))
    assert [together[n] for n in (0, 2, 5)] == [alone] * 3
    assert [together[n] for n in (1, 4)] == [steered_alone] * 2
    assert steered_alone["message"] != alone["message"]


def test_the_vectors_that_a_client_can_name(steering_client: httpx.Client) -> None:
    listed = post(steering_client, "/glass/steering", model="tiny")
    (vector,) = listed["vectors"]
    assert (vector["name"], vector["sites"], vector["pairs"], vector["problem"]) == ("formal", [SITE], 2, None)
    (other,) = post(steering_client, "/glass/steering", model="encoder")["vectors"]
    assert "other weights" in other["problem"]


@pytest.mark.parametrize(
    ("steer", "message"),
    [
        ({"name": "nowhere"}, "there is no steering vector 'nowhere'"),
        ({"name": "/etc/passwd"}, "there is no steering vector"),
        ({"name": "../formal"}, "there is no steering vector"),
        ({"name": ""}, "steer"),
        ({"name": "formal", "strength": "many"}, "steer"),
        ({"name": "formal", "strength": 1e300}, "too large for float32"),
        ({"name": "formal", "sites": []}, "steer"),
        ([{"name": "formal"}] * 17, "steer"),
    ],
    ids=str,
)
def test_what_cannot_be_steered_is_refused(steering_client: httpx.Client, steer: Any, message: str) -> None:
    for path, fields in (("/v1/chat/completions", {**CHAT, "glass": {"steer": steer}}),
                         ("/glass/trace", {"model": "tiny", "prompt": "how", "steer": steer})):  # fmt: skip
        response = steering_client.post(path, json=fields)
        assert response.status_code == 400, response.text
        assert message in response.json()["error"]["message"]


def test_without_a_folder_nothing_can_be_named(client: httpx.Client, folder: Path) -> None:
    for name in ("formal", str(folder / "formal.safetensors")):
        response = client.post("/v1/chat/completions", json={**CHAT, "glass": {"steer": {"name": name}}})
        assert response.status_code == 400
        assert "There is none here." in response.json()["error"]["message"]
