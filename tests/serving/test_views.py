"""The routes under /glass/: the same data as the views themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

import glassformer
from glassformer import Change
from glassformer.ground.errors import InputError
from glassformer.see.explain.explanation import Explanation
from glassformer.see.journey.view import Journey
from glassformer.see.recording import CANDIDATES, Recording
from glassformer.see.schema import schema
from tests.patience import wait_until

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


TEXTS = [f"{'the' if number % 2 else 'a'} cat sat on mat {number}" for number in range(12)]
LABELS = [text.split()[0] for text in TEXTS]
VIEWS: dict[str, tuple[str, dict[str, Any], Callable[[Any], Any]]] = {  # one for each way in which a request is read
    "of a conversation": (
        "attention", {"prompt": MESSAGES, "layer": 1, "head": 0}, lambda model: model.read(MESSAGES).attention(1, 0),
    ),
    "of a run": (
        "lens",
        {"prompt": [5, 6, 7], "answer_ids": [8], "positions": [2]},
        lambda model: model.read_ids([5, 6, 7], [8]).lens([2]),
    ),
    "of two texts": (
        "compare",
        {"first": TEXT, "second": OTHER, "raw": True},
        lambda model: glassformer.compare(model.read(TEXT, raw=True), model.read(OTHER, raw=True)),
    ),
    "of pairs": (
        "patch-pairs",
        {"pairs": [{"first": TEXT, "second": OTHER, "answer": "#4", "against": 5}], "raw": True, "metric": "kl"},
        lambda model: model.patch_pairs([(TEXT, OTHER, 4, 5)], raw=True, metric="kl"),
    ),
    "of tokens alone": (
        "circuit",
        {"tokens": [3, 4], "layer": 1, "head": 0, "best": 2},
        lambda model: model.circuits.head(1, 0, [3, 4], best=2),
    ),
    "probe": (
        "probe",
        {"texts": TEXTS, "labels": LABELS, "position": "mean", "sites": ["blocks.*.residual", "embedding"], "length": 8},
        lambda model: model.read_many(TEXTS, length=8).probe(LABELS, "blocks.*.residual", "embedding", position="mean").view,
    ),
    "probe by default": (
        "probe", {"texts": TEXTS, "labels": LABELS}, lambda model: model.read_many(TEXTS).probe(LABELS).view
    ),
    "activations": (
        "activations",
        {"texts": TEXTS, "sites": ["blocks.0.mlp.hidden"], "neurons": [3], "examples": 2, "length": 8},
        lambda model: model.read_many(TEXTS, length=8).statistics("blocks.0.mlp.hidden", examples=2).view([3]),
    ),
    "under a change": (
        "trace",
        {"prompt": TEXT, "raw": True, "change": {HEADS: {"scale": 0, "heads": [1]}}},
        lambda model: model.changed({HEADS: Change(scale=0, heads=[1])}).read(TEXT, raw=True).trace(),
    ),
}  # fmt: skip


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
        ("attention-maps", {"prompt": TEXT, "first": 99}, "there is no layer 99"),
        ("attention-maps", {"prompt": TEXT, "kind": "cross"}, "is no encoder-decoder"),
        ("attention-maps", {"prompt": TEXT, "target": "a"}, "is no encoder-decoder, so it has no target"),
        ("lens", {"prompt": [], "answer_ids": [1]}, "prompt"),
        ("lens", {"prompt": [1], "answer_ids": [10**9]}, "1000000000 is no token id"),
        ("lens", {"prompt": [10**9]}, "token id 1000000000 is outside the vocabulary"),
        ("lens", {}, "prompt"),
        ("lens", {"prompt": TEXT, "answer_ids": [1]}, "answer_ids follow a prompt that is token ids"),
        ("lens", {"prompt": [1], "answer_ids": [1], "target": "a"}, "target and answer_ids are the same text twice"),
        ("inside", {"path": "blocks.1"}, "prompt"),
        ("inside", {"prompt": MESSAGES, "answer_ids": [1]}, "answer_ids follow a prompt that is token ids"),
        ("compare", {"first": TEXT}, "second"),
        (
            "patch",
            {"first": TEXT, "second": "the cat", "raw": True},
            "(POST /glass/tokens shows them), or use POST /glass/patch-pairs, which aligns them",
        ),
        ("patch-path", {"first": TEXT, "second": "the cat", "raw": True}, "as many tokens (POST /glass/tokens shows them)."),
        ("graph", {"prompt": TEXT, "threshold": 0}, "threshold"),
        ("circuit", {"prompt": TEXT, "tokens": [3], "layer": 0, "head": 0}, "tokens has no use beside a prompt"),
        ("circuit", {"tokens": [3] * 300, "layer": 0, "head": 0}, "tokens"),
        ("circuit", {"layer": 99, "head": 0}, "there is no layer 99"),
        ("composition", {"layer": 99}, "there is no layer 99"),
        ("patch-pairs", {"pairs": []}, "pairs"),
        ("patch-path", {"first": TEXT, "second": OTHER, "receivers": []}, "receivers"),
        ("patch-path", {"first": TEXT, "second": OTHER, "sender": "nowhere"}, "nowhere"),
        ("patch-pairs", {"pairs": [{"first": TEXT}]}, "second"),
        ("patch-pairs", {"pairs": [{"first": TEXT, "second": TEXT}]}, "pair 1: the two texts are the same"),
        ("patch-pairs", {"pairs": [{"first": TEXT, "second": OTHER}] * 65}, "pairs has 65 entries; this server allows 64"),
        ("run", {"prompt": TEXT, "candidates": 21}, "candidates is 21; this server allows 20 at most"),
        ("run", {"prompt": TEXT, "assistant_model": "smollm2"}, "takes no 'assistant_model'"),
        ("look", {"prompt": TEXT, "width": 3}, "width"),
        ("trace", {"prompt": TEXT, "change": {"nowhere": {"scale": 0}}}, "nowhere"),
        ("record", {"prompt": []}, "prompt"),
        ("record", {"prompt": [1, 10**8], "stream": True}, "token id 100000000 is outside the vocabulary"),
        ("look", {"prompt": [1, 10**8], "model": "encoder"}, "token id 100000000 is outside the vocabulary"),
        ("record", {"prompt": [1, -1]}, "token id -1 is outside the vocabulary"),
        ("record", {"prompt": [1], "system": "be kind", "stream": True}, "token ids has no place for a system message"),
        ("look", {"prompt": [1], "chat_template_kwargs": {"a": 1}}, "no place for variables of the chat template"),
        ("record", {"prompt": [1], "stream": True, "width": 3}, "takes no 'width'"),
        ("run", {"prompt": TEXT, "stream": True}, "takes no 'stream'"),
        ("task/nothing", {"inputs": ["a"]}, "there is no task 'nothing'"),
        ("task/fill-mask", {"inputs": ["a"]}, "fill-mask needs a model with a masked language modeling head"),
        ("task/text-generation", {"inputs": ["a"], "options": {"depth": 3}}, "depth"),
    ],
)
def test_what_cannot_be_seen_is_refused(client: httpx.Client, view: str, fields: dict[str, Any], message: str) -> None:
    text = refusal(client, view, **fields)
    assert any(part in text for part in message.split("|")), text


# Recordings as a stream ---------------------------------------------------------------------------------------------


def events_of(body: str) -> list[tuple[str, Any]]:
    """The events of a stream: each one's name and data."""
    pairs = (block.split("\n", 1) for block in body.split("\n\n") if block)
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]


