"""Host names: which are loopback, and which are safe from DNS rebinding."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection
from functools import cache

_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9._-]{0,253})")  # no character with a meaning in a URL


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    if host.lower() == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def host_from_header(header: str) -> str:
    """The host in a ``Host`` header, without its port; empty if the header is malformed."""
    value = header.strip().lower()
    if value.startswith("["):
        inside, closed, rest = value[1:].partition("]")
        return inside if closed and _is_port(rest) and _address(inside) else ""
    host, colon, port = value.partition(":")
    well_formed = _is_port(colon + port) and _HOST.fullmatch(host)
    return host.rstrip(".") if well_formed else ""


def is_own_host(host: str, allowed: Collection[str]) -> bool:
    """Whether a browser that sends this host name can only mean this service.

    A hostile page reaches the service under the page's own host name, whose DNS record it points
    at the service's address (DNS rebinding). It cannot do that with an IP address, ``localhost``
    or a name of this service.
    """
    if not host:
        return False
    if host == "localhost" or _address(host) is not None or host == _machine_name():
        return True
    return "*" in allowed or any(host == name.lower() for name in allowed)


@cache
def _machine_name() -> str:
    return socket.gethostname().lower()


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_port(text: str) -> bool:
    return text in ("", ":") or (
        text.startswith(":") and text[1:].isascii() and text[1:].isdecimal()
    )
