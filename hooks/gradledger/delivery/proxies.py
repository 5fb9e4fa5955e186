"""Selects the proxy for requests to the service: the configured one, or the environment's.

``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` have their usual meaning; on macOS
and Windows, the system settings apply, too. Requests to this machine use no proxy, unless one is
configured for gradledger (``GRADLEDGER_PROXY``).
"""

from __future__ import annotations

import base64
import ipaddress
import os
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

DIRECT = "off"


class ProxyError(OSError):
    """An unusable proxy address; the message names a fix."""


class Proxy(NamedTuple):
    """An HTTP proxy; the connection to it uses TLS if ``https``."""

    https: bool
    host: str
    port: int | None
    authorization: str | None = None

    def __str__(self) -> str:
        return self.host if self.port is None else f"{self.host}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request for the proxy."""
        return {} if self.authorization is None else {"Proxy-Authorization": self.authorization}


def proxy_for(url: str, configured: str | None = None) -> Proxy | None:
    """The proxy for requests to ``url``, or None. Raises ProxyError for an unsupported proxy.

    ``configured`` is the address of a proxy, ``off`` for none, or None for the environment's.
    """
    if configured == DIRECT:
        return None
    if configured:
        return parse_proxy(configured)
    address = _from_environment(url)
    return None if address is None else parse_proxy(address)


def parse_proxy(address: str) -> Proxy:
    """The proxy with this address; raises ProxyError if it is invalid or unsupported."""
    shown = address.rpartition("@")[2]  # without a password
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ProxyError(f"the proxy {shown!r} is not a valid address ({error})") from error
    if parts.scheme not in ("http", "https") or not host:
        fix = "set GRADLEDGER_PROXY to an http proxy, or to off to connect directly"
        raise ProxyError(f"the proxy {shown!r} is of an unsupported type: {fix}")
    return Proxy(parts.scheme == "https", host, port, _basic(parts.username, parts.password))


def _basic(user: str | None, password: str | None) -> str | None:
    if user is None:
        return None
    pair = f"{unquote(user)}:{unquote(password or '')}".encode()
    return f"Basic {base64.b64encode(pair).decode()}"


def _from_environment(url: str) -> str | None:
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 (slow to import)

    parts = urlsplit(url)
    host = parts.hostname or ""
    if _is_this_machine(host):
        return None
    proxies = getproxies()
    address = proxies.get(parts.scheme) or proxies.get("all")
    if not address:
        return None
    authority = host if parts.port is None or ":" in host else f"{host}:{parts.port}"
    return None if proxy_bypass(authority) or _in_excluded_network(host) else address


def _is_this_machine(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def _in_excluded_network(host: str) -> bool:
    """``NO_PROXY=10.0.0.0/8``, which the standard library does not support."""
    address = _address(host)
    excluded = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    return address is not None and any(
        address in network for network in map(_network, excluded.split(",")) if network is not None
    )


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(entry.strip(), strict=False) if "/" in entry else None
    except ValueError:
        return None
