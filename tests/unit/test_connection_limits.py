"""Time limits of connections, with a clock that the test sets, on uvicorn's real protocol."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn
from prometheus_client import CollectorRegistry, Counter
from uvicorn.server import ServerState

from gradledger_monitor.api.middleware import connections
from gradledger_monitor.api.middleware.connection_log import REASONS, ConnectionLog
from gradledger_monitor.api.middleware.connections import BoundedProtocol, Guard, Limits
from gradledger_monitor.app import create_app
from gradledger_monitor.cli.commands import serve
from gradledger_monitor.config.settings import Settings
from helpers.sending import Clock

LIMITS = Limits(
    connections=9, per_client=9, header=7.0, body=20.0, body_rate=100, idle=5.0, send=60.0
)
LINE = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
HOUR = 3_600.0


class Transport(asyncio.Transport):
    """A connection whose client is the test."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.unread = 0  # bytes that the client has not read
        self.end = ""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return bool(self.end)

    def write(self, data: Any) -> None:
        self.sent += data

    def close(self) -> None:
        self.end = self.end or "closed"

    def abort(self) -> None:
        self.end = self.end or "aborted"

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Connection:
    """One connection, its clock and its guard, in an event loop that runs while bytes arrive."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self.clock = loop, Clock()
        metric = Counter("ended", "Ended.", ["reason"], registry=CollectorRegistry())
        self.log = ConnectionLog(metric, self.clock)
        self.guard = Guard(LIMITS, self.log, now=self.clock)
        self.transport = Transport()
        loop.run_until_complete(self._connect())

    async def _connect(self) -> None:
        config = uvicorn.Config(_app, timeout_keep_alive=3_600, log_config=None)
        self.protocol = connections.protocol(self.guard)(config, ServerState(), {})  # type: ignore[call-arg]
        self.protocol.connection_made(self.transport)

    def receive(self, data: bytes) -> None:
        """Bytes arrive, and the service does what it can with them."""
        self._loop.run_until_complete(self._receive(data))

    async def _receive(self, data: bytes) -> None:
        cast("BoundedProtocol", self.protocol).data_received(data)
        for _ in range(20):  # more than the application needs for a request
            await asyncio.sleep(0)

    def wait(self, seconds: float) -> str:
        """Time passes, and the limits are checked; returns how the connection ended."""
        self.clock.time += seconds
        self.guard.sweep()
        return self.transport.end

    def counted(self) -> dict[str, float]:
        """The reasons for which connections ended."""
        values = {reason: self.log._counters[reason]._value.get() for reason in REASONS}
        return {reason: value for reason, value in values.items() if value}


async def _app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body and responds; never to a GET."""
    if scope["method"] == "GET":
        await asyncio.Event().wait()
    while (await receive())["more_body"]:
        pass
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def connection() -> Iterator[Connection]:
    """A new connection."""
    loop = asyncio.new_event_loop()
    yield Connection(loop)
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()


def test_a_new_connection_may_be_idle_for_the_idle_timeout(connection: Connection) -> None:
    assert connection.wait(LIMITS.idle) == ""
    assert connection.wait(0.5) == "aborted"
    assert (connection.transport.sent, connection.counted()) == (b"", {})


def test_a_connection_may_be_idle_for_the_idle_timeout_after_each_response(
    connection: Connection,
) -> None:
    for _ in range(3):
        assert connection.wait(LIMITS.idle) == ""
        connection.receive(LINE + b"Content-Length: 0\r\n\r\n")
        assert connection.transport.sent.endswith(b"\r\n\r\nok")
    assert connection.wait(LIMITS.idle) == ""
    assert connection.wait(0.5) == "aborted"
    assert connection.counted() == {}


