"""One HTTP POST, to an address that was checked, without redirects or proxies.

The host name is resolved once, all its addresses are checked, and the connection goes to a checked
address, so a name that resolves differently the next time (DNS rebinding) has no effect. Proxies of
the environment are not used, and only the beginning of a response is read.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from functools import cache
from ssl import SSLContext

import anyio
import httpcore2

from gradledger.delivery.http_client import retry_after_seconds
from gradledger_monitor.alerts.egress_policy import AddressRefused, EgressPolicy
from gradledger_monitor.common.sanitize import printable
from gradledger_monitor.store.alerts.outbox import DeliveryResult

MAX_RESPONSE_BYTES = 1_024
MAX_DETAIL = 500  # characters
MAX_WAIT_SECONDS = 86_400.0  # for Retry-After, as for the longest delay between two attempts


class _CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Connects only to hosts whose addresses are all allowed."""

    def __init__(self, policy: EgressPolicy) -> None:
        self._policy = policy
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address of the host that accepts the connection."""
        addresses = await _resolve(host, port)
        for address in addresses:
            self._policy.check(host, address)
        failure = httpcore2.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._backend.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except httpcore2.ConnectError as error:
                failure = error
        raise failure


async def _resolve(host: str, port: int) -> list[str]:
    try:
        results = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpcore2.ConnectError(f"{host}: {error}") from error
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in results))


@cache
def _tls() -> SSLContext:
    return httpcore2.default_ssl_context()


async def post(
    url: str, body: bytes, headers: Mapping[str, str], policy: EgressPolicy, timeout: float
) -> DeliveryResult:
    """Send a body and return the result. ``timeout`` covers the whole exchange, in seconds."""
    try:
        with anyio.fail_after(timeout):
            return await _post(url, body, headers, policy)
    except TimeoutError:
        return DeliveryResult("failed", f"no response within {timeout:g} s")
    except AddressRefused as error:
        return DeliveryResult("failed", str(error))
    except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError) as error:
        return DeliveryResult("failed", f"{type(error).__name__}: {error}"[:MAX_DETAIL])


async def _post(
    url: str, body: bytes, headers: Mapping[str, str], policy: EgressPolicy
) -> DeliveryResult:
    raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]
    checked = httpcore2.AsyncConnectionPool(
        ssl_context=_tls(), network_backend=_CheckedBackend(policy)
    )
    request = checked.stream("POST", url, headers=raw_headers, content=body)
    async with checked, request as response:
        text = await _beginning(response) if response.status >= 400 else ""
        by_name = {name.lower(): value.decode("latin-1") for name, value in response.headers}
        return result_of_status(response.status, by_name.get(b"retry-after", ""), text)


async def _beginning(response: httpcore2.Response) -> str:
    content = b""
    async for part in response.aiter_stream():
        content += part
        if len(content) >= MAX_RESPONSE_BYTES:
            break
    return printable(" ".join(content[:200].decode("utf-8", "replace").split()))


def result_of_status(status: int, retry_after: str = "", text: str = "") -> DeliveryResult:
    """The result that a response stands for; ``text`` is the beginning of its body."""
    if 200 <= status < 300:
        return DeliveryResult("delivered", status=status)
    if status == 410:
        return DeliveryResult("gone", "410 Gone: the receiver accepts no more messages", status)
    detail = f"HTTP status {status}"
    if 300 <= status < 400:
        detail += ": redirects are not followed; configure the final URL"
    elif text:
        detail += f": {text}"
    wait = retry_after_seconds(retry_after, MAX_WAIT_SECONDS) if status in (429, 503) else None
    return DeliveryResult("failed", detail[:MAX_DETAIL], status, wait)
