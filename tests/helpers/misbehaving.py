"""A server that is not what the hooks hope for: silent, refusing, or answering nonsense.

It notes every record that it acknowledged, so that a test can tell what was really delivered.
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
    """Listens on a free port; what it does with a request may be changed at any time."""

    listening: socket.socket
    behaviour: Behaviour
    requests: list[float] = field(default_factory=list)  # when each came
    taken: list[Record] = field(default_factory=list)
    connections: list[socket.socket] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.listening.getsockname()[1]}"

    def steps(self) -> list[object]:
        """Steps that it acknowledged, in order of arrival."""
        return [record["step"] for record in self.taken if record["type"] == "step"]


@contextmanager
def server(behaviour: Behaviour) -> Iterator[Server]:
    """A server for the length of a block."""
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
            running.requests.append(time.monotonic())
            running.behaviour(running, connection, gzip.decompress(body))


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
    told = {"stored": len(records), "duplicates": 0}
    says(200, json.dumps(told).encode())(running, connection, body)


def says(status: int, text: bytes = b"", **headers: str) -> Behaviour:
    """Always one answer."""
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    head = f"HTTP/1.1 {status} X\r\n{''.join(lines)}Content-Length: {len(text)}\r\n\r\n"

    def behave(running: Server, connection: socket.socket, body: bytes) -> None:
        connection.sendall(head.encode() + text)

    return behave


def is_silent(running: Server, connection: socket.socket, body: bytes) -> None:
    """Takes the request and never answers."""


def talks_nonsense(running: Server, connection: socket.socket, body: bytes) -> None:
    """Not HTTP at all."""
    connection.sendall(b"\x00\xff garbage \r\n" * 100)


def never_ends(running: Server, connection: socket.socket, body: bytes) -> None:
    """An answer whose body goes on for ever."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b" " * 65536)


def trickles(running: Server, connection: socket.socket, body: bytes) -> None:
    """An answer of which one byte comes now and then."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.05)


def hangs_up(running: Server, connection: socket.socket, body: bytes) -> None:
    """Closes the connection instead of an answer."""
    connection.close()


def takes_few(most: int) -> Behaviour:
    """Takes batches of at most so many lines."""

    def behave(running: Server, connection: socket.socket, body: bytes) -> None:
        small = body.count(b"\n") <= most
        (takes if small else says(413))(running, connection, body)

    return behave


def takes_and_hangs_up(running: Server, connection: socket.socket, body: bytes) -> None:
    """As a service that keeps no connection."""
    takes(running, connection, body)
    connection.close()
