"""Connections that send nothing, too slowly, incompletely or no HTTP are limited and counted.

How long each may take is tested with a clock, in ``tests/unit/test_connection_limits.py``.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gradledger.delivery.http_client import Client
from helpers import http
from helpers.batches import batch, eventually, fair_step
from helpers.forkserver import Python
from helpers.patience import HANGS
from helpers.proc import descriptors
from helpers.service import Service, running_service

HEADER = b"POST /api/v1/records HTTP/1.1\r\nHost: localhost\r\n"
LINES = b"Content-Type: application/x-ndjson\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
QUICK = {
    "header_timeout": "1",
    "body_timeout": "1",
    "idle_timeout": "2",
    "send_timeout": "2",
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with timeouts of seconds."""
    with running_service(tmp_path_factory.mktemp("quick") / "a.db", 0, **QUICK) as running:
        running.post(batch("r", map(fair_step, range(1, 4))))
        yield running


def connect(service: Service, host: str = "127.0.0.1") -> socket.socket:
    """A plain connection from an address of this machine."""
    return socket.create_connection(("127.0.0.1", service.port), HANGS, source_address=(host, 0))


def answer(connection: socket.socket) -> bytes:
    """All that comes until the service closes the connection."""
    parts = []
    while part := connection.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def ended(service: Service, reason: str) -> float:
    """How many connections ended for a reason."""
    text = http.get(f"{service.url}/metrics").text
    return next(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "gradledger_connections_ended_total"
        and sample.labels == {"reason": reason}
    )


@pytest.mark.parametrize("sent", [b"", GET])
def test_an_idle_connection_is_closed(quick: Service, sent: bytes) -> None:
    with connect(quick) as connection:
        connection.sendall(sent)
        assert answer(connection)[:12] == (b"HTTP/1.1 200" if sent else b"")


def test_a_slow_header_is_ended_and_counted(quick: Service) -> None:
    before = ended(quick, "header_timeout")
    with connect(quick) as connection:
        connection.sendall(HEADER)
        response = answer(connection)
    assert response.startswith(b"HTTP/1.1 408") and b"within 1 s" in response
    assert ended(quick, "header_timeout") == before + 1


def test_a_slow_body_is_ended_with_the_settings_to_change(quick: Service) -> None:
    before = ended(quick, "body_timeout")
    with connect(quick) as connection:
        connection.sendall(HEADER + LINES + b"Content-Length: 100000\r\n\r\n ")
        response = answer(connection)
    assert response.startswith(b"HTTP/1.1 408") and b"GRADLEDGER_BODY_MIN_RATE" in response
    assert (ended(quick, "body_timeout"), ended(quick, "aborted")) == (before + 1, 0)


