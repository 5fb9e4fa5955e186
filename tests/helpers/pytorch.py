"""Tests that need a version of PyTorch, for reasons that are not gradledger's."""

from __future__ import annotations

import pytest
import torch

# FSDP2 with gloo, without the hooks: that of 2.6 ends with an AttributeError, that of 2.8 adds
# gradients up where it should average them. 2.7 and 2.9 are not tested.
FSDP2_ON_A_CPU = "2.10"


def older_than(version: str) -> bool:
    """Whether this PyTorch is older than a version."""
    return _numbers(torch.__version__) < _numbers(version)


def since(version: str, otherwise: str) -> pytest.MarkDecorator:
    """Skip a test with an older PyTorch, in which something is ``otherwise``."""
    reason = f"before PyTorch {version}, {otherwise}"
    return pytest.mark.skipif(older_than(version), reason=reason)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
