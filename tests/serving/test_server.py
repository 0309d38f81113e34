"""The server over real sockets: clients that leave, stay silent or read slowly, TLS, and a stop that lets texts finish."""

from __future__ import annotations

import json
import select
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from glassformer.ground.errors import SettingError
from glassformer.serving.http.answers import ServedAnswer
from glassformer.serving.http.app import create_app
from glassformer.serving.http.security import Security
from glassformer.serving.http.server import GlassServer
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.patience import patience, wait_until
from tests.serving.conftest import serving

LONG = {
    "model": "tiny", "messages": [{"role": "user", "content": "how are you?"}], "temperature": 0, "max_tokens": 4000,
    "ignore_eos": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def app(sources: tuple[ModelSource, ...]) -> FastAPI:
    return create_app(Registry(sources, Limits(stop_seconds=0, connections=40, new_tokens=10**6)))


@pytest.fixture(scope="module")
def address(app: FastAPI) -> Iterator[str]:
    with serving(app) as address:
        httpx.post(f"{address}/v1/chat/completions", json={**LONG, "max_tokens": 1}, timeout=patience(30)).raise_for_status()
        yield address


def connection(address: str) -> socket.socket:
    url = httpx.URL(address)
    return socket.create_connection((url.host, url.port or 80), timeout=patience(20))


def raw_request(body: Any, **more: str) -> bytes:
    data = json.dumps(body).encode()
    known = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": str(len(data)), **more}
    headers = (*(f"{name}: {value}" for name, value in known.items()), "", "")
    return "\r\n".join(("POST /v1/chat/completions HTTP/1.1", *headers)).encode() + data


def running(app: FastAPI) -> int:
    served = app.state.context.registry.served()["tiny"]
    statistics = served.scheduler.statistics()
    return int(statistics.running + statistics.waiting + served.users)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_client_that_leaves_frees_its_row(app: FastAPI, address: str, stream: bool) -> None:
    with connection(address) as client:
        client.sendall(raw_request({**LONG, "stream": stream}))
        if stream:
            received = b""
            while b"data: " not in received:  # headers and events may come apart
                part = client.recv(4096)
                assert part, received
                received += part
        wait_until(lambda: running(app) > 0)
    wait_until(lambda: running(app) == 0)


def test_requests_that_do_not_come_are_given_up(sources: tuple[ModelSource, ...]) -> None:
    """Half-open connections are closed, and whose body is missing is told so."""
    beginnings = [b"", b"G", b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", raw_request(LONG)[:-5]]
    app = create_app(Registry(sources, Limits(header_seconds=1, body_seconds=1, stop_seconds=0)))
    with serving(app) as address, ExitStack() as clients:
        waiting = [(beginning, clients.enter_context(connection(address))) for beginning in beginnings * 5]
        for beginning, client in waiting:
            client.sendall(beginning)
        for beginning, client in waiting:
            assert client.recv(4096)[:12] == (b"HTTP/1.1 408" if beginning == beginnings[-1] else b"")


def test_headers_without_an_end_are_refused(address: str) -> None:
    with connection(address) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 40_000)
        assert client.recv(4096).startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))


def test_headers_that_are_too_large_are_refused(address: str) -> None:
    with connection(address) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 40_000 + b"\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 400")


def test_a_second_request_before_the_answer_ends_the_connection(app: FastAPI, address: str) -> None:
    with connection(address) as client:
        client.sendall(raw_request({**LONG, "stream": True}))
        assert client.recv(4096)
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with suppress(ConnectionError):
            while client.recv(65536):
                pass
    wait_until(lambda: running(app) == 0)


def test_connections_beyond_the_limit_are_closed_at_once(address: str) -> None:
    with ExitStack() as clients:
        waiting = [clients.enter_context(connection(address)) for _ in range(60)]
        wait_until(lambda: len(select.select(waiting, [], [], 0)[0]) >= 15)  # which the server has closed
    wait_until(lambda: httpx.get(f"{address}/health", timeout=patience(5)).status_code == 200)


def test_a_slow_reader_does_not_stall_others(address: str) -> None:
    with connection(address) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.sendall(raw_request({**LONG, "max_tokens": 200, "stream": True}))
        quick = httpx.post(f"{address}/v1/chat/completions", json={**LONG, "max_tokens": 5}, timeout=patience(30))
        assert quick.json()["usage"]["completion_tokens"] == 5


