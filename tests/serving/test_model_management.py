"""Models that come and go: only where the operator allows it, by names of the catalogue and the hub alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import glassformer
from glassformer.checkpoint import local_cache
from glassformer.ground.errors import FetchError, InputError, ModelNotFound
from glassformer.ground.progress import NamedProgress
from glassformer.serving.http.app import create_app
from glassformer.serving.http.dialects.ollama_models import fetched_name
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Permissions, Pull, Registry
from tests.patience import patience
from tests.serving.conftest import serving

MESSAGES = [{"role": "user", "content": "hi"}]


@contextmanager
def managed(sources: tuple[ModelSource, ...], pull: Pull | None = None, delete: bool = True) -> Iterator[httpx.Client]:
    app = create_app(Registry(sources, Limits(stop_seconds=1)), permissions=Permissions(pull, delete))
    with serving(app) as address, httpx.Client(base_url=address, timeout=patience(60)) as client:
        yield client


@pytest.fixture
def pull(tiny_qwen3: Path) -> Callable[[str, NamedProgress], ModelSource]:
    def fetch(name: str, progress: NamedProgress) -> ModelSource:
        for done in (0, 5, 5, 10):
            progress("fetching it", done, 10)
        return ModelSource(name, lambda: glassformer.load(tiny_qwen3), fetched_as=name)

    return fetch


def names(client: httpx.Client) -> list[str]:
    return [model["name"] for model in client.get("/api/tags").json()["models"]]


def test_a_pulled_model_is_offered_at_once(sources: tuple[ModelSource, ...], pull: Pull) -> None:
    with managed(sources, pull) as client:
        response = client.post("/api/pull", json={"model": "smollm2:latest"})
        assert response.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in response.text.splitlines()]
        assert (lines[0], lines[-1]) == ({"status": "pulling manifest"}, {"status": "success"})
        assert [(line["completed"], line["total"]) for line in lines[1:-1]] == [(0, 10), (5, 10), (10, 10)]
        assert len({line["digest"] for line in lines[1:-1]}) == 1
        body = {"model": "smollm2", "messages": MESSAGES, "stream": False, "options": {"num_predict": 1}}
        assert client.post("/api/chat", json=body).status_code == 200
        assert client.post("/api/pull", json={"name": "smollm2", "stream": False}).json() == {"status": "success"}
        assert names(client).count("smollm2:latest") == 1


def test_what_goes_wrong_is_said_without_telling_where(sources: tuple[ModelSource, ...]) -> None:
    def fail(name: str, progress: NamedProgress) -> ModelSource:
        raise FetchError("/secret/place: cannot be written to.")

    with managed(sources, fail) as client:
        lines = client.post("/api/pull", json={"model": "smollm2"}).text.splitlines()
        assert json.loads(lines[-1]) == {"error": "smollm2 cannot be pulled; the server's log says why."}
        response = client.post("/api/pull", json={"model": "smollm2", "stream": False})
        assert response.status_code == 500
        assert "secret" not in response.text


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "./model", "../up", "nobody", "a/b/c", "a/" + "b" * 5000, "~/model", "gpt2:7b", "..", "a/.."]
)
def test_no_path_is_a_name(name: str) -> None:
    with pytest.raises(ModelNotFound, match="no model"):
        fetched_name(name)


def test_a_folder_that_looks_like_a_hub_id_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert fetched_name("a/b") == "a/b"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound):
        fetched_name("a/b")


def test_without_permission_nothing_changes(sources: tuple[ModelSource, ...]) -> None:
    with managed(sources, delete=False) as client:
        before = names(client)
        for method, path, body, flag in (
            ("POST", "/api/pull", {"model": "smollm2"}, "--allow-pull"),
            ("POST", "/api/copy", {"source": "tiny", "destination": "mine"}, "--allow-delete"),
            ("DELETE", "/api/delete", {"model": "gpt-4o"}, "--allow-delete"),
        ):
            response = client.request(method, path, json=body)
            assert response.status_code == 403
            assert flag in response.json()["error"]
        assert names(client) == before


def test_a_copy_is_a_further_name_that_can_be_deleted(sources: tuple[ModelSource, ...]) -> None:
    with managed(sources) as client:
        assert client.post("/api/copy", json={"source": "tiny:latest", "destination": "mine:latest"}).status_code == 200
        assert "mine:latest" in names(client)
        assert client.post("/api/show", json={"model": "mine"}).status_code == 200
        taken = client.post("/api/copy", json={"source": "tiny", "destination": "encoder"})
        assert (taken.status_code, taken.json()["error"]) == (
            400, "there is a model 'encoder' already. Choose another name.",
        )  # fmt: skip
        assert client.post("/api/copy", json={"source": "tiny", "destination": "../x"}).status_code == 400
        assert client.request("DELETE", "/api/delete", json={"model": "mine:latest"}).status_code == 200
        assert client.post("/api/show", json={"model": "mine"}).status_code == 404
        assert "tiny:latest" in names(client)


def test_only_what_was_fetched_is_deleted(
    sources: tuple[ModelSource, ...], pull: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[Any] = []
    monkeypatch.setattr(local_cache, "cached_items", lambda name: (name,))
    monkeypatch.setattr(local_cache, "remove", removed.extend)
    with managed(sources, pull) as client:
        own = client.request("DELETE", "/api/delete", json={"model": "tiny"})
        assert (own.status_code, removed) == (400, [])
        assert "tiny was not fetched" in own.json()["error"]
        client.post("/api/pull", json={"model": "smollm2", "stream": False})
        client.post("/api/show", json={"model": "smollm2"})
        assert client.request("DELETE", "/api/delete", json={"name": "smollm2:latest"}).status_code == 200
        assert removed == ["smollm2"]
        assert client.post("/api/show", json={"model": "smollm2"}).status_code == 404


def test_the_last_model_and_one_in_use_stay(tiny_qwen3: Path) -> None:
    registry = Registry([ModelSource("a", lambda: glassformer.load(tiny_qwen3), fetched_as="a")])
    with pytest.raises(InputError, match="last model"):
        registry.remove("a")
    registry.add(ModelSource("b", lambda: glassformer.load(tiny_qwen3)))
    with registry.use("a"), pytest.raises(InputError, match="in use"):
        registry.remove("a")
    assert registry.remove("a") is not None
    assert list(registry.sources) == ["b"]
    registry.close()