def assembled(events: list[tuple[str, Any]]) -> dict[str, Any]:
    """The recording that a stream's events amount to."""
    recording: dict[str, Any] = {}
    pieces = ""
    for name, data in events:
        match name:
            case "start":
                recording = data
                assert (data["steps"], data["text"]) == ([], "")
            case "step":
                recording["steps"].append(data["step"])
                pieces += data["text"]
            case "lens":
                for number, lens in enumerate(data["lens"], data["first"]):
                    recording["steps"][number]["lens"] = lens
            case "end":
                assert data["text"] == pieces
                recording |= {key: data[key] for key in ("text", "tokens_per_second")}
    return recording


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": TEXT, "temperature": 0},
        {"prompt": MESSAGES, "temperature": 0.9, "seed": 5, "chat_template_kwargs": {"enable_thinking": True}},
        {"prompt": [5, 6, 7], "temperature": 0, "change": {HEADS: {"scale": 0, "heads": [1]}}},
    ],
    ids=["text", "messages", "ids, changed"],
)
def test_a_streamed_recording_is_the_whole_one(client: httpx.Client, fields: dict[str, Any]) -> None:
    whole = see(client, "record", max_tokens=4, **fields)
    response = client.post("/glass/record", json={"model": "tiny", "max_tokens": 4, "stream": True, **fields})
    assert response.headers["Content-Type"].startswith("text/event-stream")
    events = events_of(response.text)
    assert [name for name, _ in events] == ["start", *["step"] * len(whole["steps"]), "lens", "end"]
    recording = assembled(events)
    jsonschema.validate(recording, schema(Recording))
    assert recording == {**whole, "tokens_per_second": recording["tokens_per_second"]}
    assert events[-1][1]["finish"] == whole["steps"][-1]["finish"]


def test_a_stream_that_fails_ends_with_the_error(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise InputError("no lens today.")

    monkeypatch.setattr("glassformer.serving.http.recording_stream.record_lenses", failing)
    response = client.post("/glass/record", json={"prompt": TEXT, "max_tokens": 2, "stream": True})
    name, data = events_of(response.text)[-1]
    assert (name, data["error"]["message"]) == ("error", "no lens today.")


def test_a_client_that_leaves_ends_the_recording(client: httpx.Client, address: str) -> None:
    fields = {"prompt": TEXT, "max_tokens": 4000, "eos_token_id": [], "stream": True}
    with client.stream("POST", "/glass/record", json=fields) as response:
        next(response.iter_lines())
    idle = 'glass_texts_running{model="tiny"} 0'
    wait_until(lambda: idle in client.get("/metrics").text)


def test_every_view_takes_token_ids(client: httpx.Client, model: Any) -> None:
    _, ids = model.encode(TEXT, raw=True)
    assert see(client, "tree", prompt=ids, width=2, depth=1) == model.tree(TEXT, raw=True, width=2, depth=1).to_dict()
    assert see(client, "lens", prompt=ids, positions=[1]) == see(client, "lens", prompt=TEXT, raw=True, positions=[1])
    assert see(client, "look", prompt=ids)["prompt"] == TEXT


def test_why_two_texts_are_similar(client: httpx.Client, tiny_encoder: Path) -> None:
    found = see(client, "explain", model="encoder", prompt=TEXT, pair=OTHER, evidence=True)
    mine = glassformer.load(tiny_encoder).explain(TEXT, pair=OTHER, evidence=True).to_dict()
    assert {**found, "model": ""} == {**json.loads(json.dumps(mine)), "model": ""}
    jsonschema.validate(found, schema(Explanation))
    assert "Leave out" in refusal(client, "explain", model="encoder", prompt=TEXT, pair=OTHER, token="cat")
