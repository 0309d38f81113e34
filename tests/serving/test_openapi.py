"""The OpenAPI document: what it promises is what the server answers, and whatever is sent, the server does not fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings, strategies
from schemathesis import Case, GenerationMode

from glassformer.serving.http.app import create_app
from glassformer.serving.http.openapi import PAGE
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.patience import patience
from tests.serving.conftest import serving
from tests.serving.test_matrix import ROUTES, ListedRoute, listed_path

OPERATIONS = [
    (listed_path(key).replace(":path", ""), route.method) for key, route in ROUTES.items() if key != "/openapi.json"
]
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


@pytest.fixture(scope="module")
def client(sources: tuple[ModelSource, ...], experts_source: ModelSource, training: Path) -> Iterator[httpx.Client]:
    limits = Limits(new_tokens=2, texts=2, prompts=4, inputs=4, stop_seconds=1)
    registry = Registry((*sources, experts_source), limits)
    with (
        serving(create_app(registry, training=training)) as address,
        httpx.Client(base_url=address, timeout=patience(60)) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def schema(client: httpx.Client) -> Any:
    return schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> Any:
    return client.get("/openapi.json").json()


def test_the_document_has_every_route(schema: Any) -> None:
    operations = {(result.ok().path, result.ok().method.upper()) for result in schema.get_all_operations()}
    assert operations == set(OPERATIONS)


def test_the_document_says_what_is_answered_and_how_errors_look(document: Any) -> None:
    for path, operations in document["paths"].items():
        for operation in operations.values():
            responses = operation["responses"]
            assert all(content["schema"] for content in responses["200"]["content"].values()), path
            assert "422" not in responses, path
            assert ("400" in responses) == ("requestBody" in operation or "parameters" in operation), path


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES.keys())
def test_a_routes_answers_and_errors_are_as_documented(client: httpx.Client, document: Any, route: ListedRoute) -> None:
    path = listed_path(next(key for key, entry in ROUTES.items() if entry is route)).replace(":path", "")
    if path == "/openapi.json":
        return
    responses = document["paths"][path][route.method.lower()]["responses"]

    def fits(response: httpx.Response, status: str) -> None:
        content = responses[status]["content"]
        media_type = response.headers["Content-Type"].partition(";")[0]
        assert media_type in content or "*/*" in content, media_type
        if media_type in ("application/json", PAGE) and "*/*" not in content:
            jsonschema.validate(response.json(), {**content[media_type]["schema"], "components": document["components"]})

    response = client.request(route.method, route.path, json=route.body)
    assert response.status_code == route.status, response.text
    if route.method != "HEAD":
        fits(response, route.document_status)
    if PAGE in responses["200"]["content"]:
        response = client.request(route.method, route.path, json=route.body, headers={"Accept": PAGE})
        assert response.headers["Content-Type"] == PAGE, "the document promises the view's page"
        fits(response, "200")
    if route.method == "POST" and route.body is not None:
        response = client.post(route.path, json=[])
        assert response.status_code == 400
        fits(response, "400")


@pytest.mark.parametrize("examples", [3, pytest.param(1000, marks=pytest.mark.sweep)])
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_no_request_is_a_server_error(schema: Any, path: str, method: str, examples: int) -> None:
    cases = [schema[path][method].as_strategy(generation_mode=mode) for mode in MODES]

    @settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate],
        database=None, derandomize=True,
    )  # fmt: skip
    @given(case=strategies.one_of(cases), model=strategies.sampled_from(["tiny", "encoder", None]))
    def ask(case: Case, model: str | None) -> None:
        if isinstance(case.body, dict) and model is not None:
            case.body["model"] = model  # no made-up name would be one of ours
        response = case.call(timeout=patience(60))
        assert response.status_code < 500, (case.body, response.content)

    ask()
