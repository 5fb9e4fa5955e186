"""The only module of the hooks that suppresses exceptions: no failure of theirs stops training."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import ContextDecorator

from gradledger.stderr import write_line

Handler = Callable[[str, Exception], None]

# Tests replace this to fail on every suppressed exception.
reporter: Callable[[str, BaseException], None] | None = None

_reported: set[str] = set()


class fail_open(ContextDecorator):
    """Run the body; pass an exception to ``handle``, or report it, and let the script continue.

    An instance holds no state of the body, so one instance can be entered any number of times.
    """

    __slots__ = ("_handle", "_where")

    def __init__(self, where: str, handle: Handler | None = None) -> None:
        self._where, self._handle = where, handle

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Suppress an ``Exception``; let an interrupt or an exit propagate."""
        if error is None or not isinstance(error, Exception):
            return False
        _call_handler(self._handle or report, self._where, error)
        return True


def _call_handler(handle: Handler, where: str, error: Exception) -> None:
    """Call ``handle``; report an exception that it raises, and suppress that, too."""
    try:
        handle(where, error)
    except Exception as handler_error:
        report(where, handler_error)


def report(where: str, error: BaseException) -> None:
    """Write to standard error, once for each part, that a part of gradledger failed.

    Never raises: its callers have just suppressed an exception.
    """
    if reporter is not None:
        reporter(where, error)
    try:  # noqa: SIM105 (`suppress` needs stack frames, and there may be none left)
        _report_once(where, error)
    except Exception:  # nosec B110
        pass


def _report_once(where: str, error: BaseException) -> None:
    if where in _reported:
        return
    _reported.add(where)
    detail = traceback.format_exception_only(type(error), error)[-1].strip()
    write_line(f"{where} failed and is switched off ({detail}); training goes on")
