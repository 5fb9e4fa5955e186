"""The environment of attacks: services with separate databases, and well-behaved clients."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attack.outcome import Outcome
from helpers.batches import batch, eventually, step
from helpers.postgres import Postgres
from helpers.proc import memory, reset_peak_memory
from helpers.service import Service, running_service

ANY_RATE = {"reads_per_second": "0", "batches_per_second": "0"}
LINES = {"Content-Type": "application/x-ndjson"}
TOKENS = 40  # of a step that `helpers.batches.step` makes
ANSWER_SECONDS = 30.0
EVALUATION_SECONDS = 120.0


@dataclass
class Arena:
    """The resources of attacks: a folder, a Postgres server, a duration in seconds."""

    folder: Path
    postgres: Postgres
    seconds: float
    _number: int = field(default=0)

    def database(self, backend: str = "sqlite") -> str:
        """The URL of a new database."""
        if backend == "postgres":
            return self.postgres.create()
        self._number += 1
        return f"sqlite:///{self.folder / f'{self._number}.db'}"

    @contextmanager
    def service(self, outcome: Outcome, url: str = "", **settings: str) -> Iterator[Service]:
        """A service for a block; afterwards it must run and have logged no traceback."""
        with running_service(url or self.database(), 0, **{**ANY_RATE, **settings}) as service:
            with watched_memory(service, outcome):
                yield service
            if service.process.poll() is not None:
                outcome.fault("the service ended")
            traces = [line for line in service.output if "Traceback" in line]
            if traces and not outcome.outage:
                outcome.fault(f"{len(traces)} tracebacks in the log: {traces[0][-400:]}")


@contextmanager
def watched_memory(service: Service, outcome: Outcome) -> Iterator[None]:
    """Measure the maximum memory growth of a service during a block."""
    pid = service.process.pid
    warm = Honest(service.port, "warm", outcome)
    warm.deliver(10)
    before = memory(pid)
    reset_peak_memory(pid)
    yield
    if service.process.poll() is None:
        outcome.memory = max(outcome.memory, memory(pid, "VmHWM") - before)


class Honest:
    """A client that sends a run in order, each batch until it is acknowledged, and reads."""

    def __init__(self, port: int, run: str, outcome: Outcome, host: str = "127.0.0.1") -> None:
        self.port, self.run_id, self.outcome = port, run, outcome
        self._source = (host, 0)
        self._connection: http.client.HTTPConnection | None = None
        self.acknowledged = 0  # steps

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send and count a request; status 0 without a response."""
        began = time.monotonic()
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(
                    "127.0.0.1", self.port, ANSWER_SECONDS, source_address=self._source
                )
            self._connection.request(method, path, body, LINES if body else {})
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if isinstance(error, TimeoutError):
                self.outcome.answered(0, time.monotonic() - began)
            return 0, b""
        seconds = time.monotonic() - began
        again = answer.headers.get("Retry-After")
        self.outcome.answered(answer.status, seconds, again is not None)
        if again is not None:
            time.sleep(min(float(again), 0.5))
        return answer.status, content

    def deliver(self, steps: int = 5, until: float = float("inf")) -> bool:
        """Send the next steps until they are acknowledged; False after a timeout."""
        first = self.acknowledged + 1
        body = batch(self.run_id, [step(n) for n in range(first, first + steps)])
        while time.monotonic() < until:
            if self.ask("POST", "/api/v1/records", body)[0] == 200:
                self.acknowledged += steps
                return True
            time.sleep(0.02)
        return False

    def read(self, path: str) -> Any:
        """Get a document below ``/api/v1``."""
        status, content = self.ask("GET", f"/api/v1{path}")
        return json.loads(content) if status == 200 else None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def settle(self) -> None:
        """Compare stored with acknowledged steps; count lost and doubled ones."""
        if not self.acknowledged:
            return
        eventually(EVALUATION_SECONDS, self._is_complete)
        run = self.read(f"/runs/{self.run_id}") or {"steps": 0, "tokens": 0}
        self.outcome.lost += max(0, self.acknowledged - run["steps"])
        self.outcome.doubled += max(0, run["tokens"] // TOKENS - run["steps"])
        self.close()

    def _is_complete(self) -> bool:
        run = self.read(f"/runs/{self.run_id}")
        return run is not None and run["steps"] >= self.acknowledged


class Beside(threading.Thread):
    """A well-behaved client during an attack, from a separate address."""

    def __init__(self, service: Service, outcome: Outcome, run: str = "beside") -> None:
        super().__init__(daemon=True)
        self.client = Honest(service.port, run, outcome, "127.0.0.9")
        self._enough = threading.Event()

    def run(self) -> None:
        """Send and read alternately."""
        while not self._enough.is_set():
            self.client.deliver(until=time.monotonic() + ANSWER_SECONDS)
            self.client.read(f"/runs/{self.client.run_id}")

    def __enter__(self) -> Beside:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self.join()
        self.client.settle()


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run ``work`` in several threads, and wait for all."""
    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
