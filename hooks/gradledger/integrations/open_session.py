"""Passes data of integrations to the open session, if there is one; never raises."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

from gradledger import guard, session

failing_open = guard.fail_open("an integration")  # decorates every callback of an integration


@failing_open
def log_evaluation(values: Mapping[str, Any]) -> None:
    """Record evaluation metrics at the last optimizer step before the evaluation."""
    open_session = session.current()
    metrics = {name: value for name, value in values.items() if _is_number(value)}
    if open_session is not None and metrics:
        steps = open_session.recorder.windows.steps
        open_session.log_eval(steps[0] if steps else 0, metrics)


@failing_open
def checkpoint(path: str) -> None:
    """Record that a checkpoint was saved after the last optimizer step."""
    open_session = session.current()
    if open_session is not None:
        open_session.checkpoint(None, path)


def on_train_begin(framework: str, steps: float) -> None:
    """Add the framework and the planned number of optimizer steps to the configuration."""
    planned = {"planned_steps": int(steps)} if 0 < steps < float("inf") else {}
    configure({"framework": framework, **planned})


@failing_open
def configure(values: Mapping[str, Any]) -> None:
    """Add entries to the configuration; entries that the script set itself have priority."""
    open_session = session.current()
    if open_session is not None:
        open_session.configure(values)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, numbers.Real) or getattr(value, "numel", lambda: 0)() == 1
