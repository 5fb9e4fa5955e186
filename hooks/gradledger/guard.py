"""The one place where the hooks swallow an exception: training goes on, whatever we did wrong."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import ContextDecorator

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
        (self._handle or report)(self._where, error)
        return True


def report(where: str, error: BaseException) -> None:
    """Say once, on standard error, that a part of gradledger failed and was left out."""
    if reporter is not None:
        reporter(where, error)
    if where in _told:
        return
    _told.add(where)
    detail = traceback.format_exception_only(type(error), error)[-1].strip()
    sys.stderr.write(
        f"gradledger: {where} failed and is switched off ({detail}); training goes on\n"
    )
