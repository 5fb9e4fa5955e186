"""Very slow connections: headers, bodies, nothing at all; and data that is not HTTP."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

from attack.arena import Arena, Beside
from attack.outcome import Outcome
from helpers.batches import eventually
from helpers.proc import descriptors
from helpers.service import Service

SOCKETS = 200
READERS = 10  # each requests megabytes and reads nothing
TIMEOUTS = {
    "header_timeout": "2",
    "body_timeout": "3",
    "idle_timeout": "3",
    "send_timeout": "3",
    "max_connections": "128",
}
HEADER = (
    b"POST /api/v1/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
)
READ = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
KINDS = {
    "idle": (b"", b""),
    "header": (HEADER, b"X-Slow: 1\r\n"),
    "body": (HEADER + b"Content-Length: 1000000\r\n\r\n", b" "),
    "answer": (READ * 40, b""),
}


def attack(arena: Arena) -> Iterator[Outcome]:
    """Run each kind of slow connection, then send invalid requests."""
    for kind, (first, further) in KINDS.items():
        outcome = Outcome(f"slowloris: {kind}")
        with arena.service(outcome, **TIMEOUTS) as service, Beside(service, outcome):
            before = descriptors(service.process.pid)
            with ExitStack() as sockets:
                count = READERS if kind == "answer" else SOCKETS
                opened = [sockets.enter_context(_connect(service)) for _ in range(count)]
                outcome.tried(count)
                _trickle(opened, first, further, until=time.monotonic() + 5)
                if not eventually(30, _few(service, before + 40)):
                    outcome.fault(f"{descriptors(service.process.pid)} descriptors stay open")
        yield outcome
    yield _nonsense(arena)


def _few(service: Service, most: int) -> Callable[[], bool]:
    return lambda: descriptors(service.process.pid) <= most


def _connect(service: Service) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", service.port))
    connection.setblocking(False)
    return connection


def _trickle(opened: list[socket.socket], first: bytes, further: bytes, until: float) -> None:
    for connection in opened:
        with suppress(OSError):
            connection.send(first)
    while time.monotonic() < until:
        for connection in opened:
            with suppress(OSError):
                connection.send(further)
        time.sleep(0.2)


def _nonsense(arena: Arena) -> Outcome:
    outcome = Outcome("invalid HTTP and aborted uploads")
    chance = random.Random(7)
    with arena.service(outcome) as service, Beside(service, outcome):
        lines = len(service.output)
        until = time.monotonic() + arena.seconds / 6
        while time.monotonic() < until:
            sent = chance.choice(
                (
                    chance.randbytes(chance.randrange(1, 3_000)),
                    HEADER + b"Content-Length: 5000\r\n\r\n{",
                    HEADER + b"Transfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
                    HEADER + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
                    b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * 70_000),
                    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
                )
            )
            with suppress(OSError), socket.create_connection(("127.0.0.1", service.port)) as one:
                outcome.tried()
                one.sendall(sent)
        written = [line for line in service.output[lines:] if "connections ended" in line]
        if len(written) > 2 + arena.seconds / 60:
            outcome.fault(f"{len(written)} lines were logged")
    return outcome
