"""The field `glass` of a request: candidates, waterfalls, sites, changes and receipts, for those alone who ask."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest

from glassformer import Change

MESSAGES: Any = [{"role": "user", "content": "how are you?"}]
CHAT: Any = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 6}
DRAWN: Any = {**CHAT, "temperature": 0.9, "top_p": 0.8, "seed": 3}
RESIDUAL = "blocks.0.residual"


def chat(client: httpx.Client, **fields: Any) -> Any:
    response = client.post("/v1/chat/completions", json={**CHAT, **fields})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def events(client: httpx.Client, path: str, **fields: Any) -> list[Any]:
    with client.stream("POST", path, json={**fields, "stream": True}) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def error(client: httpx.Client, glass: Any) -> str:
    response = client.post("/v1/chat/completions", json={**CHAT, "glass": glass})
    assert response.status_code == 400, response.text
    return str(response.json()["error"]["message"])


def test_candidates_are_those_of_the_run_itself(client: httpx.Client, model: Any) -> None:
    choice = chat(client, glass={"candidates": 3})
    run = model.watch(MESSAGES, look=3, max_new_tokens=6, do_sample=False)
    assert choice["message"]["content"] == run.text
    steps = choice["glass"]["steps"]
    assert [step["id"] for step in steps] == list(run.ids)
    for step, expected in zip(steps, run.steps, strict=True):
        assert [candidate["id"] for candidate in step["candidates"]] == expected.candidates.ids.tolist()
        assert [candidate["probability"] for candidate in step["candidates"]] == pytest.approx(
            expected.candidates.probabilities.tolist()
        )
        assert step["logprob"] == pytest.approx(expected.logprob)
        assert "waterfall" not in step


def test_a_waterfall_is_the_view_of_the_run(client: httpx.Client, model: Any) -> None:
    choice = chat(client, **{**DRAWN, "glass": {"waterfall": True}})
    run = model.watch(MESSAGES, max_new_tokens=6, do_sample=True, temperature=0.9, top_p=0.8, seed=3)
    assert [step["waterfall"] for step in choice["glass"]["steps"]] == [run.why(number).to_dict() for number in range(6)]


def test_a_stream_adds_up_to_the_whole(client: httpx.Client) -> None:
    glass = {"candidates": 2, "waterfall": True, "sites": [RESIDUAL], "receipt": True}
    whole = chat(client, **{**DRAWN, "glass": glass})["glass"]
    parts = [event["choices"][0] for event in events(client, "/v1/chat/completions", **DRAWN, glass=glass)]
    seen = [part["glass"] for part in parts if "glass" in part]
    assert [step for part in seen for step in part["steps"]] == whole["steps"]
    assert [part["receipt"]["steps"] for part in seen if "receipt" in part] == [whole["receipt"]["steps"]]


def test_sites_are_read_at_the_position_that_predicted_each_token(client: httpx.Client, model: Any) -> None:
    steps = chat(client, glass={"sites": [RESIDUAL, "blocks.1.attention.pattern"]})["glass"]["steps"]
    run = model.watch(MESSAGES, max_new_tokens=6, do_sample=False, sites=[RESIDUAL])
    for step, expected in zip(steps, run.steps, strict=True):
        residual = step["sites"][RESIDUAL]
        values = np.array(residual["values"], np.float32).reshape(residual["shape"])
        np.testing.assert_array_equal(values, expected.sites[RESIDUAL])
    keys = [step["sites"]["blocks.1.attention.pattern"]["shape"][-1] for step in steps]
    assert keys == list(range(len(run.prompt_ids), len(run.prompt_ids) + 6))


def test_a_change_is_for_its_request_alone(client: httpx.Client, model: Any) -> None:
    before = chat(client)["message"]["content"]
    changed = chat(client, glass={"change": {RESIDUAL: {"scale": 0}}})
    expected = model.changed({RESIDUAL: Change(scale=0)}).watch(MESSAGES, max_new_tokens=6, do_sample=False)
    assert changed["message"]["content"] == expected.text != before
    assert chat(client)["message"]["content"] == before


def test_a_receipt_can_be_replayed(client: httpx.Client, model: Any) -> None:
    glass = {"receipt": True, "change": {"blocks.1.attention.heads": {"scale": 0.5, "heads": [0]}}}
    receipt = chat(client, **{**DRAWN, "glass": glass})["glass"]["receipt"]
    assert receipt["path"] is None  # where the model lies is the server's own business
    replayed = model.replay(receipt)
    assert replayed.identical
    assert replayed.differences == ()


def test_completions_have_the_field_too(client: httpx.Client) -> None:
    fields: Any = {"model": "tiny", "prompt": "Once upon", "max_tokens": 4, "temperature": 0, "glass": {"candidates": 2}}
    response = client.post("/v1/completions", json=fields)
    whole = response.json()["choices"][0]["glass"]["steps"]
    assert [len(step["candidates"]) for step in whole] == [2] * 4
    streamed = [event["choices"][0] for event in events(client, "/v1/completions", **fields)]
    assert [step for part in streamed for step in part.get("glass", {"steps": []})["steps"]] == whole


def test_who_does_not_ask_sees_nothing_of_it(client: httpx.Client) -> None:
    assert "glass" not in chat(client)
    assert all("glass" not in event["choices"][0] for event in events(client, "/v1/chat/completions", **CHAT))


@pytest.mark.parametrize(
    ("glass", "message"),
    [
        ({"candidates": 21}, "glass.candidates is 21; this server allows 20 at most"),
        ({"sites": ["blocks.9.residual"]}, "blocks.9.residual"),
        ({"sites": ["blocks.*"]}, "sites; this server allows 16 at most"),
        ({"change": {"nowhere": {"scale": 0}}}, "nowhere"),
        ({"change": {RESIDUAL: {"shift": [[1], [2, 3]]}}}, "the shift at blocks.0.residual is no array of finite numbers"),
        ({"change": {RESIDUAL: {"shift": [1e300]}}}, "is no array of finite numbers that float32 has"),
        ({"change": {RESIDUAL: {"shift": [10**400]}}}, "is no array of finite numbers that float32 has"),
        ({"change": {RESIDUAL: {"scale": "nan"}}}, "the scale at blocks.0.residual is no array of finite numbers"),
        ({"change": {RESIDUAL: {"shift": ["inf"]}}}, "is no array of finite numbers that float32 has"),
        ({"change": {RESIDUAL: {"maximum": "nan"}}}, "maximum is a finite number that float32 has, not nan"),
        ({"change": {RESIDUAL: {"shift": [1, 2, 3]}}}, "does not fit what it changes"),
        ({"candidate": 3}, "candidate"),
        ({"candidates": -1}, "candidates"),
    ],
    ids=str,
)
def test_what_cannot_be_seen_is_refused(client: httpx.Client, glass: Any, message: str) -> None:
    assert message in error(client, glass)
    assert chat(client)["finish_reason"] == "length"
