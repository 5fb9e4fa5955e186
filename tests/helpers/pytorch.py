"""Tests that need a version of PyTorch, for reasons that are not gradledger's."""

from __future__ import annotations

import pytest
import torch


def since(version: str, otherwise: str) -> pytest.MarkDecorator:
    """Skip a test with an older PyTorch, in which something is ``otherwise``."""
    older = _numbers(torch.__version__) < _numbers(version)
    return pytest.mark.skipif(older, reason=f"before PyTorch {version}, {otherwise}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
