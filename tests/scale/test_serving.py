"""A server whose replicas are on a cluster: the same API, key and limits; whoever began a conversation goes on with it."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from glassformer.ground.errors import SettingError
from glassformer.scale import prefixes
from glassformer.serving.http.security import Security
from glassformer.serving.limits import Limits
from tests.jobs.models import chat_folder, chat_model
from tests.patience import patience, wait_until
from tests.scale.loading import slow_sources
from tests.serving.conftest import KEY, serving

PASS_SECONDS = 0.1
LIMITS = Limits(seconds=60, stop_seconds=1, body_bytes=10_000)
SETTINGS = "two replicas of tiny"
HEADERS = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def pids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file for each process that has been a replica."""
    return tmp_path_factory.mktemp("pids")


@pytest.fixture(scope="module")
def replicas(cluster: str, pids: Path) -> Iterator[Any]:
    import ray
    from ray import serve

    from glassformer.scale.cluster import allot, machines
    from glassformer.scale.front import deployed

    sources = partial(slow_sources, chat_folder(), pids, PASS_SECONDS)
    with deployed(ray, sources, LIMITS, allot(machines(ray), 2), SETTINGS) as replicas:
        yield replicas
    serve.shutdown()


@pytest.fixture(scope="module")
def client(replicas: Any) -> Iterator[httpx.Client]:
    from glassformer.scale.front import create_front

    with (
        serving(create_front(replicas, LIMITS, Security(api_key=KEY))) as address,
        httpx.Client(base_url=address, timeout=patience(60), headers=HEADERS) as client,
    ):
        yield client


def chat(client: httpx.Client, *contents: str, **settings: Any) -> dict[str, Any]:
    """An answer to a conversation whose roles alternate."""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": content} for number, content in enumerate(contents)]
    body = {"model": "tiny", "messages": messages, "max_tokens": 6, "temperature": 0, **settings}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def metric(client: httpx.Client, name: str) -> float:
    """The sum of a metric's samples."""
    text = client.get("/metrics").text
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def test_answers_are_those_of_one_server(client: httpx.Client) -> None:
    expected = chat_model().chat("hi", max_new_tokens=6)
    assert chat(client, "hi")["choices"][0]["message"]["content"] == expected
    messages = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "temperature": 0}
    assert client.post("/v1/messages", json=messages).json()["content"][0]["text"] == expected
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["tiny", "gpt-4o"]
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/v1/nothing").status_code == 404
    refused = client.post("/v1/chat/completions", json={**messages, "model": "nobody"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


def test_a_stream_comes_piece_by_piece(client: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 6, "temperature": 0, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert events[-1] == "[DONE]"
    text = "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
    assert text == chat_model().chat("hi", raw=True, max_new_tokens=6)
    assert len(events) > 2


def test_key_host_and_size_are_checked_before_a_replica_is_asked(client: httpx.Client) -> None:
    before = metric(client, "glass_requests_total")
    assert client.get("/v1/models", headers={"Authorization": "Bearer another"}).status_code == 401
    assert client.get("/v1/models", headers={"Host": "evil.example"}).json()["error"]["code"] == "host_not_allowed"
    assert client.get("/v1/models", headers={"Origin": "https://evil.example"}).status_code == 403
    assert client.post("/v1/chat/completions", content=b" " * 20_000).status_code == 413
    assert metric(client, "glass_requests_total") == before


def test_a_conversation_goes_on_where_it_began(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "BLOCK", 32)
    beginnings = [f"{number} bottles of milk stand on the wall of the house" for number in range(8)]
    for beginning in beginnings:
        chat(client, beginning)
    for beginning in beginnings:
        usage = chat(client, beginning, "so they do", "and more?")["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= len(beginning), beginning
    running = [replica for replica in metric_by_replica(client) if replica]
    assert len(running) == 2  # both have had conversations


def metric_by_replica(client: httpx.Client) -> list[float]:
    """Tokens that each replica has generated."""
    import ray.serve

    texts = ray.serve.get_app_handle("glass-serve").broadcast("metrics").results()
    return [
        sum(float(value) for value in re.findall(r"^glass_generated_tokens_total{.*} (\S+)$", text, re.M)) for text in texts
    ]


def test_a_client_that_leaves_takes_its_text_along(client: httpx.Client) -> None:
    before = metric(client, "glass_generated_tokens_total")
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 200, "temperature": 0, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        assert next(response.iter_lines()).startswith("data: ")
    wait_until(lambda: not metric(client, "glass_texts_running"))
    assert metric(client, "glass_generated_tokens_total") - before < 200


def test_numbers_are_the_sums_of_all_replicas(client: httpx.Client) -> None:
    before = metric(client, "glass_generated_tokens_total")
    for number in range(4):
        chat(client, f"hi {number}")
    assert metric(client, "glass_generated_tokens_total") - before == 24
    assert metric(client, "glass_model_loaded") == 2
    text = client.get("/metrics").text
    assert text.count("# TYPE glass_requests_total counter") == 1


def test_a_second_front_shares_the_replicas(client: httpx.Client, pids: Path) -> None:
    import ray

    from glassformer.scale.cluster import Allotment
    from glassformer.scale.front import create_front, deployed

    chat(client, "hi")
    before, processes = metric(client, "glass_generated_tokens_total"), len(list(pids.iterdir()))
    with (
        deployed(ray, list, LIMITS, Allotment(2, 1), SETTINGS) as replicas,
        serving(create_front(replicas, LIMITS, Security())) as address,
        httpx.Client(base_url=address, timeout=patience(60)) as other,
    ):
        chat(other, "hi")
    assert metric(client, "glass_generated_tokens_total") == before + 6  # and they outlive that front
    assert len(list(pids.iterdir())) == processes


def test_a_second_front_with_other_settings_is_refused(client: httpx.Client) -> None:
    import ray

    from glassformer.scale.cluster import Allotment
    from glassformer.scale.front import deployed

    with (
        pytest.raises(
            SettingError, match=r"^this cluster has a `glass serve` with other models or options. Stop that first"
        ),
        deployed(ray, list, LIMITS, Allotment(2, 1), "other settings"),
    ):
        pass
    assert chat(client, "hi")


def test_requests_survive_the_loss_of_a_replica(client: httpx.Client, pids: Path) -> None:
    victim = int(max(pids.iterdir(), key=lambda path: path.stat().st_mtime).name)
    os.kill(victim, signal.SIGKILL)
    expected = chat_model().chat("hi", max_new_tokens=6)
    for _ in range(6):
        assert chat(client, "hi")["choices"][0]["message"]["content"] == expected


def test_a_stream_whose_replica_is_killed_ends_with_an_error_event(client: httpx.Client, pids: Path) -> None:
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        for process in pids.iterdir():
            with suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
        last = [line for line in lines if line][-1]
    assert "was lost before its end" in json.loads(last.removeprefix("data: "))["error"]["message"]
