"""A client's own change that makes numbers no numbers: the client is told so, and where; it is no failure of the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from glassformer.serving.http.app import create_app
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.serving.test_matrix import MESSAGES, ROUTES

SITE = "blocks.0.residual"
CHANGE = {SITE: {"scale": 0, "shift": 3e38}, "blocks.1.residual": {"scale": 3e38}}
VIEWS = [path for path, route in ROUTES.items() if path.startswith("/glass/") and route.method == "POST"]


@pytest.fixture(scope="module")
def client(
    sources: tuple[ModelSource, ...], experts_source: ModelSource, training: Path
) -> Iterator[httpx.Client]:  # fmt: skip
    app = create_app(Registry([*sources, experts_source], Limits(stop_seconds=1)), training=training)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize("path", VIEWS)
def test_probe(client: httpx.Client, path: str) -> None:
    route = ROUTES[path]
    answer = client.post(route.path, json={**(route.body or {}), "change": CHANGE})
    print(path, answer.status_code, answer.text[:200])