def test_the_header_timeout_counts_from_the_first_byte(connection: Connection) -> None:
    connection.receive(LINE)
    for _ in range(int(LIMITS.header)):
        assert connection.wait(1.0) == ""
        connection.receive(b"X-Slow: 1\r\n")
    assert connection.wait(0.5) == "closed"
    assert connection.transport.sent.startswith(b"HTTP/1.1 408")
    assert b"within 7 s (GRADLEDGER_HEADER_TIMEOUT)" in connection.transport.sent
    assert connection.counted() == {"header_timeout": 1}


def test_a_body_below_the_minimum_rate_is_ended_after_the_body_timeout(
    connection: Connection,
) -> None:
    connection.receive(LINE + b"Content-Length: 100000\r\n\r\n")
    seconds = 0
    while not connection.wait(1.0):
        connection.receive(b" " * 10)
        seconds += 1
    assert seconds == 22  # 20 s, and 1 s for each of the 2.2 times 100 bytes
    assert connection.transport.sent.startswith(b"HTTP/1.1 408")
    assert b"more slowly than 100 bytes per second" in connection.transport.sent
    assert connection.counted() == {"body_timeout": 1}


def test_a_slow_body_at_the_minimum_rate_is_accepted(connection: Connection) -> None:
    connection.receive(LINE + b"Content-Length: 100000\r\n\r\n")
    for _ in range(1_000):
        assert connection.wait(1.0) == ""
        connection.receive(b" " * 100)
    assert connection.transport.sent.endswith(b"\r\n\r\nok")
    assert connection.counted() == {}


def test_the_service_has_no_time_limit_to_respond(connection: Connection) -> None:
    connection.receive(LINE.replace(b"POST", b"GET") + b"\r\n")
    assert connection.wait(HOUR) == ""


def test_a_client_must_read_a_part_of_the_response_within_the_send_timeout(
    connection: Connection,
) -> None:
    connection.receive(LINE.replace(b"POST", b"GET") + b"\r\n")
    for unread in (9_000, 8_000, 7_000):
        connection.transport.unread = unread
        assert connection.wait(0.0) == ""
        assert connection.wait(LIMITS.send) == ""
    assert connection.wait(0.5) == "aborted"
    assert connection.counted() == {"send_timeout": 1}


def test_every_limit_is_the_one_of_the_settings(tmp_path: Path) -> None:
    named = {
        "max_connections": 31, "connections_per_client": 7, "header_timeout": 1.5,
        "body_timeout": 2.5, "body_min_rate": 123, "idle_timeout": 3.5, "send_timeout": 4.5,
    }  # fmt: skip
    settings = Settings.model_construct(db=f"sqlite:///{tmp_path / 'a.db'}", **cast("Any", named))
    config = serve._server_config(create_app(settings), settings, descriptors=1_024)
    limits = cast("type[BoundedProtocol]", config.http).guard.limits
    assert dataclasses.astuple(limits) == (31, 7, 1.5, 2.5, 123, 3.5, 4.5)
    assert config.timeout_keep_alive == 4  # uvicorn counts whole seconds


@pytest.mark.parametrize(("descriptors", "most"), [(1_024, 704), (256, 128), (64, 16)])
def test_without_settings_the_number_of_connections_follows_from_the_open_files(
    descriptors: int, most: int, tmp_path: Path
) -> None:
    settings = Settings.model_construct(db=f"sqlite:///{tmp_path / 'a.db'}")
    config = serve._server_config(create_app(settings), settings, descriptors)
    limits = cast("type[BoundedProtocol]", config.http).guard.limits
    assert (limits.connections, limits.per_client) == (most, most // 2)


def test_ended_connections_are_logged_once_a_minute(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        for _ in range(5):
            connection.log.count("invalid", "127.0.0.1")
        connection.clock.time += 60.0
    numbers = [re.findall(r"\d+(?= requests)", message) for message in caplog.messages]
    assert numbers == [["1"], ["5"], ["5"]]
    connection.guard.sweep()
    assert "4 requests" in caplog.messages[-1]
