"""Steps that cannot be evaluated: the reason that is reported.

A record that passes the wire schema can still break a computation. Such a step is quarantined: it
is stored with the reason and without metrics, rules learn that they missed it, and the run
continues with the next step. The error depends on the records alone, so a restart or a replay gives
the same result. Running out of memory does not depend on them, so a ``MemoryError`` propagates.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gradledger_monitor.common.sanitize import printable

MAX_ERROR_LENGTH = 500  # characters of the error that are stored


class CannotEvaluate(Exception):
    """A step whose records break a computation; the message names the step and the reason."""


def failure_reason(step: int, error: Exception) -> str:
    """Why a step could not be evaluated. Raises a ``MemoryError`` again."""
    if isinstance(error, MemoryError):
        raise error
    cause = printable(f"{type(error).__name__}: {error}")[:MAX_ERROR_LENGTH]
    return f"step {step} could not be evaluated: {cause}"


@contextmanager
def evaluating(step: int) -> Iterator[None]:
    """Raises ``CannotEvaluate`` for any error in the block except ``MemoryError``."""
    try:
        yield
    except Exception as error:
        raise CannotEvaluate(failure_reason(step, error)) from error
