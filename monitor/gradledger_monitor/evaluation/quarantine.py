"""Steps that cannot be evaluated: what is reported of them.

A record that passes the wire schema can still break a computation. Such a step is quarantined: it
is stored with the reason and without figures, rules learn that they missed it, and the run goes on
with the next step. The error depends on the records alone, so a restart or replay gives the same
result. Running out of memory does not depend on them, and is raised on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gradledger_monitor.common.sanitize import printable

LONGEST = 500  # characters of the error that are stored


class CannotEvaluate(Exception):
    """A step whose records break a computation; its text says which step, and why."""


def why(step: int, error: Exception) -> str:
    """Why a step could not be evaluated. Raises a ``MemoryError`` again."""
    if isinstance(error, MemoryError):
        raise error
    cause = printable(f"{type(error).__name__}: {error}")[:LONGEST]
    return f"step {step} could not be evaluated: {cause}"


@contextmanager
def evaluating(step: int) -> Iterator[None]:
    """Raises ``CannotEvaluate`` for any error in the block but ``MemoryError``."""
    try:
        yield
    except Exception as error:
        raise CannotEvaluate(why(step, error)) from error
