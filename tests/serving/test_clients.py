"""Who a client is: by its key, its address, or what a trusted proxy says; nobody else is believed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request

from glassformer.ground.errors import SettingError
from glassformer.serving.http.app import create_app
from glassformer.serving.http.clients import CLIENT_KEY, cache_salt, client_of, network, real_client
from glassformer.serving.http.errors import HttpError
from glassformer.serving.http.security import Security
from glassformer.serving.registry import ModelSource, Registry
from tests.serving.conftest import ask

PROXIES = [network("10.0.0.0/8"), network("::1")]
TWO_KEYS = "a-key-for-the-tests-alone,another-key-for-the-tests"


def scope(client: tuple[str, int] | None, *headers: tuple[str, str], **more: Any) -> dict[str, Any]:
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers]
    return {"type": "http", "client": client, "headers": pairs, **more}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("X-Forwarded-For", "192.0.2.1")], "192.0.2.1"),
        ([("X-Forwarded-For", "8.8.8.8, 192.0.2.1, 10.0.0.2")], "192.0.2.1"),  # the first is what the client wrote itself
        ([("X-Forwarded-For", "8.8.8.8"), ("X-Forwarded-For", "192.0.2.1:4711")], "192.0.2.1"),
        ([("X-Forwarded-For", "2001:db8::1")], "2001:db8::1"),
        ([("Forwarded", 'for=8.8.8.8, For="[2001:db8::1]:4711";proto=https, for=10.0.0.2')], "2001:db8::1"),
        ([("Forwarded", "for=192.0.2.1"), ("X-Forwarded-For", "192.0.2.1")], "192.0.2.1"),
        ([("X-Forwarded-For", "10.0.0.9")], "10.0.0.9"),
        ([], "10.0.0.7"),
    ],
)
def test_behind_a_trusted_proxy_the_client_is_who_the_proxy_says(headers: list[tuple[str, str]], expected: str) -> None:
    found = real_client(scope(("10.0.0.7", 5000), *headers), PROXIES)
    assert found is not None
    assert found[0] == expected


@pytest.mark.parametrize("client", [("192.0.2.9", 5000), ("127.0.0.1", 5000), None])
def test_nobody_else_says_who_the_client_is(client: tuple[str, int] | None) -> None:
    assert real_client(scope(client, ("X-Forwarded-For", "192.0.2.1"), ("Forwarded", "for=192.0.2.1")), PROXIES) == client


@pytest.mark.parametrize(
    "headers",
    [[("X-Forwarded-For", "unknown")], [("Forwarded", "proto=https")],
     [("X-Forwarded-For", "192.0.2.1"), ("Forwarded", "for=192.0.2.2")]],
)  # fmt: skip
def test_a_proxy_that_names_no_single_address_is_told_so(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(HttpError, match="X-Forwarded-For"):
        real_client(scope(("10.0.0.7", 5000), *headers), PROXIES)


@pytest.mark.parametrize("address", ["proxy.example", "10.0.0.1/8", ""])
def test_a_trusted_proxy_is_an_address(address: str) -> None:
    with pytest.raises(SettingError, match="10.0.0.0/8"):
        Security(trusted_proxies=(address,))


def salt(host: str, body: Any = None, **more: Any) -> str:
    return cache_salt(scope((host, 1), **more), body)


def test_prompts_are_shared_by_the_requests_of_one_client_alone() -> None:
    assert salt("127.0.0.1") == salt("127.0.0.2") == salt("::1") == salt("::ffff:127.0.0.1")
    assert salt("192.0.2.1") == salt("192.0.2.1", {"user": None}) == salt("192.0.2.1", {"temperature": 1})
    assert salt("2001:db8::1") == salt("2001:db8::2")  # a site's machines change their addresses
    others = [
        salt("127.0.0.1"), salt("192.0.2.1"), salt("192.0.2.2"), salt("2001:db8::1"), salt("2001:db8:0:1::1"),
        salt("192.0.2.1", **{CLIENT_KEY: "a"}), salt("192.0.2.1", **{CLIENT_KEY: "b"}),
    ]  # fmt: skip
    assert len({*others}) == len(others)
    assert salt("192.0.2.1", **{CLIENT_KEY: "a"}) == salt("192.0.2.2", **{CLIENT_KEY: "a"})


def test_a_client_can_keep_its_own_users_apart() -> None:
    bodies = [
        {}, {"user": "a"}, {"user": "b"}, {"cache_salt": "a"}, {"prompt_cache_key": "a"}, {"safety_identifier": "a"},
        {"metadata": {"user_id": "a"}}, {"user": "a", "cache_salt": "a"}, {"user": "\ud800"},
    ]  # fmt: skip
    assert len({salt("192.0.2.1", body) for body in bodies}) == len(bodies)
    assert salt("192.0.2.1", {"user": "a"}) != salt("192.0.2.2", {"user": "a"})
    assert salt("192.0.2.1", ["a"]) == salt("192.0.2.1", {"user": 7}) == salt("192.0.2.1", {"metadata": "a"})


def test_turns_are_between_keys_machines_and_this_machines_connections() -> None:
    def client(host: str, port: int, **more: Any) -> str:
        return client_of(Request(scope((host, port), **more)))

    assert client("192.0.2.1", 1) == client("192.0.2.1", 2) != client("192.0.2.2", 1)
    assert client("127.0.0.1", 1) != client("127.0.0.1", 2)
    assert client("127.0.0.1", 1, **{CLIENT_KEY: "a"}) == client("192.0.2.1", 2, **{CLIENT_KEY: "a"})


@pytest.fixture
def app(sources: tuple[ModelSource, ...]) -> FastAPI:
    return create_app(Registry(sources), security=Security(api_key=TWO_KEYS, trusted_proxies=("127.0.0.1",)))


def cached_tokens(app: FastAPI, *requests: tuple[dict[str, str], dict[str, Any]]) -> list[int]:
    """How much of one prompt was cached, for requests with these headers and fields, one after the other."""
    import asyncio

    async def run() -> list[int]:
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client,
        ):
            counts = []
            for headers, fields in requests:
                body = {"model": "tiny", "prompt": "one two three four five six " * 8, "max_tokens": 1, **fields}
                answer = await client.post("/v1/completions", json=body, headers=headers)
                assert answer.status_code == 200, answer.text
                counts.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
            return counts

    return asyncio.run(run())


def test_nobody_learns_what_another_client_has_asked(sources: tuple[ModelSource, ...], app: FastAPI) -> None:
    first, second = ({"Authorization": f"Bearer {key}"} for key in TWO_KEYS.split(","))
    counts = cached_tokens(
        app, (first, {}), (first, {}), (second, {}), (second, {}), (first, {"cache_salt": "x"}), (first, {"user": "x"}),
    )  # fmt: skip
    assert [count > 0 for count in counts] == [False, True, False, True, False, False]
    by_address = create_app(Registry(sources), security=Security(trusted_proxies=("127.0.0.1",)))
    addresses: list[dict[str, str]] = [{"X-Forwarded-For": f"192.0.2.{number}"} for number in (1, 1, 2)]
    assert [count > 0 for count in cached_tokens(by_address, *((headers, {}) for headers in addresses))] == [
        False, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize("key", [*TWO_KEYS.split(",")])
def test_each_of_several_keys_opens(app: FastAPI, key: str) -> None:
    assert ask(app, "GET", "/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
    assert ask(app, "GET", "/v1/models", headers={"Authorization": f"Bearer {TWO_KEYS}"}).status_code == 401
    assert ask(app, "GET", "/v1/models", headers={"Authorization": "Bearer "}).status_code == 401


def test_what_a_proxy_says_wrongly_is_400(app: FastAPI) -> None:
    answer = ask(app, "GET", "/health", headers={"X-Forwarded-For": "unknown"})
    assert answer.status_code == 400
    assert "the proxy does not name one address" in answer.json()["error"]["message"]
