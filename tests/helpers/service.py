"""A real service in a process of its own, on a free port; started, killed and started again.

Hundreds are started in a run of all tests. What they import is imported once, in a process that
then forks each of them: that is multiprocessing's fork server.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TextIO

import httpx2

START_SECONDS = 90.0  # a busy machine is no failure


_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(["gradledger_monitor.cli", "gradledger_monitor.app"])


class Command:
    """A ``gradledger`` command in a process of its own."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        reader, writer = _forking.Pipe(duplex=False)
        self._process = _forking.Process(
            target=_run, args=(writer, arguments, dict(environment)), daemon=True
        )
        self._process.start()
        writer.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.output: TextIO = os.fdopen(os.dup(reader.fileno()), "r", errors="replace")
        reader.close()

    def poll(self) -> int | None:
        """The exit status, as soon as there is one."""
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        """The exit status once it has ended. Raises TimeoutExpired."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("gradledger", seconds or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)


def _run(output: Connection, arguments: Sequence[str], environment: dict[str, str]) -> None:
    """In the forked process: become the command."""
    os.environ.clear()
    os.environ.update(environment)
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    output.close()
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["gradledger", *arguments]
    from gradledger.cli import main  # noqa: PLC0415

    sys.exit(main())


@dataclass
class Service:
    """One running ``gradledger serve`` and the database it works on."""

    process: Command
    url: str
    database: str
    output: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rsplit(":", 1)[1])

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 60.0) -> int:
        """Ask it to end, and give its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def post(self, body: bytes, **headers: str) -> httpx2.Response:
        """Send a body of JSON lines."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        told = {"Content-Type": "application/x-ndjson", **named}
        return httpx2.post(f"{self.url}/api/v1/records", content=body, headers=told, timeout=60)

    def get(self, path: str) -> httpx2.Response:
        """Ask for a path below /api/v1."""
        return httpx2.get(f"{self.url}/api/v1{path}", timeout=30)


def start_service(database: Path | str, port: int = 0, **settings: str) -> Service:
    """Start the service on a file or URL and wait until it listens.

    Settings are ``GRADLEDGER_*`` variables.
    """
    url = f"sqlite:///{database}" if isinstance(database, Path) else database
    settings = {"access": "open", **settings}
    named = {f"GRADLEDGER_{name.upper()}": value for name, value in settings.items()}
    process = Command(["serve", "--db", url, "--port", str(port)], {**os.environ, **named})
    watchdog = threading.Timer(START_SECONDS, process.kill)
    watchdog.start()
    output: list[str] = []
    for line in process.output:
        output.append(line)
        if line.startswith("gradledger listens on "):
            watchdog.cancel()
            service = Service(process, line.split()[-1], url, output)
            threading.Thread(target=_collect, args=(service,), daemon=True).start()
            return service
    watchdog.cancel()
    process.output.close()
    raise RuntimeError(f"the service did not start:\n{''.join(output)}")


def _collect(service: Service) -> None:
    with service.process.output as lines:
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
