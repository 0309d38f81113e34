"""Requests made up from the OpenAPI document, valid and invalid: whatever is sent, the server does not fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings, strategies
from schemathesis import Case, GenerationMode

from glassformer.serving.http.app import create_app
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.serving.conftest import serving
from tests.serving.test_matrix import ROUTES

OPERATIONS = [(path.replace(":path", ""), route.method) for path, route in ROUTES.items() if path != "/openapi.json"]
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


@pytest.fixture(scope="module")
def schema(sources: tuple[ModelSource, ...]) -> Iterator[Any]:
    limits = Limits(new_tokens=2, texts=2, prompts=4, inputs=4, stop_seconds=1)
    with serving(create_app(Registry(sources, limits))) as address:
        yield schemathesis.openapi.from_url(f"{address}/openapi.json")


def test_the_document_has_every_route(schema: Any) -> None:
    operations = {(result.ok().path, result.ok().method.upper()) for result in schema.get_all_operations()}
    assert operations == set(OPERATIONS)


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
        response = case.call(timeout=60)
        assert response.status_code < 500, (case.body, response.content)

    ask()
