"""The routes under /glass/: the same data as the views themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

import glassformer
from glassformer import Change
from glassformer.observe.recording import CANDIDATES
from glassformer.views.journey import Journey
from glassformer.views.schema import schema

TEXT, OTHER = "the cat sat on the mat", "the dog sat on the mat"
MESSAGES: Any = [{"role": "user", "content": "how are you?"}]
HEADS = "blocks.0.attention.heads"


def see(client: httpx.Client, view: str, **fields: Any) -> Any:
    response = client.post(f"/glass/{view}", json={"model": "tiny", **fields})
    assert response.status_code == 200, response.text
    return response.json()


def refusal(client: httpx.Client, view: str, **fields: Any) -> str:
    response = client.post(f"/glass/{view}", json={"model": "tiny", **fields})
    assert response.status_code == 400, response.text
    return str(response.json()["error"]["message"])


VIEWS: dict[str, tuple[str, dict[str, Any], Callable[[Any], Any]]] = {
    "tree": ("tree", {"prompt": TEXT, "width": 2, "depth": 2}, lambda model: model.tree(TEXT, width=2, depth=2)),
    "trace": ("trace", {"prompt": TEXT, "raw": True}, lambda model: model.read(TEXT, raw=True).trace()),
    "lens": ("lens", {"prompt": TEXT, "positions": [1]}, lambda model: model.read(TEXT).lens([1])),
    "attention": (
        "attention",
        {"prompt": MESSAGES, "layer": 1, "head": 0},
        lambda model: model.read(MESSAGES).attention(1, 0),
    ),
    "inside": (
        "inside",
        {"prompt": TEXT, "raw": True, "path": "blocks.1.attention.heads.1.0", "position": 2},
        lambda model: model.read(TEXT, raw=True).inside("blocks.1.attention.heads.1.0", 2),
    ),
    "inside a run": (
        "inside",
        {"prompt_ids": [5, 6], "answer_ids": [7], "path": "blocks.1"},
        lambda model: model.read_ids([5, 6], [7]).inside("blocks.1"),
    ),
    "compare": (
        "compare",
        {"first": TEXT, "second": OTHER, "raw": True},
        lambda model: glassformer.compare(model.read(TEXT, raw=True), model.read(OTHER, raw=True)),
    ),
    "patch": (
        "patch",
        {"first": TEXT, "second": OTHER, "raw": True, "part": "attention"},
        lambda model: model.patch(TEXT, OTHER, "attention", raw=True),
    ),
    "changed": (
        "trace",
        {"prompt": TEXT, "raw": True, "change": {HEADS: {"scale": 0, "heads": [1]}}},
        lambda model: model.changed({HEADS: Change(scale=0, heads=[1])}).read(TEXT, raw=True).trace(),
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_the_one_that_python_gives(client: httpx.Client, model: Any, name: str) -> None:
    route, fields, view = VIEWS[name]
    assert see(client, route, **fields) == view(model).to_dict()


def test_a_journey_fits_its_schema(client: httpx.Client) -> None:
    data = see(client, "look", prompt=TEXT)  # it tells time, which differs
    jsonschema.validate(data, schema(Journey))
    assert data["prompt"].endswith("<think>\n\n</think>\n\n")


def test_a_run_is_everything_that_made_it(client: httpx.Client, model: Any) -> None:
    settings: dict[str, Any] = {"temperature": 0.8, "seed": 4, "top_k": 9}
    data = see(client, "run", prompt=MESSAGES, max_tokens=4, candidates=3, **settings)
    run = model.watch(MESSAGES, look=3, max_new_tokens=4, do_sample=True, **settings)
    assert data["text"] == run.text
    assert data["whys"] == run.whys.to_dict()
    assert data["trace"] == run.trace.to_dict()
    assert model.replay(data["receipt"]).identical


def test_a_recording_is_the_one_that_python_gives(client: httpx.Client, model: Any) -> None:
    data = see(client, "record", prompt=TEXT, max_tokens=3, temperature=0)
    recording = model.watch(TEXT, look=CANDIDATES, max_new_tokens=3, do_sample=False).recording
    assert data == {**recording.to_dict(), "tokens_per_second": data["tokens_per_second"]}


def test_tasks_answer_each_input(client: httpx.Client, tiny_encoder: Path) -> None:
    data = see(client, "task/embed", model="encoder", inputs=["a cat", 5])
    expected = glassformer.pipeline("embed", str(tiny_encoder))("a cat")
    assert data["task"] == "embed"
    assert data["outputs"][0]["output"] == pytest.approx(expected.tolist(), abs=1e-6)
    assert "error" in data["outputs"][1]
    data = see(client, "task/text-generation", inputs=["the cat"], options={"max_new_tokens": 3})
    assert data["outputs"][0]["output"]


@pytest.mark.parametrize(
    ("view", "fields", "message"),
    [
        ("tree", {"prompt": TEXT, "width": 100, "depth": 100}, "is too tall|nodes"),
        ("tree", {"prompt": ""}, "the prompt is empty"),
        ("lens", {"prompt": TEXT, "positions": [10_000]}, "10000|10,000|no position"),
        ("attention", {"prompt": TEXT, "layer": 99}, "99"),
        ("inside", {"path": "blocks.1"}, "give either prompt or prompt_ids"),
        ("inside", {"prompt": TEXT, "answer_ids": [1]}, "answer_ids follow prompt_ids"),
        ("inside", {"prompt_ids": [10**9]}, "1000000000 is no token id"),
        ("compare", {"first": TEXT}, "second"),
        ("patch", {"first": TEXT, "second": "the cat", "raw": True}, "tokens"),
        ("run", {"prompt": TEXT, "candidates": 21}, "candidates is 21; this server allows 20 at most"),
        ("run", {"prompt": TEXT, "assistant_model": "smollm2"}, "takes no 'assistant_model'"),
        ("look", {"prompt": TEXT, "width": 3}, "width"),
        ("trace", {"prompt": TEXT, "change": {"nowhere": {"scale": 0}}}, "nowhere"),
        ("task/nothing", {"inputs": ["a"]}, "there is no task 'nothing'"),
        ("task/fill-mask", {"inputs": ["a"]}, "fill-mask needs a model with a masked language modeling head"),
        ("task/text-generation", {"inputs": ["a"], "options": {"depth": 3}}, "depth"),
    ],
)
def test_what_cannot_be_seen_is_refused(client: httpx.Client, view: str, fields: dict[str, Any], message: str) -> None:
    text = refusal(client, view, **fields)
    assert any(part in text for part in message.split("|")), text
