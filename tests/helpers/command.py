"""``gradledger`` commands, each in a process of its own that has imported everything already.

Hundreds are started in a run of all tests. What they import is imported once, in a process that
then forks each of them: that is multiprocessing's fork server.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TextIO

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(["gradledger_monitor.cli", "gradledger_monitor.app"])


class Command:
    """A command that goes on beside the test; what it prints, errors too, is ``output``."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        apart: bool = False,
        folder: Path | None = None,
    ) -> None:
        pipes = [_forking.Pipe(duplex=False) for _ in range(1 + apart)]
        streams = [writer for _, writer in pipes]
        self._process = _forking.Process(
            target=_become, args=(streams, arguments, dict(environment), folder), daemon=True
        )
        self._process.start()
        for stream in streams:
            stream.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.output, *self.errors = [_text(reader) for reader, _ in pipes]

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


def gradledger(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    seconds: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """What a command printed, once it has ended. Raises TimeoutExpired."""
    environ = os.environ if environment is None else environment
    command = Command(arguments, environ, apart=True, folder=folder)
    watchdog = threading.Timer(seconds, command.kill)
    watchdog.start()
    with ThreadPoolExecutor(2) as reading:
        printed, errors = reading.map(_read, [command.output, *command.errors])
    watchdog.cancel()
    return subprocess.CompletedProcess(arguments, command.wait(seconds), printed, errors)


def _read(stream: TextIO) -> str:
    with stream:
        return stream.read()


def _text(connection: Connection) -> TextIO:
    text = os.fdopen(os.dup(connection.fileno()), "r", errors="replace")
    connection.close()
    return text


def _become(
    streams: Sequence[Connection],
    arguments: Sequence[str],
    environment: dict[str, str],
    folder: Path | None,
) -> None:
    """In the forked process."""
    os.chdir(folder or ".")
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(streams[0].fileno(), 1)
    os.dup2(streams[-1].fileno(), 2)
    for stream in streams:
        stream.close()
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["gradledger", *arguments]
    from gradledger.cli import main  # noqa: PLC0415

    sys.exit(main())
