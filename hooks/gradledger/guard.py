"""The one place where the hooks swallow an exception: training goes on, whatever we did wrong."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import ContextDecorator

from gradledger.stderr import write_line

Handler = Callable[[str, Exception], None]

# Tests replace this to fail on anything swallowed.
reporter: Callable[[str, BaseException], None] | None = None

_told: set[str] = set()


class fail_open(ContextDecorator):
    """Run the body; hand an exception to ``handle``, or report it, and let the script continue.

    It has no state of its own, so one may be kept and entered again and again.
    """

    __slots__ = ("_handle", "_where")

    def __init__(self, where: str, handle: Handler | None = None) -> None:
        self._where, self._handle = where, handle

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Swallow what is an ``Exception``; an interrupt or an exit goes on its way."""
        if error is None or not isinstance(error, Exception):
            return False
        _hand_over(self._handle or report, self._where, error)
        return True


def _hand_over(handle: Handler, where: str, error: Exception) -> None:
    """Call ``handle``; what it raises is reported too, and does not reach the script either."""
    try:
        handle(where, error)
    except Exception as another:
        report(where, another)


def report(where: str, error: BaseException) -> None:
    """Write once to standard error that a part of gradledger failed and was left out.

    Never raises: it is called where an exception has just been kept from the script.
    """
    if reporter is not None:
        reporter(where, error)
    try:  # noqa: SIM105 (`suppress` takes stack, of which there may be none left)
        _report_once(where, error)
    except Exception:  # nosec B110
        pass


def _report_once(where: str, error: BaseException) -> None:
    if where in _told:
        return
    _told.add(where)
    detail = traceback.format_exception_only(type(error), error)[-1].strip()
    write_line(f"{where} failed and is switched off ({detail}); training goes on")
