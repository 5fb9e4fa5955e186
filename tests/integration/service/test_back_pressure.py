"""A service that gets more than it can store asks its senders to wait, and grows no further."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradledger.delivery.http_client import Client
from helpers import http
from helpers.batches import batch, eventually, step
from helpers.service import Service, running_service

LINES = {"Content-Type": "application/x-ndjson"}
ROOM = 64 * 2**10


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Service]:
    """A service with room for 64 KiB of batches."""
    with running_service(tmp_path / "gradledger.db", ingest_queue_bytes=str(ROOM)) as service:
        yield service


class Slow:
    """A sender in the middle of a large batch, until it is let go on."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._body = batch("slow", [step(1)]) + b" " * (ROOM - 8_192)
        self.statuses: list[int] = []
        self._begin()

    def _begin(self) -> None:
        self._go_on = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()
        time.sleep(0.5)  # it is refused itself if anybody has room at the moment it comes

    def _send(self) -> None:
        url = f"{self._service.url}/api/v1/records"
        answer = http.post(url, content=self._parts(), headers=LINES, timeout=60)
        self.statuses.append(answer.status_code)

    def _parts(self) -> Iterator[bytes]:
        yield self._body
        self._go_on.wait()
        yield b"\n"

    def wait(self) -> None:
        """Until what was sent so far has taken its room."""
        assert eventually(60, self._is_in_the_way)

    def _is_in_the_way(self) -> bool:
        probe = batch("probe", []) + b" " * 16_384
        if self._service.post(probe).status_code == 429:
            return True
        self.finish()
        self._begin()
        return False

    def finish(self) -> int:
        """Send the rest; the answer's status."""
        self._go_on.set()
        self._thread.join()
        return self.statuses[-1]


def test_a_full_queue_asks_to_come_again_and_then_takes_it(small: Service) -> None:
    slow = Slow(small)
    body = batch("second", [step(1)]) + b" " * 16_384
    slow.wait()
    answer = small.post(body)
    assert answer.headers["retry-after"] == "2"
    assert answer.headers["content-type"] == "application/problem+json"
    assert small.get("/runs/second").status_code == 404
    assert slow.finish() == 200
    assert small.post(body).status_code == 200


def test_the_hooks_wait_as_long_as_they_are_asked_to(small: Service) -> None:
    slow = Slow(small)
    lines = batch("hooked", [step(n, tokens=tuple(range(n, n + 400))) for n in range(1, 40)])
    client = Client(small.url)
    slow.wait()
    answer = client.post([lines])
    assert (answer.outcome, answer.retry_after) == ("retry", 2.0)
    assert slow.finish() == 200
    assert client.post([lines]).outcome == "accepted"
    client.close()


def test_a_batch_that_is_alone_finds_room_however_large_it_is(small: Service) -> None:
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
