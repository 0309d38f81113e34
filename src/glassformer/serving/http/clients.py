"""Who asks: the client that schedulers are fair to, and whose prompts a prefix cache may use again.

A client is known by its key, where the server has several; otherwise by its address. Behind a proxy that the operator
trusts it is the one that the proxy names; what anybody else writes into these headers is not believed. All of this machine
is one client to the prefix cache; for turns each of its connections is one, for many programs may run here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from glassformer.ground.errors import SettingError
from glassformer.serving.http.errors import HttpError, to_json

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
CLIENT_KEY = "client_key"  # in a request's scope: a digest of its key, where the server has several
SALT_FIELDS = ("user", "cache_salt", "prompt_cache_key", "safety_identifier")  # by which a client tells its own users apart
IPV6_SITE = 64  # bits of an address that one customer's machines have in common
LOOPBACK = "this machine"


def network(text: str) -> Network:
    """The addresses of a trusted proxy.

    >>> network("10.0.0.7"), network("10.0.0.0/8")
    (IPv4Network('10.0.0.7/32'), IPv4Network('10.0.0.0/8'))
    """
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise SettingError(
            f"--trusted-proxy {text!r} is no address: {error}. Pass one, such as 10.0.0.7 or 10.0.0.0/8."
        ) from None


def parsed_address(text: str) -> Address | None:
    """An address, perhaps with a port; one of IPv4 that was mapped into IPv6 as what it is.

    >>> parsed_address("10.0.0.7:8000"), parsed_address('[::1]:80'), parsed_address("::ffff:10.0.0.7"), parsed_address("_a")
    (IPv4Address('10.0.0.7'), IPv6Address('::1'), IPv4Address('10.0.0.7'), None)
    """
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def peer_name(host: str) -> str:
    """Whom an address belongs to, as far as one can tell: all of this machine is one, and so is a site of IPv6.

    >>> peer_name("127.0.0.1"), peer_name("10.0.0.7"), peer_name("2001:db8::1:2:3:4")
    ('this machine', '10.0.0.7', '2001:db8::/64')
    """
    address = parsed_address(host)
    if address is None:
        return host
    if address.is_loopback:
        return LOOPBACK
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, IPV6_SITE), strict=False))


def is_trusted(host: str, proxies: Sequence[Network]) -> bool:
    address = parsed_address(host)
    return address is not None and any(address in addresses for addresses in proxies)


def real_client(scope: Scope, proxies: Sequence[Network]) -> tuple[str, int] | None:
    """Whose request it is: who sent it, or whom a trusted proxy names as the one that it has it from."""
    host, port = scope.get("client") or ("", 0)
    if not is_trusted(host, proxies):
        return scope.get("client")
    headers = Headers(scope=scope)
    chains = [chain for chain in ([*_forwarded(headers)], [*_forwarded_for(headers)]) if chain]
    named = {_last_untrusted(chain, proxies) for chain in chains}
    if None in named or len(named) > 1:
        raise HttpError(
            400, "the proxy does not name one address as the client's. It must set X-Forwarded-For, or Forwarded.",
            code="bad_proxy_headers",
        )  # fmt: skip
    return (str(named.pop()), 0) if named else (host, port)


def _forwarded_for(headers: Headers) -> Iterator[str]:
    for value in headers.getlist("x-forwarded-for"):
        yield from (host.strip() for host in value.split(","))


def _forwarded(headers: Headers) -> Iterator[str]:
    """The addresses of RFC 7239's header."""
    for value in headers.getlist("forwarded"):
        for element in value.split(","):
            pairs = dict(pair.strip().partition("=")[::2] for pair in element.split(";"))
            named = {name.lower(): host for name, host in pairs.items()}
            yield named.get("for", "").strip('"')


def _last_untrusted(chain: Sequence[str], proxies: Sequence[Network]) -> Address | None:
    """Each proxy adds whom it has the request from: the last that is none of ours is the client. None: no address."""
    last = next((host for host in reversed(chain) if not is_trusted(host, proxies)), chain[0])
    return parsed_address(last)


def key_digest(key: str) -> str:
    return blake2b(key.encode(), digest_size=16).hexdigest()


def client_of(request: Request) -> str:
    """Whom a scheduler is to be fair to."""
    host, port = request.scope.get("client") or ("", 0)
    name = owner_of(request.scope)
    return f"{host}:{port}" if name == LOOPBACK else name


def cache_salt(scope: Scope, body: Any) -> str:
    """Whose prompts a request may find in a prefix cache: its client's, and of these its user's where the body names one."""
    fields = body if isinstance(body, Mapping) else {}
    users = [fields.get(name) for name in SALT_FIELDS]
    if isinstance(metadata := fields.get("metadata"), Mapping):
        users.append(metadata.get("user_id"))  # as Anthropic's clients send it
    named = [user if isinstance(user, str) else None for user in users]
    return blake2b(to_json([owner_of(scope), *named]), digest_size=16).hexdigest()


async def request_salt(request: Request) -> str:
    """`cache_salt` of a request whose body has been read."""
    try:
        body = await request.json()
    except ValueError:
        body = None
    return cache_salt(request.scope, body)


def owner_of(scope: Scope) -> str:
    """The client: by its key, or by its address. What it leaves with a server is for it alone."""
    host, _ = scope.get("client") or ("", 0)
    return f"key {key}" if (key := scope.get(CLIENT_KEY)) else peer_name(host)
