"""Threads that are invisible to the script.

``threading.enumerate`` and ``active_count`` do not list them, because a script may join every
thread in the list, or wait until no other thread runs. Like daemon threads, they end with the
interpreter.
"""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable

_running: set[BackgroundThread] = set()


class BackgroundThread:
    """Runs ``body`` once. Raises RuntimeError if no thread can be started."""

    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self.name = name
        self._body = body
        self._ended = threading.Event()
        _running.add(self)
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:
            _running.discard(self)
            raise

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended, for at most ``seconds``."""
        self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            self._body()
        finally:
            _running.discard(self)
            self._ended.set()


def running() -> list[str]:
    """The names of the background threads that run in this process."""
    return sorted(thread.name for thread in list(_running))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)
