"""/glass/saliency and /glass/attribution-patch: the same data as the views, within bounds."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from glassformer import Change
from glassformer.serving.http import operation_routes
from tests.serving.test_views import HEADS, OTHER, TEXT, refusal, see


def test_saliency_is_the_one_that_python_gives(client: httpx.Client, model: Any) -> None:
    data = see(client, "saliency", prompt=TEXT, raw=True, token=3, against=5, method="integrated", steps=4)
    assert data == model.read(TEXT, raw=True).saliency(3, 5, method="integrated", steps=4).to_dict()
    assert see(client, "saliency", prompt=TEXT, raw=True, metric="loss")["metric"] == "loss"


def test_saliency_of_a_run_under_a_change(client: httpx.Client, model: Any) -> None:
    change = {HEADS: {"scale": 0, "heads": [1]}}
    data = see(client, "saliency", prompt=[5, 6, 7], answer_ids=[8], position=1, token=3, change=change)
    changed = model.changed({HEADS: Change(scale=0, heads=[1])})
    assert data == changed.read_ids([5, 6, 7], [8]).saliency(3, position=1).to_dict()
    assert data["changes"] == [HEADS]


def test_attribution_patching_is_the_one_that_python_gives(client: httpx.Client, model: Any) -> None:
    fields = {"part": "attention", "answer": 3, "against": 5, "check": True}
    data = see(client, "attribution-patch", first=TEXT, second=OTHER, raw=True, **fields)
    view = model.attribution_patch(TEXT, OTHER, "attention", answer=3, against=5, check=True, raw=True)
    assert data == view.to_dict()


def test_what_a_request_cannot_have(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for fields in ({"steps": 65, "method": "integrated"}, {"metric": "function"}, {"method": "nonsense"}):
        assert client.post("/glass/saliency", json={"model": "tiny", "prompt": TEXT, **fields}).status_code in (400, 422)
    assert "there is no token 9999" in refusal(client, "saliency", prompt=TEXT, position=9999)
    monkeypatch.setattr(operation_routes, "MAX_TOKENS", 2)
    assert "this server differentiates 2 at most" in refusal(client, "saliency", prompt=TEXT)
    assert "this server differentiates 2 at most" in refusal(client, "attribution-patch", first=TEXT, second=OTHER)
