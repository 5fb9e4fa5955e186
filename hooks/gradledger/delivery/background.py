"""Threads that are invisible to the script.

``threading.enumerate`` and ``active_count`` do not list them, because a script may join every
thread in the list, or wait until no other thread runs. Like daemon threads, they end with the
interpreter.
"""

from __future__ import annotations

import _thread
import os
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

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


class _ForkWarning:
    """The message of a warning filter: that a process with several threads forks (Python 3.12).

    It matches if the program's only other threads are the hooks', because the program would not
    get the warning without them.
    """

    def match(self, text: str) -> bool:
        """Whether this is the text, and the program itself has only one thread."""
        if "is multi-threaded, use of " not in text or not _running:
            return False
        try:
            return len(os.listdir("/proc/self/task")) - len(_running) <= 1
        except OSError:  # only Linux has this folder
            return False


_FILTER = ("ignore", _ForkWarning(), DeprecationWarning, None, 0)


def _before_fork() -> None:
    """Put the filter first.

    Not by ``warnings.filterwarnings``: that makes Python forget the warnings that it has shown,
    and show them again. The filter stays, because Python warns after the fork.
    """
    filters: Any = getattr(warnings, "filters", None)
    if _running and isinstance(filters, list) and filters[:1] != [_FILTER]:
        with suppress(ValueError):
            filters.remove(_FILTER)
        filters.insert(0, _FILTER)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_running.clear)
