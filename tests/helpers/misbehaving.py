"""A server that is silent, refuses, or sends invalid responses.

It has a list of every record that it acknowledged, so that a test can check what was delivered.
"""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

Record = dict[str, object]
Behaviour = Callable[["Server", socket.socket, bytes], None]


@dataclass
class Server:
    """Listens on a free port. Its behaviour can be changed at any time."""

    listening: socket.socket
    behaviour: Behaviour
    requests: list[bytes] = field(default_factory=list)  # the body of each
    taken: list[Record] = field(default_factory=list)
    connections: list[socket.socket] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.listening.getsockname()[1]}"

    def steps(self) -> list[object]:
        """Steps that it acknowledged, in order of arrival."""
        return [record["step"] for record in self.taken if record["type"] == "step"]


@contextmanager
def server(behaviour: Behaviour) -> Iterator[Server]:
    """A server for the duration of a block."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = Server(listening, behaviour)
        thread = threading.Thread(target=_accept, args=(running,), daemon=True)
        thread.start()
        yield running
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in running.connections:
            connection.close()


def _accept(running: Server) -> None:
    with suppress(OSError):
        while True:
            connection, _ = running.listening.accept()
            running.connections.append(connection)
            threading.Thread(target=_serve, args=(running, connection), daemon=True).start()


def _serve(running: Server, connection: socket.socket) -> None:
    with suppress(OSError, ValueError):
        while (body := _request(connection)) is not None:
            running.requests.append(gzip.decompress(body))
            running.behaviour(running, connection, running.requests[-1])


def _request(connection: socket.socket) -> bytes | None:
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(65536)
        if not chunk:
            return None
        data += chunk
    head, body = data.split(b"\r\n\r\n", 1)
    length = next(
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += connection.recv(65536)
    return body


# ---------------------------------------------------------------------- behaviours


def takes(running: Server, connection: socket.socket, body: bytes) -> None:
    """As the service does."""
    records = [json.loads(line) for line in body.splitlines()]
    running.taken += records
    result = {"stored": len(records), "duplicates": 0}
    says(200, json.dumps(result).encode())(running, connection, body)


def says(status: int, text: bytes = b"", **headers: str) -> Behaviour:
    """Always the same response."""
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    head = f"HTTP/1.1 {status} X\r\n{''.join(lines)}Content-Length: {len(text)}\r\n\r\n"

    def behave(running: Server, connection: socket.socket, body: bytes) -> None:
        connection.sendall(head.encode() + text)

    return behave


def is_silent(running: Server, connection: socket.socket, body: bytes) -> None:
    """Accepts the request and never responds."""


def talks_nonsense(running: Server, connection: socket.socket, body: bytes) -> None:
    """Not HTTP at all."""
    connection.sendall(b"\x00\xff garbage \r\n" * 100)


def never_ends(running: Server, connection: socket.socket, body: bytes) -> None:
    """A response whose body never ends."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b" " * 65536)


def trickles(running: Server, connection: socket.socket, body: bytes) -> None:
    """A response of which one byte arrives every 50 ms, for ever."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.05)


def hangs_up(running: Server, connection: socket.socket, body: bytes) -> None:
    """Closes the connection instead of responding."""
    connection.close()


def takes_few(most: int) -> Behaviour:
    """Accepts batches of at most this many lines."""

    def behave(running: Server, connection: socket.socket, body: bytes) -> None:
        small = body.count(b"\n") <= most
        (takes if small else says(413))(running, connection, body)

    return behave


def takes_and_hangs_up(running: Server, connection: socket.socket, body: bytes) -> None:
    """As a service that closes each connection after a response."""
    takes(running, connection, body)
    connection.close()
