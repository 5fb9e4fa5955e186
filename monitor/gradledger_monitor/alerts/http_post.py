"""One HTTP request: to an address that was checked, and to no other; never anywhere else.

The name is looked up once, every address it has is checked, and the connection goes to what was
checked: a name that answers differently the next time (DNS rebinding) gains nothing. Redirects are
not followed, proxies of the environment are not used, and of an answer only the beginning is read.
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

MOST_ANSWER_BYTES = 1_024
MOST_DETAIL = 500  # characters
MAX_WAIT_SECONDS = 86_400.0  # for Retry-After, as for the longest delay between two attempts


class _Guarded(httpcore2.AsyncNetworkBackend):
    """Connects to names whose every address may be reached."""

    def __init__(self, policy: EgressPolicy) -> None:
        self._reach = policy
        self._plain = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """To the first of its addresses that answers."""
        addresses = await _looked_up(host, port)
        for address in addresses:
            self._reach.check(host, address)
        failed = httpcore2.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._plain.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except httpcore2.ConnectError as error:
                failed = error
        raise failed


async def _looked_up(host: str, port: int) -> list[str]:
    try:
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpcore2.ConnectError(f"{host}: {error}") from error
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


@cache
def _tls() -> SSLContext:
    return httpcore2.default_ssl_context()


async def post(
    url: str, body: bytes, headers: Mapping[str, str], policy: EgressPolicy, timeout: float
) -> DeliveryResult:
    """Send a body, and say what became of it; ``timeout`` is for everything, in seconds."""
    try:
        with anyio.fail_after(timeout):
            return await _post(url, body, headers, policy)
    except TimeoutError:
        return DeliveryResult("failed", f"no answer within {timeout:g} s")
    except AddressRefused as error:
        return DeliveryResult("failed", str(error))
    except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError) as error:
        return DeliveryResult("failed", f"{type(error).__name__}: {error}"[:500])


async def _post(
    url: str, body: bytes, headers: Mapping[str, str], policy: EgressPolicy
) -> DeliveryResult:
    told = [(name.encode(), value.encode()) for name, value in headers.items()]
    guarded = httpcore2.AsyncConnectionPool(ssl_context=_tls(), network_backend=_Guarded(policy))
    async with guarded as pool, pool.stream("POST", url, headers=told, content=body) as answer:
        said = await _beginning(answer) if answer.status >= 400 else ""
        named = {name.lower(): value.decode("latin-1") for name, value in answer.headers}
        return of_status(answer.status, named.get(b"retry-after", ""), said)


async def _beginning(answer: httpcore2.Response) -> str:
    said = b""
    async for part in answer.aiter_stream():
        said += part
        if len(said) >= MOST_ANSWER_BYTES:
            break
    return printable(" ".join(said[:200].decode("utf-8", "replace").split()))


def of_status(status: int, retry_after: str = "", said: str = "") -> DeliveryResult:
    """What an HTTP status means for a message."""
    if 200 <= status < 300:
        return DeliveryResult("delivered", status=status)
    if status == 410:
        return DeliveryResult("gone", "410 Gone: the receiver wants no more", status)
    detail = f"HTTP status {status}"
    if 300 <= status < 400:
        detail += ": redirects are not followed; name the address that they lead to"
    elif said:
        detail += f": {said}"
    wait = retry_after_seconds(retry_after, MAX_WAIT_SECONDS) if status in (429, 503) else None
    return DeliveryResult("failed", detail[:MOST_DETAIL], status, wait)
