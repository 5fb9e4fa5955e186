"""A proxy as companies have them: it forwards requests and opens tunnels, for those who may."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class RunningProxy:
    """Listens on a free port; whatever is asked of it leads to one address."""

    listening: socket.socket
    leads_to: int
    authorization: str | None = None  # without it, 407
    heads: list[bytes] = field(default_factory=list)  # of every request that came

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.listening.getsockname()[1]}"

    def lines(self) -> set[str]:
        """The first line of every request."""
        return {head.split(b"\r\n")[0].decode() for head in self.heads}


@contextmanager
def running_proxy(leads_to: int, authorization: str | None = None) -> Iterator[RunningProxy]:
    """A proxy for the length of a block."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        proxy = RunningProxy(listening, leads_to, authorization)
        thread = threading.Thread(target=_accept, args=(proxy,), daemon=True)
        thread.start()
        yield proxy
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def _accept(proxy: RunningProxy) -> None:
    with suppress(OSError):
        while True:
            connection, _ = proxy.listening.accept()
            threading.Thread(target=_serve, args=(proxy, connection), daemon=True).start()


def _serve(proxy: RunningProxy, connection: socket.socket) -> None:
    with suppress(OSError), connection:
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = connection.recv(65536)
            if not chunk:
                return
            data += chunk
        head, rest = data.split(b"\r\n\r\n", 1)
        proxy.heads.append(head)
        wanted = f"Proxy-Authorization: {proxy.authorization}".encode()
        if proxy.authorization is not None and wanted not in head:
            connection.sendall(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        with socket.create_connection(("127.0.0.1", proxy.leads_to)) as there:
            if head.startswith(b"CONNECT "):
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                there.sendall(_relative(head) + b"\r\n\r\n" + rest)
            connect(connection, there)


def _relative(head: bytes) -> bytes:
    """The request as its target wants it: without the proxy's part of the address."""
    method, address, version = head.split(b"\r\n")[0].split(b" ")
    path = b"/" + address.split(b"/", 3)[3]
    return b"\r\n".join([b" ".join([method, path, version]), *head.split(b"\r\n")[1:]])


def connect(one: socket.socket, other: socket.socket) -> None:
    """Bring what either sends to the other, until both have ended."""
    back = threading.Thread(target=_pump, args=(other, one), daemon=True)
    back.start()
    _pump(one, other)
    back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