def test_a_stream_of_events_outlasts_every_timeout(quick: Service) -> None:
    with http.stream("GET", f"{quick.url}/api/v1/runs/r/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: evaluated"
        for _ in range(2):
            with connect(quick) as idle:
                idle.sendall(GET)
                assert answer(idle)  # ends with a timeout that began after the stream
        quick.post(batch("r", [fair_step(4)]))
        assert any('"step":4' in line for line in lines)


def test_a_response_that_is_not_read_is_ended(quick: Service) -> None:
    quick.post(batch("long", map(fair_step, range(1, 400))))
    before = ended(quick, "send_timeout")
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", quick.port))
        path = b"/api/v1/openapi.json"
        request = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path
        connection.sendall(request * 60)
        assert eventually(HANGS, lambda: ended(quick, "send_timeout") == before + 1)


def test_the_hooks_continue_after_their_connection_was_idle(quick: Service) -> None:
    client = Client(quick.url)
    assert client.post([batch("hooked", [fair_step(1)])]).outcome == "accepted"
    with connect(quick) as idle:
        idle.sendall(GET)
        assert answer(idle)  # closed after the connection of the hooks, which was idle before it
    assert client.post([batch("hooked", [fair_step(2)])]).outcome == "accepted"
    client.close()


CRAMPED = """
import resource, runpy
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
runpy.run_module("gradledger.cli", run_name="__main__")
"""


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """The process and port of a service that may open 256 files."""
    script = tmp_path / "cramped.py"
    script.write_text(CRAMPED)
    serve = ["serve", "--db", f"sqlite:///{tmp_path / 'a.db'}", "--port", 0]
    process = Python([script, *serve], server="service", merged=True)
    line = process.stdout.readline()
    assert "listens on" in line, line
    yield process.pid, int(line.rsplit(":", 1)[1])
    process.terminate()
    process.communicate(HANGS)


def test_idle_connections_do_not_block_new_ones(cramped: tuple[int, int]) -> None:
    pid, port = cramped
    with ExitStack() as sockets:
        for _ in range(250):
            sockets.enter_context(socket.create_connection(("127.0.0.1", port)))
        headers = {"Content-Type": "application/x-ndjson"}
        url = f"http://127.0.0.1:{port}"
        body = batch("r", [fair_step(1)])  # from the same address
        posted = http.post(f"{url}/api/v1/records", content=body, headers=headers)
        assert posted.status_code == 200
        with socket.create_connection(("127.0.0.1", port), HANGS, ("127.0.0.2", 0)) as other:
            other.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert answer(other).startswith(b"HTTP/1.1 200")
        assert descriptors(pid) < 128


def test_one_client_cannot_take_all_connections(tmp_path: Path) -> None:
    few = {"max_connections": "20", "connections_per_client": "4"}
    with running_service(tmp_path / "a.db", 0, **few) as service, ExitStack() as streams:
        service.post(batch("r", [fair_step(1)]))
        stream = b"GET /api/v1/runs/r/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(4):
            connection = streams.enter_context(connect(service, "127.0.0.3"))
            connection.sendall(stream)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        with connect(service, "127.0.0.3") as fifth:
            response = answer(fifth)
            assert response.startswith(b"HTTP/1.1 503") and b"retry-after: 2" in response.lower()
        assert service.get("/runs").status_code == 200


def test_a_trusted_proxy_has_no_limit_per_client(tmp_path: Path) -> None:
    few = {"connections_per_client": "2", "trusted_proxies": "127.0.0.0/8"}
    with running_service(tmp_path / "a.db", 0, **few) as service, ExitStack() as sockets:
        open_ones = [sockets.enter_context(connect(service)) for _ in range(10)]
        for connection in open_ones:
            connection.sendall(GET)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_aborted_uploads_and_invalid_requests_are_one_line_and_counted(tmp_path: Path) -> None:
    any_rate = {"reads_per_second": "0"}
    with running_service(tmp_path / "a.db", 0, log_level="info", **any_rate) as service:
        started = len(service.output)

        def attack() -> None:
            for _ in range(100):
                with connect(service) as connection:
                    connection.sendall(HEADER + LINES + b"Content-Length: 1000\r\n\r\n{")
                with connect(service) as connection:
                    connection.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
                    assert answer(connection).startswith(b"HTTP/1.1 400")
                with connect(service) as connection:
                    upgrade = b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"
                    connection.sendall(b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n" + upgrade)
                    assert connection.recv(4096).startswith(b"HTTP/1.1 404")

        attackers = [threading.Thread(target=attack) for _ in range(4)]
        for thread in attackers:
            thread.start()
        for thread in attackers:
            thread.join()
        assert eventually(HANGS, lambda: ended(service, "aborted") == 400)
        assert ended(service, "invalid") == 400
        lines = service.output[started:]
        assert not [line for line in lines if "Traceback" in line or "WARNING" in line]
        counted = [line for line in lines if "connections ended" in line]
        assert 0 < len(counted) < 10  # one a minute
        others = [line for line in lines if '"request"' not in line and line not in counted]
        assert others == []
