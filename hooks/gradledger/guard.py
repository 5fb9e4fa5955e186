"""The one place where the hooks swallow an exception: training goes on, whatever we did wrong."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Handler = Callable[[str, Exception], None]

# Tests replace this to fail on anything swallowed.
reporter: Callable[[str, BaseException], None] | None = None

_told: set[str] = set()


@contextmanager
def fail_open(where: str, handle: Handler | None = None) -> Iterator[None]:
    """Run the body; hand an exception to ``handle``, or report it, and let the script continue."""
    try:
        yield
    except Exception as error:
        (handle or report)(where, error)


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
