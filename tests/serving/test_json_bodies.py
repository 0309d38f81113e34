"""A body is JSON whatever it is called; pages of other sites stay out."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

BODY = json.dumps({"content": "hi"})
FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize("kind", [None, FORM, "text/plain;charset=UTF-8", "application/json", "application/x-unknown+json"])
def test_a_body_is_read_as_json_whatever_it_is_called(client: httpx.Client, kind: str | None) -> None:
    request = client.build_request("POST", "/tokenize", content=BODY)
    request.headers.update({} if kind is None else {"Content-Type": kind})
    assert client.send(request).json()["tokens"]


def test_what_is_no_json_is_refused_with_a_sentence(client: httpx.Client) -> None:
    response = client.post("/tokenize", content="content=hi", headers={"Content-Type": FORM})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("the body is not JSON")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("kind", [FORM, "text/plain", "multipart/form-data; boundary=x", None])
def test_a_form_of_another_site_is_refused(client: httpx.Client, headers: dict[str, str], kind: str | None) -> None:
    sent: dict[str, Any] = {**headers, **({} if kind is None else {"Content-Type": kind})}
    response = client.post("/api/generate", content='{"model": "tiny", "prompt": "hi"}', headers=sent)
    assert response.status_code == 403
    assert "may not use this server" in response.json()["error"]


def test_a_page_of_our_own_and_a_program_are_let_through(client: httpx.Client) -> None:
    for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": "http://localhost:3000"}):
        assert client.post("/tokenize", content=BODY, headers={**headers, "Content-Type": FORM}).status_code == 200


def test_the_root_answers_who_asks_whether_the_server_runs(client: httpx.Client) -> None:
    assert client.head("/").status_code == 200


def test_the_older_form_embeds_one_text(client: httpx.Client) -> None:
    one = client.post(
        "/api/embeddings", content='{"model": "encoder", "prompt": "hi"}', headers={"Content-Type": FORM}
    ).json()
    assert one["embedding"] == client.post("/api/embed", json={"model": "encoder", "input": "hi"}).json()["embeddings"][0]
    assert client.post("/api/embeddings", json={"model": "encoder"}).json() == {"embedding": []}
