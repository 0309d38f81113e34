"""Every route × key × Host × Origin × method. A new route fails here until it is listed.

Of each route every run has the requests in which at most one of the four is not the usual one, of a route of each kind those
in which two are not, and `make test-all` has all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from glassformer.serving.http.app import create_app
from glassformer.serving.http.security import Security, needs_no_key
from glassformer.serving.registry import ModelSource, Registry
from glassformer.studio import static_files
from tests.serving.conftest import KEY
from tests.sweeps import swept

ONE = {"num_predict": 1}  # token
MESSAGES = [{"role": "user", "content": "hi"}]


@dataclass(frozen=True)
class ListedRoute:
    """A route: its method, a path that fits it, a body that it takes, and where its error message is."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    message_at: tuple[str, ...] = ("error", "message")
    status: int = 200  # of the answer to that: not all is allowed or there

    @property
    def document_status(self) -> str:
        """Under which the OpenAPI document has the answer."""
        return {200: "200", 400: "400"}.get(self.status, "default")


ROUTES = {  # by path; a second method of a path after its name
    "/openapi.json": ListedRoute("GET", "/openapi.json"),
    "/v1/models": ListedRoute("GET", "/v1/models"),
    "/v1/models/{name:path}": ListedRoute("GET", "/v1/models/tiny"),
    "/v1/chat/completions": ListedRoute(
        "POST", "/v1/chat/completions", {"model": "tiny", "messages": MESSAGES, "max_tokens": 1}
    ),
    "/v1/completions": ListedRoute("POST", "/v1/completions", {"model": "tiny", "prompt": "hi", "max_tokens": 1}),
    "/v1/embeddings": ListedRoute("POST", "/v1/embeddings", {"model": "encoder", "input": "hi"}),
    "/v1/responses": ListedRoute("POST", "/v1/responses", {"model": "tiny", "input": "hi", "max_output_tokens": 1}),
    "/v1/responses/{response_id}": ListedRoute("GET", "/v1/responses/resp_1", status=404),
    "DELETE /v1/responses/{response_id}": ListedRoute("DELETE", "/v1/responses/resp_1", status=404),
    "/v1/responses/{response_id}/input_items": ListedRoute("GET", "/v1/responses/resp_1/input_items", status=404),
    "/v1/files": ListedRoute("GET", "/v1/files"),
    "POST /v1/files": ListedRoute("POST", "/v1/files", {}, status=400),
    "/v1/files/{file_id}": ListedRoute("GET", "/v1/files/file-1", status=404),
    "DELETE /v1/files/{file_id}": ListedRoute("DELETE", "/v1/files/file-1", status=404),
    "/v1/files/{file_id}/content": ListedRoute("GET", "/v1/files/file-1/content", status=404),
    "/v1/batches": ListedRoute("GET", "/v1/batches"),
    "POST /v1/batches": ListedRoute(
        "POST", "/v1/batches", {"input_file_id": "file-1", "endpoint": "/v1/completions"}, status=404
    ),
    "/v1/batches/{batch_id}": ListedRoute("GET", "/v1/batches/batch_1", status=404),
    "/v1/batches/{batch_id}/cancel": ListedRoute("POST", "/v1/batches/batch_1/cancel", status=404),
    "/v1/messages": ListedRoute("POST", "/v1/messages", {"model": "tiny", "messages": MESSAGES, "max_tokens": 1}),
    "/v1/messages/batches": ListedRoute("GET", "/v1/messages/batches"),
    "POST /v1/messages/batches": ListedRoute("POST", "/v1/messages/batches", {"requests": []}, status=400),
    "/v1/messages/batches/{batch_id}": ListedRoute("GET", "/v1/messages/batches/b", status=404),
    "DELETE /v1/messages/batches/{batch_id}": ListedRoute("DELETE", "/v1/messages/batches/b", status=404),
    "/v1/messages/batches/{batch_id}/results": ListedRoute("GET", "/v1/messages/batches/b/results", status=404),
    "/v1/messages/batches/{batch_id}/cancel": ListedRoute("POST", "/v1/messages/batches/b/cancel", status=404),
    "/v1/messages/count_tokens": ListedRoute("POST", "/v1/messages/count_tokens", {"model": "tiny", "messages": MESSAGES}),
    "/api/chat": ListedRoute("POST", "/api/chat", {"model": "tiny", "messages": MESSAGES, "options": ONE}, ("error",)),
    "/api/generate": ListedRoute("POST", "/api/generate", {"model": "tiny", "prompt": "hi", "options": ONE}, ("error",)),
    "/api/embed": ListedRoute("POST", "/api/embed", {"model": "encoder", "input": "hi"}, ("error",)),
    "/api/embeddings": ListedRoute("POST", "/api/embeddings", {"model": "encoder", "prompt": "hi"}, ("error",)),
    "/api/pull": ListedRoute("POST", "/api/pull", {"model": "smollm2"}, ("error",), 403),
    "/api/copy": ListedRoute("POST", "/api/copy", {"source": "tiny", "destination": "t"}, ("error",), 403),
    "/api/delete": ListedRoute("DELETE", "/api/delete", {"model": "tiny"}, ("error",), 403),
    "/api/show": ListedRoute("POST", "/api/show", {"model": "tiny"}, ("error",)),
    "/api/tags": ListedRoute("GET", "/api/tags", message_at=("error",)),
    "/api/ps": ListedRoute("GET", "/api/ps", message_at=("error",)),
    "/api/version": ListedRoute("GET", "/api/version", message_at=("error",)),
    "/v1/rerank": ListedRoute("POST", "/v1/rerank", {"model": "encoder", "query": "hi", "documents": ["hello"]}),
    "/tokenize": ListedRoute("POST", "/tokenize", {"content": "hi"}),
    "/detokenize": ListedRoute("POST", "/detokenize", {"tokens": [1, 2]}),
    "/apply-template": ListedRoute("POST", "/apply-template", {"messages": MESSAGES}),
    "/glass/run": ListedRoute("POST", "/glass/run", {"prompt": "hi", "max_tokens": 1}),
    "/glass/record": ListedRoute("POST", "/glass/record", {"prompt": "hi", "max_tokens": 1}),
    "/glass/look": ListedRoute("POST", "/glass/look", {"prompt": "hi"}),
    "/glass/tree": ListedRoute("POST", "/glass/tree", {"prompt": "hi", "width": 1, "depth": 1}),
    "/glass/trace": ListedRoute("POST", "/glass/trace", {"prompt": "hi there"}),
    "/glass/explain": ListedRoute("POST", "/glass/explain", {"prompt": "hi there", "tokens": 1}),
    "/glass/lens": ListedRoute("POST", "/glass/lens", {"prompt": "hi"}),
    "/glass/attention": ListedRoute("POST", "/glass/attention", {"prompt": "hi"}),
    "/glass/attention-maps": ListedRoute("POST", "/glass/attention-maps", {"prompt": "hi"}),
    "/glass/experts": ListedRoute("POST", "/glass/experts", {"model": "experts", "prompt": "hi"}),
    "/glass/features": ListedRoute("POST", "/glass/features", {"prompt": "hi", "dictionary": "resid-0"}),
    "/glass/feature-dictionaries": ListedRoute("POST", "/glass/feature-dictionaries", {"model": "tiny"}),
    "/glass/steering": ListedRoute("POST", "/glass/steering", {"model": "tiny"}),
    "/glass/inside": ListedRoute("POST", "/glass/inside", {"prompt": "hi", "path": "blocks.0"}),
    "/glass/compare": ListedRoute("POST", "/glass/compare", {"first": "hi there", "second": "hi you"}),
    "/glass/patch": ListedRoute("POST", "/glass/patch", {"first": "one cat", "second": "two cat", "raw": True}),
    "/glass/saliency": ListedRoute("POST", "/glass/saliency", {"prompt": "hi"}),
    "/glass/attribution-patch": ListedRoute(
        "POST", "/glass/attribution-patch", {"first": "one cat", "second": "two cat", "raw": True}
    ),
    "/glass/attribution": ListedRoute("POST", "/glass/attribution", {"prompt": "hi"}),
    "/glass/graph": ListedRoute("POST", "/glass/graph", {"prompt": "hi", "threshold": 0.5}),
    "/glass/circuit": ListedRoute("POST", "/glass/circuit", {"layer": 0, "head": 0, "tokens": [3]}),
    "/glass/composition": ListedRoute("POST", "/glass/composition", {"layer": 1}),
    "/glass/patch-pairs": ListedRoute(
        "POST", "/glass/patch-pairs", {"pairs": [{"first": "one cat", "second": "two cat"}], "raw": True}
    ),
    "/glass/patch-path": ListedRoute(
        "POST", "/glass/patch-path", {"first": "one cat", "second": "two cat", "receivers": ["final"], "raw": True}
    ),
    "/glass/probe": ListedRoute(
        "POST", "/glass/probe", {"texts": ["a cat", "a", "b", "b cat"], "labels": ["1", "0", "0", "1"]}
    ),
    "/glass/activations": ListedRoute("POST", "/glass/activations", {"texts": ["a cat"], "sites": ["blocks.0.mlp.hidden"]}),
    "/glass/model": ListedRoute("POST", "/glass/model", {"model": "encoder"}),
    "/glass/sites": ListedRoute("POST", "/glass/sites", {}),
    "/glass/tokens": ListedRoute("POST", "/glass/tokens", {"text": "hi"}),
    "/glass/parameters": ListedRoute("POST", "/glass/parameters", {"only": "model.norm", "histogram": True}),
    "/glass/task/{task}": ListedRoute("POST", "/glass/task/embed", {"model": "encoder", "inputs": ["hi"]}),
    "/glass/views": ListedRoute("GET", "/glass/views"),
    "/glass/training": ListedRoute("GET", "/glass/training"),
    "/glass/learning": ListedRoute("POST", "/glass/learning", {"prompt": "hi"}),
    "/health": ListedRoute("GET", "/health"),
    "/metrics": ListedRoute("GET", "/metrics"),
    "/": ListedRoute("GET", "/"),
    "HEAD /": ListedRoute("HEAD", "/"),
    "/studio/{name}": ListedRoute("GET", f"/{next(path for path in static_files() if path.startswith('studio/'))}"),
}
OF_EACH_KIND = ("/v1/models", "/v1/messages", "/api/generate", "/glass/run", "/health", "/", "/studio/{name}")
UNUSUAL = [*((path, 1) for path in ROUTES), *((path, 2) for path in OF_EACH_KIND)]
METHODS = ("GET", "POST", "DELETE", "HEAD", "OPTIONS")
KEYS: dict[str, dict[str, str]] = {
    "right": {"Authorization": f"Bearer {KEY}"},
    "right, as Anthropic's clients send it": {"x-api-key": KEY},
    "none": {},
    "wrong": {"Authorization": f"Bearer {KEY}x"},
}
HOSTS = {
    "localhost": True, "[::1]:8000": True, "glass.example": True, "evil.example": False, "127.0.0.1@evil.example": False,
    "": False,
}  # fmt: skip
ORIGINS = {
    None: True, "http://localhost:3000": True, "https://app.example": True, "https://evil.example": False, "null": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def app(
    sources: tuple[ModelSource, ...], pair_source: ModelSource, experts_source: ModelSource, training: Path
) -> Iterator[FastAPI]:  # fmt: skip
    registry = Registry((*sources, pair_source, experts_source))
    allowed: dict[str, Any] = {"allowed_hosts": ("glass.example",), "allowed_origins": ("https://app.example",)}
    yield create_app(registry, security=Security(api_key=KEY, **allowed), training=training)
    registry.close()


def test_every_route_is_listed(app: FastAPI) -> None:
    paths = {(getattr(route, "path", None), method) for route in app.routes for method in getattr(route, "methods", ())}
    assert paths - {("/openapi.json", "HEAD")} == {(listed_path(key), route.method) for key, route in ROUTES.items()}


def listed_path(key: str) -> str:
    """The path of a route in the list, without its method."""
    return key.rpartition(" ")[2]


@pytest.mark.parametrize("path_and_unusual", [*UNUSUAL, *swept((path, 4) for path in ROUTES)], ids=str)
def test_only_allowed_requests_get_through(app: FastAPI, path_and_unusual: tuple[str, int]) -> None:
    path, unusual = path_and_unusual
    route = ROUTES[path]
    usual = (next(iter(KEYS)), next(iter(HOSTS)), next(iter(ORIGINS)), route.method)
    requests = [
        request
        for request in product(KEYS, HOSTS, ORIGINS, METHODS)
        if sum(value != expected for value, expected in zip(request, usual, strict=True)) <= unusual
    ]

    async def all_requests() -> None:
        transport = httpx.ASGITransport(app)
        app.state.context.deliveries.start(asyncio.get_running_loop())
        app.state.context.registry.deliver_to(app.state.context.deliveries.deliver)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            for key, host, origin, method in requests:
                headers = {**KEYS[key], "Host": host, **({} if origin is None else {"Origin": origin})}
                body = route.body if method == route.method else None
                response = await client.request(method, route.path, headers=headers, json=body)
                check(route, key, host, origin, method, response)

    asyncio.run(all_requests())


def methods_of(route: ListedRoute) -> set[str]:
    """All that the path of a route takes, each of which is a route of its own."""
    return {other.method for other in ROUTES.values() if other.path == route.path}


def check(route: ListedRoute, key: str, host: str, origin: str | None, method: str, response: httpx.Response) -> None:
    case = (key, host, origin, method, response.status_code, response.text)
    refused = True
    if not HOSTS[host] or not ORIGINS[origin]:
        expected = 403
    elif not key.startswith("right") and not needs_no_key(route.path):
        expected = 401
    elif method == route.method:
        expected, refused = route.status, False
    elif (method == "HEAD" and route.path == "/openapi.json") or method in methods_of(route):
        return
    else:
        expected, refused = 405, False
    assert response.status_code == expected, case
    allowed = response.headers.get("Access-Control-Allow-Origin")
    assert allowed == (None if refused else origin), case
    if expected == 401:
        assert response.headers["WWW-Authenticate"] == "Bearer"
    if expected != 200 and method != "HEAD":
        message = response.json()
        for part in route.message_at:
            message = message[part]
        assert message
        assert KEY not in message