def test_a_request_ends_when_its_time_is_over(sources: tuple[ModelSource, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(Registry(sources, Limits(stop_seconds=0)))
    registry, deliver = app.state.context.registry, app.state.context.deliveries.deliver

    def set_over(answer: ServedAnswer, *_: object) -> None:
        answer.deadline = 0.0

    with serving(app) as address:
        path = f"{address}/v1/chat/completions"
        passes = iter([True])
        receive = ServedAnswer.receive_events
        registry.deliver_to(lambda events: deliver(events) if next(passes, False) else None)  # one pass, and then nothing
        monkeypatch.setattr(ServedAnswer, "receive_events", lambda answer, events: set_over(answer, receive(answer, events)))
        answer = httpx.post(path, json=LONG, timeout=patience(30)).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 1
        wait_until(lambda: running(app) == 0)
        monkeypatch.setattr(ServedAnswer, "__post_init__", set_over)  # as if it waited in the queue all the time
        late = httpx.post(path, json=LONG, timeout=patience(30))
        assert late.status_code == 503
        assert late.headers["Retry-After"] == "5"
        assert late.json()["error"]["message"] == "the answer did not begin within 600 seconds. Try again later."


def test_stopping_lets_a_stream_finish(sources: tuple[ModelSource, ...]) -> None:
    app = create_app(Registry(sources, Limits(stop_seconds=30)))
    text, reason = stopped_stream(app, {**LONG, "max_tokens": 150})
    assert reason == "length"
    assert text


def test_stopping_ends_a_stream_that_takes_too_long_with_an_error_event(sources: tuple[ModelSource, ...]) -> None:
    app = create_app(Registry(sources, Limits(stop_seconds=0, new_tokens=10**6)))
    text, reason = stopped_stream(app, {**LONG, "max_tokens": 10**5})
    assert text
    assert "is being unloaded" in reason


def test_a_second_signal_stops_at_once_and_says_nothing_of_what_it_cuts_off(
    sources: tuple[ModelSource, ...], caplog: pytest.LogCaptureFixture
) -> None:
    server = GlassServer(create_app(Registry(sources, Limits(new_tokens=10**6))), port=0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert server.ready.wait(patience(20))
    with connection(server.address) as client:
        client.sendall(raw_request({**LONG, "max_tokens": 10**5, "stream": True}))
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        server.handle_exit(signal.SIGINT, None)
        server.handle_exit(signal.SIGINT, None)
        thread.join(patience(20))
    assert not thread.is_alive()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def stopped_stream(app: FastAPI, body: Any) -> tuple[str, str]:
    """The text of a stream whose server is stopped after the first piece, and why it ended."""
    server = GlassServer(app, port=0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert server.ready.wait(patience(20))
    text, reason = "", ""
    with httpx.stream(
        "POST", f"{server.address}/v1/chat/completions", json={**body, "stream": True}, timeout=patience(60)
    ) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            server.stop()
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                reason = event["error"]["message"]
                assert event["error"]["type"] == "server_error"
            else:
                text += event["choices"][0]["delta"].get("content", "")
                reason = event["choices"][0]["finish_reason"] or reason
    thread.join(patience(20))
    assert not thread.is_alive()
    assert app.state.context.registry.closed
    return text, reason


def test_health_is_503_while_work_is_finished(sources: tuple[ModelSource, ...]) -> None:
    registry, finish = Registry(sources, Limits(stop_seconds=patience(60))), threading.Event()
    server = GlassServer(create_app(registry), port=0)
    thread, address = threading.Thread(target=server.run, daemon=True), server.address
    thread.start()
    assert server.ready.wait(patience(20))
    with registry.use("tiny") as served:
        work = served.scheduler.call(lambda model: finish.wait(patience(60)))
        server.stop()
        wait_until(lambda: registry.closed)
        health = httpx.get(f"{address}/health", timeout=patience(60))  # on a connection of its own
        assert (health.status_code, health.json()) == (503, {"status": "stopping"})
        assert httpx.post(f"{address}/v1/chat/completions", json=LONG, timeout=patience(60)).status_code == 503
        finish.set()
        assert work.result(patience(60))
    thread.join(patience(60))
    assert not thread.is_alive()


def test_connections_of_an_address_are_limited_but_for_a_trusted_proxy(sources: tuple[ModelSource, ...]) -> None:
    limits = Limits(connections_per_address=3)
    for trusted, most in (((), 3), (("127.0.0.1",), 5)):
        app = create_app(Registry(sources, limits), security=Security(trusted_proxies=trusted))
        with serving(app) as address:
            clients = [connection(address) for _ in range(5)]
            answered = [status_of(client) == b"HTTP/1.1 200" for client in clients]
            assert answered == [number < most for number in range(5)]
            clients[0].close()
            wait_until(lambda address=address: answers(address))  # type: ignore[misc]
            for client in clients:
                client.close()


def status_of(client: socket.socket) -> bytes:
    """What the answer begins with; nothing where the connection is closed."""
    with suppress(ConnectionError):
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return client.recv(12)
    return b""


def answers(address: str) -> bool:
    with connection(address) as client:
        return status_of(client) == b"HTTP/1.1 200"


def test_a_port_in_use_and_half_a_certificate_are_refused(app: FastAPI, address: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="the server cannot listen on 127.0.0.1:.* Pass another --port or --host."):
        GlassServer(app, port=httpx.URL(address).port or 0)
    with pytest.raises(SettingError, match="Pass --tls-cert and --tls-key."):
        GlassServer(app, port=0, tls_cert=tmp_path / "cert.pem")


def test_tls_by_file(sources: tuple[ModelSource, ...], tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with serving(create_app(Registry(sources)), tls_cert=cert, tls_key=key) as address:
        assert address.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(cert))
        assert httpx.get(f"{address}/health", verify=context, timeout=patience(5)).json() == {"status": "ok"}


def test_a_tls_handshake_that_does_not_come_is_given_up(sources: tuple[ModelSource, ...], tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with serving(create_app(Registry(sources, Limits(header_seconds=1))), tls_cert=cert, tls_key=key) as address:
        clients = [connection(address) for _ in range(3)]
        clients[1].sendall(b"\x16\x03\x01")  # the first bytes of a handshake
        for client in clients:
            assert client.recv(100) == b""
            client.close()


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1, signed by itself, and its key."""
    from datetime import UTC, datetime, timedelta
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    cert_path, key_path = folder / "cert.pem", folder / "key.pem"
    cert_path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return cert_path, key_path
