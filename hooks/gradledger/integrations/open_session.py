"""What integrations tell the open session, if there is one; nothing here reaches the script."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

from gradledger import guard, session

failing_open = guard.fail_open("an integration")  # around every callback of ours


@failing_open
def evaluation(values: Mapping[str, Any]) -> None:
    """Metrics of an evaluation, told at the optimizer step that came before it."""
    open_session = session.current()
    told = {name: value for name, value in values.items() if _is_number(value)}
    if open_session is not None and told:
        steps = open_session.recorder.windows.steps
        open_session.log_eval(steps[0] if steps else 0, told)


@failing_open
def checkpoint(path: str) -> None:
    """A checkpoint was saved after the last optimizer step."""
    open_session = session.current()
    if open_session is not None:
        open_session.checkpoint(None, path)


def training_begins(framework: str, steps: float) -> None:
    """Whose loop it is, and how many optimizer steps it means to take."""
    planned = {"planned_steps": int(steps)} if 0 < steps < float("inf") else {}
    configured({"framework": framework, **planned})


@failing_open
def configured(values: Mapping[str, Any]) -> None:
    """What the run is configured with; what the script itself has told stays."""
    open_session = session.current()
    if open_session is not None:
        open_session.configure(values)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, numbers.Real) or getattr(value, "numel", lambda: 0)() == 1
