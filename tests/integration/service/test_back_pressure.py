"""A service that receives more than it can store makes senders retry; its memory is bounded."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradledger.delivery.http_client import Client
from helpers.batches import batch, step
from helpers.patience import HANGS
from helpers.service import Service, running_service

ROOM = 64 * 2**10


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Service]:
    """A service with 64 KiB of memory for batches."""
    with running_service(tmp_path / "gradledger.db", ingest_queue_bytes=str(ROOM)) as service:
        yield service


class Slow:
    """A sender in the middle of a large batch, until ``finish``."""

    def __init__(self, service: Service) -> None:
        self._service = service
        body = batch("slow", [step(1)]) + b" " * (ROOM - 8_192)
        head = (
            "POST /api/v1/records HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
            f"Content-Type: application/x-ndjson\r\nContent-Length: {len(body) + 1}\r\n\r\n"
        )
        self._connection = socket.create_connection(("127.0.0.1", service.port), HANGS)
        self._connection.sendall(head.encode())
        assert self._connection.recv(4_096).startswith(b"HTTP/1.1 100")  # it reads the body
        self._connection.sendall(body)

    def blocks_others(self) -> bool:
        """Whether its batch takes up the memory. If another batch came first, it was refused."""
        probe = batch("probe", []) + b" " * 16_384
        return self._service.post(probe).status_code == 429

    def finish(self) -> int:
        """Send the rest; the status of the response."""
        with self._connection:
            self._connection.sendall(b"\n")
            return int(self._connection.recv(4_096).split()[1])

    def close(self) -> None:
        """Break off."""
        self._connection.close()


def slow_sender(service: Service) -> Slow:
    """A sender whose batch takes up the memory of the service."""
    for _ in range(20):
        slow = Slow(service)
        if slow.blocks_others():
            return slow
        slow.close()
    raise AssertionError("the service accepts other batches")


def test_a_full_queue_refuses_a_batch_and_accepts_it_later(small: Service) -> None:
    slow = slow_sender(small)
    body = batch("second", [step(1)]) + b" " * 16_384
    answer = small.post(body)
    assert answer.headers["retry-after"] == "2"
    assert answer.headers["content-type"] == "application/problem+json"
    assert small.get("/runs/second").status_code == 404
    assert slow.finish() == 200
    assert small.post(body).status_code == 200


def test_the_hooks_retry_after_the_interval_in_the_response(small: Service) -> None:
    lines = batch("hooked", [step(n, tokens=tuple(range(n, n + 400))) for n in range(1, 40)])
    client = Client(small.url)
    slow = slow_sender(small)
    answer = client.post([lines])
    assert (answer.outcome, answer.retry_after) == ("retry", 2.0)
    assert slow.finish() == 200
    assert client.post([lines]).outcome == "accepted"
    client.close()


def test_a_batch_without_others_is_accepted_whatever_its_size(small: Service) -> None:
    assert small.post(batch("large", [step(1)]) + b" " * (4 * ROOM)).status_code == 200


def test_memory_does_not_grow_with_the_number_of_senders(tmp_path: Path) -> None:
    room = str(16 * 2**20)
    with running_service(tmp_path / "gradledger.db", ingest_queue_bytes=room) as service:
        service.post(batch("first", [step(1)]))
        before = _peak_memory(service)
        body = batch("many", [step(1)]) + b" " * (8 * 2**20)
        statuses: list[int] = []
        threads = [
            threading.Thread(target=lambda: statuses.append(service.post(body).status_code))
            for _ in range(24)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) <= {200, 429} and 200 in statuses and len(statuses) == 24
        assert _peak_memory(service) - before < 100 * 2**20  # 24 bodies are 192 MiB


def _peak_memory(service: Service) -> int:
    with open(f"/proc/{service.process.pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
