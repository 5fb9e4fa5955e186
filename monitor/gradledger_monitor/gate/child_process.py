"""Runs a command in a process group of its own: its output passes through, signals reach it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

LOOK_EVERY_SECONDS = 0.1
GRACE_SECONDS = 35.0  # torchrun gives its own workers 30


@dataclass(frozen=True)
class Ended:
    """How a command ended; ``stopped`` when that was our doing."""

    status: int
    stopped: bool

    def __str__(self) -> str:
        if self.status < 0:
            return f"it was killed by {signal.Signals(-self.status).name}"
        return f"its exit status is {self.status}"


def run(command: list[str], env: Mapping[str, str], enough: Callable[[], bool]) -> Ended:
    """Run ``command`` to its end, or until ``enough()``."""
    with _signals_handed_on() as begun:
        process = subprocess.Popen(command, env=env, start_new_session=True)
        begun(process)
        while not _ended_within(process, LOOK_EVERY_SECONDS):
            if enough():
                return Ended(_stop(process), stopped=True)
    return Ended(process.returncode, stopped=False)


def _stop(process: subprocess.Popen[bytes]) -> int:
    _signal(process, signal.SIGTERM)
    if not _ended_within(process, GRACE_SECONDS):
        _signal(process, signal.SIGKILL)
    return process.wait()


def _ended_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)


@contextmanager
def _signals_handed_on() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Ctrl-C reaches only us, the command being in another group: hand it on.

    What comes while the command begins is handed on once it has begun.
    """
    command: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def hand_on(number: int, frame: Any) -> None:
        if command:
            _signal(command[0], number)
        else:
            early.append(number)

    def begun(process: subprocess.Popen[bytes]) -> None:
        command.append(process)
        for number in early:
            _signal(process, number)

    before = {n: signal.signal(n, hand_on) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield begun
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
