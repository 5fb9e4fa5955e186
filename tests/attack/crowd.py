"""64 concurrent clients that send and read, and 50 pages that subscribe to events."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator

from attack.arena import Arena, Honest, in_threads
from attack.outcome import Outcome
from helpers.batches import batch, eventually, step
from helpers.service import Service

CLIENTS = 64
LISTENERS = 50
PATHS = ("/runs", "/runs/{run}", "/runs/{run}/verdict", "/runs/{run}/findings")


def attack(arena: Arena) -> Iterator[Outcome]:
    """Run on both databases."""
    for backend in ("sqlite", "postgres"):
        outcome = Outcome(f"{CLIENTS} clients, {backend}")
        with arena.service(outcome, arena.database(backend), access="open") as service:
            _crowd(service, outcome, arena.seconds)
        yield outcome
    outcome = Outcome(f"{LISTENERS} listeners to events")
    with arena.service(outcome) as service:
        _listen(service, outcome)
    yield outcome


def _crowd(service: Service, outcome: Outcome, seconds: float) -> None:
    clients = [Honest(service.port, f"crowd-{n}", outcome) for n in range(CLIENTS)]
    until = time.monotonic() + seconds

    def work(number: int) -> None:
        client = clients[number]
        while time.monotonic() < until:
            if client.deliver(until=until):
                client.read(PATHS[number % len(PATHS)].format(run=client.run_id))

    in_threads(CLIENTS, work)
    for client in clients:
        client.settle()


class _Listener(threading.Thread):
    """A page that subscribes to the events of a run until one reports a step."""

    def __init__(self, service: Service, step: int) -> None:
        super().__init__(daemon=True)
        self.connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
        self._last = b'"step":%d,' % step
        self.listens = threading.Event()
        self.reached = False

    def run(self) -> None:
        self.connection.request("GET", "/api/v1/runs/observed/events")
        answer = self.connection.getresponse()
        for line in answer:
            self.listens.set()
            if self._last in line:
                self.reached = True
                return


def _listen(service: Service, outcome: Outcome) -> None:
    sender = Honest(service.port, "observed", outcome)
    sender.deliver(5)
    eventually(60, lambda: bool((sender.read("/runs/observed") or {}).get("steps")))
    listeners = [_Listener(service, 105) for _ in range(LISTENERS)]
    for listener in listeners:
        listener.start()
    if not all(listener.listens.wait(30) for listener in listeners):
        outcome.fault("not every listener was served")
    for _ in range(20):
        sender.deliver(5)
    sender.settle()
    for listener in listeners:
        listener.join(30)
        outcome.tried()
        if not listener.reached:
            outcome.fault("a listener did not receive the event of the last step")
        listener.connection.close()
    body = batch("observed", [step(106)])  # closed listeners must not disturb others
    sender.ask("POST", "/api/v1/records", body)
