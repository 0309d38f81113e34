"""A client's own change that makes numbers no numbers: the client is told so, and where; it is no failure of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from glassformer.serving.http.app import create_app
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.serving.test_matrix import MESSAGES, ROUTES

pytestmark = pytest.mark.filterwarnings("ignore:.*(overflow|invalid value).*:RuntimeWarning")
CHANGE = {"blocks.0.residual": {"scale": 0, "shift": 3e38}, "blocks.1.residual": {"scale": 3e38}}
BLAME = "This request changes blocks.0.residual, blocks.1.residual: change less there."
VIEWS = [path for path, route in ROUTES.items() if path.startswith("/glass/") and route.method == "POST"]


@pytest.fixture(scope="module")
def client(sources: tuple[ModelSource, ...], experts_source: ModelSource) -> Iterator[httpx.Client]:
    app = create_app(Registry([*sources, experts_source], Limits(stop_seconds=1)))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/glass/run", "/glass/record"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_text_under_a_change_that_breaks_it_is_refused_with_the_site(
    client: httpx.Client, path: str, stream: bool
) -> None:
    prompt: dict[str, Any] = {"messages": MESSAGES} if "chat" in path else {"prompt": "hi"}
    change: dict[str, Any] = {"change": CHANGE} if path.startswith("/glass") else {"glass": {"change": CHANGE}}
    streamed = {} if path == "/glass/run" else {"stream": stream}
    answer = client.post(path, json={"model": "tiny", "max_tokens": 2, **prompt, **change, **streamed})
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "The first place where they are not is blocks.1.residual." in message
    assert message.endswith(BLAME)


@pytest.mark.parametrize("path", VIEWS)
def test_no_view_fails_under_such_a_change(client: httpx.Client, path: str) -> None:
    route = ROUTES[path]
    answer = client.post(route.path, json={**(route.body or {}), "change": CHANGE})
    assert answer.status_code in (200, 400, 404), answer.text
    json.loads(answer.text)


@pytest.mark.parametrize("path", ["/glass/look", "/glass/trace", "/glass/lens", "/glass/tree", "/glass/compare"])
def test_a_view_of_a_choice_says_whose_change_broke_it(client: httpx.Client, path: str) -> None:
    answer = client.post(path, json={**(ROUTES[path].body or {}), "change": CHANGE})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].endswith(BLAME)
