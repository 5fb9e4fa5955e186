"""The fixture ``assert_balanced``, for tests of training code; pytest finds it by itself.

    def test_the_loop_weighs_tokens_alike(assert_balanced):
        assert_balanced(lambda: train(steps=4))

The service judges in this process, so the monitor must be installed; without it nothing else of
a test run changes.
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

    Runs ``train()`` with the hooks on, fails with the report where something is wrong, and gives
    the judgement otherwise.
    """
    try:
        module = importlib.import_module("gradledger_monitor.gate.in_process")
    except ModuleNotFoundError as missing:
        pytest.fail(f"assert_balanced needs: pip install 'gradledger[monitor]' ({missing})")
    checked: Callable[..., Any] = module.assert_balanced
    return checked
