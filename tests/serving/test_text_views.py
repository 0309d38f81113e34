"""Views of many texts over HTTP: requests that are too large are refused."""

from __future__ import annotations

from typing import Any

import httpx

from tests.serving.test_views import LABELS, TEXTS, refusal


def rejected(client: httpx.Client, view: str, **fields: Any) -> str:
    response = client.post(f"/glass/{view}", json={"model": "tiny", **fields})
    assert response.status_code in (400, 422), response.text
    return response.text


def test_bad_requests_are_refused(client: httpx.Client) -> None:
    site = ["blocks.0.residual"]
    assert "different labels" in refusal(client, "probe", texts=TEXTS, labels=["a"] * 12, sites=site)
    assert "11 labels for 12 texts" in refusal(client, "probe", texts=TEXTS, labels=LABELS[1:], sites=site)
    many = [str(number) for number in range(34) for _ in range(2)]
    assert "more than 16 different labels" in refusal(client, "probe", texts=many, labels=many, sites=site)
    assert "for each pair of tokens" in refusal(client, "activations", texts=TEXTS, sites=["blocks.0.attention.pattern"])
    rejected(client, "activations", texts=["a"] * 257, sites=site)
    rejected(client, "activations", texts=["a" * 20_001], sites=site)
    rejected(client, "activations", texts=[""], sites=site)
    rejected(client, "activations", texts=["a"], sites=["embedding"] * 65)
    rejected(client, "activations", texts=["a"], sites=site, length=257)
    rejected(client, "activations", texts=["a"], sites=site, examples=21)


def test_more_sites_than_allowed_are_refused(client: httpx.Client, monkeypatch: Any) -> None:
    monkeypatch.setattr("glassformer.serving.http.operation_routes.MAX_SITES", 1)
    assert "more than 1 sites" in refusal(client, "activations", texts=["a"], sites=["blocks.*.residual"])
