"""A real service in a process of its own, on a free port; started, killed and started again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from helpers import command, http
from helpers.forkserver import Python
from helpers.patience import HANGS
from helpers.sending import new_database


@dataclass
class Service:
    """One running ``gradledger serve`` and its database."""

    process: Python
    url: str
    database: str
    output: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self.url.rsplit(":", 1)[1])

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """End it with SIGTERM; returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(HANGS)

    def post(self, body: bytes, **headers: str) -> httpx2.Response:
        """Send a body of JSON lines."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named = {"Content-Type": "application/x-ndjson", **named}
        return http.post(f"{self.url}/api/v1/records", content=body, headers=named)

    def get(self, path: str) -> httpx2.Response:
        """Get a path below /api/v1."""
        return http.get(f"{self.url}/api/v1{path}")


def start_service(database: Path | str, port: int = 0, **settings: str) -> Service:
    """Start the service on a file or URL and wait until it listens.

    A file that does not exist gets its tables here, which is faster than by the service. Settings
    are ``GRADLEDGER_*`` variables.
    """
    if isinstance(database, Path) and not database.exists():
        new_database(database)
    url = f"sqlite:///{database}" if isinstance(database, Path) else database
    settings = {"access": "open", **settings}
    named = {f"GRADLEDGER_{name.upper()}": value for name, value in settings.items()}
    process = command.start(["serve", "--db", url, "--port", port], {**os.environ, **named})
    watchdog = threading.Timer(HANGS, process.kill)
    watchdog.start()
    output: list[str] = []
    for line in process.stdout:
        output.append(line)
        if line.startswith("gradledger listens on "):
            watchdog.cancel()
            service = Service(process, line.split()[-1], url, output)
            threading.Thread(target=_collect, args=(service,), daemon=True).start()
            return service
    watchdog.cancel()
    process.end_session()
    raise RuntimeError(f"the service did not start:\n{''.join(output)}")


def _collect(service: Service) -> None:
    with service.process.stdout as lines:
        service.output.extend(lines)


@contextmanager
def running_service(database: Path | str, port: int = 0, **settings: str) -> Iterator[Service]:
    """A service for the length of a block."""
    service = start_service(database, port, **settings)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.stop()
