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

from gradledger_monitor.alerts.addresses import Reach, Refused
from gradledger_monitor.alerts.outcomes import Outcome, of_status
from gradledger_monitor.printable import printable

MOST_ANSWER_BYTES = 1_024


class _Guarded(httpcore2.AsyncNetworkBackend):
    """Connects to names whose every address may be reached."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
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
    url: str, body: bytes, headers: Mapping[str, str], reach: Reach, timeout: float
) -> Outcome:
    """Send a body, and say what became of it; ``timeout`` is for everything, in seconds."""
    try:
        with anyio.fail_after(timeout):
            return await _post(url, body, headers, reach)
    except TimeoutError:
        return Outcome("failed", f"no answer within {timeout:g} s")
    except Refused as error:
        return Outcome("failed", str(error))
    except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError) as error:
        return Outcome("failed", f"{type(error).__name__}: {error}"[:500])


async def _post(url: str, body: bytes, headers: Mapping[str, str], reach: Reach) -> Outcome:
    told = [(name.encode(), value.encode()) for name, value in headers.items()]
    guarded = httpcore2.AsyncConnectionPool(ssl_context=_tls(), network_backend=_Guarded(reach))
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
