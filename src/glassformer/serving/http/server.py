"""The server: uvicorn with limits on connections, TLS, and a stop that lets texts finish.

uvicorn closes a kept-alive connection that sends nothing, but waits for ever for the rest of a request's headers. Here a
connection that has no request in progress for `limits.header_seconds` is closed, whatever it has sent. And uvicorn stops
by listening no more; here whoever comes while texts are finished is told so, with status 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from glassformer.ground.errors import SettingError
from glassformer.serving.http.clients import Network, is_trusted, peer_name
from glassformer.serving.http.security import Security
from glassformer.serving.limits import Limits

CHECKS = 4  # of a connection, within the time that its headers may take
STOP_SLACK_SECONDS = 5.0  # for the last events to be sent, after texts were ended
STOP_CHECK_SECONDS = 0.1  # between two looks whether it is to stop at once
log = logging.getLogger("glassformer")


def limited_protocol(limits: Limits, proxies: Sequence[Network] = ()) -> type[HttpToolsProtocol]:
    """uvicorn's protocol, with limits on connections, on headers' size, and on how long a connection may have no request.

    `proxies`: whose connections are many clients'.
    """
    peers: Counter[str] = Counter()  # connections of each address

    class LimitedProtocol(HttpToolsProtocol):
        waiting_since = 0.0
        unparsed = 0  # bytes since the last request, which are headers as long as there is none
        refused = False
        timer: asyncio.TimerHandle | None = None
        peer: str | None = None  # whose connection it is, where these are counted

        @property
        def in_progress(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            host, _ = self.client or ("", 0)
            if not is_trusted(host, proxies):
                self.peer = peer_name(host)
                peers[self.peer] += 1
            if len(self.connections) > limits.connections or peers[self.peer or ""] > limits.connections_per_address:
                transport.abort()
                return
            self.waiting_since = self.loop.time()
            self._check_later()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.timer is not None:
                self.timer.cancel()
            if self.peer is not None:
                peers[self.peer] -= 1
                if not peers[self.peer]:
                    del peers[self.peer]
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.refused:
                return
            self.unparsed += 0 if self.in_progress else len(data)
            super().data_received(data)
            if not self.in_progress and self.unparsed > limits.header_bytes:
                self._refuse()

        def on_headers_complete(self) -> None:
            self.unparsed = 0
            if self.in_progress or sum(len(name) + len(value) for name, value in self.headers) > limits.header_bytes:
                self._refuse()  # a request before the last was answered could outlive its client unnoticed
            else:
                super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            if not self.refused:
                super().on_body(body)

        def on_message_complete(self) -> None:
            if not self.refused:
                super().on_message_complete()

        def on_response_complete(self) -> None:
            self.waiting_since = self.loop.time()
            super().on_response_complete()

        def _refuse(self) -> None:
            self.refused = True
            if self.in_progress:
                self.transport.abort()
            elif not self.transport.is_closing():
                self.send_400_response("The headers are too large.")

        def _check_later(self) -> None:
            self.timer = self.loop.call_later(limits.header_seconds / CHECKS, self._check)

        def _check(self) -> None:
            if not self.in_progress and self.loop.time() - self.waiting_since >= limits.header_seconds:
                self.transport.abort()
            elif not self.transport.is_closing():
                self._check_later()

    return LimitedProtocol


class Models(Protocol):
    """What answers."""

    def close(self, seconds: float = 0) -> None:
        """Let running texts go on for so long, and end the others."""


class ServerContext(Protocol):
    """What a server needs to know of its app, as `app.state.context`."""

    @property
    def registry(self) -> Models: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def security(self) -> Security: ...


class GlassServer(uvicorn.Server):
    """An app on a socket of its own. `run` it; `stop` it from any thread, or by Ctrl-C or SIGTERM."""

    def __init__(
        self,
        app: Starlette,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
    ) -> None:
        self.context: ServerContext = app.state.context
        limits = self.context.limits
        if (tls_cert is None) != (tls_key is None):
            raise SettingError("TLS needs a certificate and its key. Pass --tls-cert and --tls-key.")
        protocol = limited_protocol(limits, self.context.security.proxies)
        config = uvicorn.Config(
            app, host=host, port=port, http=protocol, ws="none", log_config=None, access_log=False,
            proxy_headers=False, server_header=False,
            timeout_keep_alive=int(limits.header_seconds) or 1, ssl_certfile=tls_cert, ssl_keyfile=tls_key,
            timeout_graceful_shutdown=int(limits.stop_seconds + STOP_SLACK_SECONDS) + 1,
        )  # fmt: skip
        super().__init__(config)
        if tls_cert is not None:
            try:
                config.load()
            except (OSError, ValueError) as error:
                raise SettingError(f"TLS cannot be set up with {tls_cert} and {tls_key}: {error}.") from error
        self.socket = bound_socket(host, port)
        self.ready = threading.Event()  # set when requests are answered

    @property
    def address(self) -> str:
        """Where clients reach it, such as http://127.0.0.1:8000."""
        host, port = self.socket.getsockname()[:2]
        scheme = "http" if self.config.ssl_certfile is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until it is stopped. When that has to be at once, nothing is said of the requests that are cut off."""
        uvicorn_log = logging.getLogger("uvicorn.error")
        uvicorn_log.addFilter(self._is_news)
        try:
            super().run(sockets or [self.socket])
        finally:
            uvicorn_log.removeFilter(self._is_news)

    def _is_news(self, record: logging.LogRecord) -> bool:
        return not self.force_exit

    def stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's own, which however gives a TLS handshake a minute."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            self.should_exit = True
            return
        config, tls = self.config, self.config.ssl
        seconds = None if tls is None else self.context.limits.header_seconds
        protocol_class: Any = config.http_protocol_class
        protocol = partial(protocol_class, config=config, server_state=self.server_state, app_state=self.lifespan.state)
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(protocol, sock=sock, ssl=tls, backlog=config.backlog, ssl_handshake_timeout=seconds)
            for sock in sockets or [self.socket]
        ]
        self.started = True
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let texts go on for a while, then end them with an error that clients understand. Others get 503 meanwhile."""
        closing = asyncio.create_task(asyncio.to_thread(self.context.registry.close, self.context.limits.stop_seconds))
        while not closing.done() and not self.force_exit:
            await asyncio.wait((closing,), timeout=STOP_CHECK_SECONDS)
        await super().shutdown(sockets)
        if not self.force_exit:
            await closing

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at Ctrl-C and SIGTERM; unlike uvicorn's own, without raising the signal again when all is over."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM)
        handlers = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal stops gracefully, the second at once."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening address, or one sentence why it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        if hasattr(socket, "SO_REUSEADDR") and not hasattr(socket, "SO_EXCLUSIVEADDRUSE"):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        raise SettingError(f"the server cannot listen on {host}:{port}: {error}. Pass another --port or --host.") from error
    return listener
