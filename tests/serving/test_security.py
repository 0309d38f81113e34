"""Host, Origin, key and sizes: what is refused, and in which words."""

from __future__ import annotations

import pytest
from fastapi import FastAPI

from glassformer.ground.errors import SettingError
from glassformer.serving.http.app import create_app
from glassformer.serving.http.errors import HttpError
from glassformer.serving.http.security import Security
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.serving.conftest import KEY, ask


@pytest.fixture
def app(sources: tuple[ModelSource, ...]) -> FastAPI:
    return create_app(Registry(sources), Limits(body_bytes=1000))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "glass.example", "::"])
def test_an_address_that_others_can_reach_needs_a_key(host: str) -> None:
    with pytest.raises(SettingError, match="--api-key"):
        Security(host=host)
    with pytest.raises(SettingError, match="5 characters"):
        Security(host=host, api_key="short")
    assert Security(host=host, api_key=KEY).api_key == KEY


def test_keys_and_origins_that_cannot_be_are_refused() -> None:
    with pytest.raises(SettingError, match="characters"):
        Security(api_key="schlüssel")
    with pytest.raises(SettingError, match="'app.example' is no origin"):
        Security(allowed_origins=("app.example",))


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000", "10.0.0.3:8000"])
def test_loopback_names_and_addresses_are_hosts(host: str) -> None:
    Security().check_host(host)


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1@evil.example", "localhost:x", "", None, "a b"]
)
def test_other_names_are_no_hosts(host: str | None) -> None:
    with pytest.raises(HttpError, match="--allow-host"):
        Security().check_host(host)


def test_a_page_of_the_server_itself_is_no_stranger() -> None:
    security = Security(host="0.0.0.0", api_key=KEY)
    security.check_origin("http://192.168.1.7:8000", "192.168.1.7:8000")
    with pytest.raises(HttpError, match="'http://192.168.1.66'"):
        security.check_origin("http://192.168.1.66", "192.168.1.7:8000")
    Security(allowed_origins=("*",)).check_origin("https://anything.example", "localhost")


@pytest.mark.parametrize(
    "origin",
    [r"http://evil.com\@localhost", "http://evil.com@localhost", "http://localhost@evil.com", "http://localhost/", "null",
     "http://localhost:x", "http://localhost:8000:80", "http://localhost#a", "http://localhost?a", "ftp://localhost",
     "localhost", "http://localhost\n", "http://[::1", " http://localhost", "http://localhost,http://localhost",
     "http://loc\talhost", ""],
)  # fmt: skip
def test_an_origin_is_a_scheme_and_a_host_alone(origin: str) -> None:
    with pytest.raises(HttpError, match="pages of"):
        Security().check_origin(origin, "localhost")
    with pytest.raises(SettingError, match="is no origin"):
        Security(allowed_origins=(origin,))


@pytest.mark.parametrize("origin", ["http://localhost", "https://LOCALHOST:3000", "http://[::1]:8000", "http://127.0.0.1"])
def test_pages_of_this_machine_may_use_it(origin: str) -> None:
    Security().check_origin(origin, "localhost:8000")


def test_a_body_that_is_too_large_is_refused_before_it_is_read(app: FastAPI) -> None:
    response = ask(app, "POST", "/tokenize", json={"content": "x" * 2000})
    assert response.status_code == 413
    assert response.json()["error"]["message"] == "the body is larger than 1000 bytes, which is the most that is read."

    async def endless():  # type: ignore[no-untyped-def]
        for _ in range(100):
            yield b"x" * 100

    assert ask(app, "POST", "/tokenize", content=endless()).status_code == 413


@pytest.mark.parametrize(
    ("path", "message"),
    [("/v2/models", "there is no such path"), ("/v1/models/tony", "there is no model 'tony' here. Did you mean 'tiny'?"),
     ("/v1/models/../etc/passwd", "there is no"), ("/docs", "there is no such path")],
)  # fmt: skip
def test_what_is_not_there_is_404(app: FastAPI, path: str, message: str) -> None:
    response = ask(app, "GET", path)
    assert response.status_code == 404
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the body is not JSON: "),
        (b"\xff\xfe", "the body"),
        (b"[" * 900, "the body"),
        (b'{"tokens": "x"}', "tokens: Input should be a valid list"),
        (b'{"tokens": [-1]}', "-1"),
        (b'{"tokens": [99999999999999999999999]}', "99999999999999999999999"),
    ],
)
def test_bad_bodies_are_400_in_one_sentence(app: FastAPI, body: bytes, message: str) -> None:
    response = ask(app, "POST", "/detokenize", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_a_preflight_needs_no_key_and_names_what_may_be_sent(sources: tuple[ModelSource, ...]) -> None:
    app = create_app(Registry(sources), security=Security(api_key=KEY))
    asked = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "authorization,content-type"}  # fmt: skip
    response = ask(app, "OPTIONS", "/v1/chat/completions", headers=asked)
    assert response.status_code == 200
    assert response.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
    assert response.headers["Access-Control-Allow-Origin"] == "http://localhost:3000"
    refused = ask(app, "OPTIONS", "/v1/chat/completions", headers={**asked, "Origin": "https://evil.example"})
    assert refused.status_code == 403
