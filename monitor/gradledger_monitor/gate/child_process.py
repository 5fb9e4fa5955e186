"""Runs a command in its own process group: its output passes through, and it gets our signals."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

POLL_SECONDS = 0.1
GRACE_SECONDS = 35.0  # torchrun gives its workers 30


@dataclass(frozen=True)
class ExitResult:
    """How a command ended; ``stopped`` if this process stopped it."""

    status: int
    stopped: bool

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.status == -signal.SIGINT

    def __str__(self) -> str:
        if self.status < 0:
            return f"killed by {signal.Signals(-self.status).name}"
        return f"exit status {self.status}"


def run(command: list[str], env: Mapping[str, str], should_stop: Callable[[], bool]) -> ExitResult:
    """Run ``command`` to its end, or until ``should_stop()``."""
    with _forwarded_signals() as forward_to:
        process = subprocess.Popen(command, env=env, start_new_session=True)
        forward_to(process)
        while not _ends_within(process, POLL_SECONDS):
            if should_stop():
                return ExitResult(_stop(process), stopped=True)
    return ExitResult(process.returncode, stopped=False)


def _stop(process: subprocess.Popen[bytes]) -> int:
    _signal(process, signal.SIGTERM)
    if not _ends_within(process, GRACE_SECONDS):
        _signal(process, signal.SIGKILL)
    return process.wait()


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)


@contextmanager
def _forwarded_signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Forward Ctrl-C and SIGTERM: a terminal does not send them to another process group.

    Signals that arrive before the command starts are forwarded after its start.
    """
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def handler(number: int, frame: Any) -> None:
        if started:
            _signal(started[0], number)
        else:
            early.append(number)

    def forward_to(process: subprocess.Popen[bytes]) -> None:
        started.append(process)
        for number in early:
            _signal(process, number)

    previous = {n: signal.signal(n, handler) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield forward_to
    finally:
        for number, old_handler in previous.items():
            signal.signal(number, old_handler)
