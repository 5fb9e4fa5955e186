"""Something happens while a function of the hooks runs, as a signal or the collector may."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def when_returning(function: Any, action: Callable[[], None]) -> Iterator[None]:
    """Call ``action`` once, on this thread, just before ``function`` returns."""
    yield from _during("return", function.__code__, action)


@contextmanager
def when_called(function: Any, action: Callable[[], None]) -> Iterator[None]:
    """Call ``action`` once, on this thread, just after ``function`` was entered."""
    yield from _during("call", function.__code__, action)


def _during(event: str, code: Any, action: Callable[[], None]) -> Iterator[None]:
    done = False

    def profile(frame: FrameType, what: str, _: Any) -> None:
        nonlocal done
        if not done and what == event and frame.f_code is code:
            done = True
            action()

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)
    assert done, f"{code.co_name} did not run"
