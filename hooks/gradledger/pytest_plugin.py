"""The pytest fixture ``assert_balanced``, for tests of training code. pytest loads it by itself.

    def test_every_token_has_equal_weight(assert_balanced):
        assert_balanced(lambda: train(steps=4))

The evaluation runs in the process of the tests, so the fixture needs the monitor. Without the
monitor, tests that do not use the fixture are not affected.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["assert_balanced"]


@pytest.fixture(scope="session")
def assert_balanced() -> Callable[..., Any]:
    """``assert_balanced(train, fail_on="warning", allow=(), allow_incomplete=False, **watch)``.

    Runs ``train()`` with the hooks on and returns the evaluation. Fails the test with the report
    if a finding is at or above ``fail_on``, if no optimizer step was seen, or, unless
    ``allow_incomplete``, if something could not be measured.
    """
    try:
        module = importlib.import_module("gradledger_monitor.gate.in_process")
    except ModuleNotFoundError as missing:
        pytest.fail(
            "The fixture assert_balanced needs the monitor. Run "
            f"pip install 'gradledger[monitor]' ({missing})"
        )
    check: Callable[..., Any] = module.assert_balanced
    return check
